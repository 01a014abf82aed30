"""What every result can do in an interactive session: a table for notebooks, a pandas frame.

A class that has `to_dict` and derives from `Shown` is drawn by notebooks (`_repr_html_`) and gives a frame (`to_frame`). Both
are made from the record by functions of the façade, so that results need not know how they are shown.
"""

from __future__ import annotations

from typing import Any


class Shown:
    """A result that notebooks can draw."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The record, as the command prints it with `--format json`."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """A table and memory bars, for notebooks."""
        import shardwright

        text: str = shardwright.html_of(self.to_dict())
        return text

    def to_frame(self) -> Any:
        """The rows that `--format csv` prints, as a pandas DataFrame.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        import shardwright

        return shardwright.frame_of(self.to_dict())
