"""Pictures as data: panels of curves over sizes, and grids of text; drawn by `chart_svg` and `chart_png`.

ticks(low, high)          round numbers between two values (steps of 1, 2, 5 times a power of ten)
log_ticks(low, high)      powers of ten, with 2 and 5 times them where there are few
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Told apart also by readers who are colour-blind (Okabe and Ito, Color Universal Design, 2008, less yellow)."""

DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3))
"""Lengths of strokes and gaps; with the colours they tell `MAX_CURVES` curves apart."""

MAX_CURVES = len(COLOURS) * len(DASHES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of one job; `index` chooses colour and dashes."""

    index: int
    points: tuple[tuple[float, float], ...]
    ideal: bool = False

    @property
    def colour(self) -> str:
        """Hexadecimal."""
        return COLOURS[self.index % len(COLOURS)]

    @property
    def dash(self) -> tuple[int, ...]:
        """Strokes and gaps."""
        return (1, 3) if self.ideal else DASHES[self.index // len(COLOURS) % len(DASHES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over the number of GPUs, which is drawn logarithmically.

    Attributes:
        log: whether the heights are logarithmic too; else they start at 0.
        marks: sizes marked by a vertical line, with the index of their curve.
    """

    title: str
    curves: tuple[Curve, ...]
    log: bool = False
    marks: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rows of short texts, a column a size; cells that differ from the one before are emphasised."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture: a title, remarks below it, the names of the curves, panels, grids."""

    title: str
    remarks: tuple[str, ...]
    legend: tuple[str, ...]
    panels: tuple[Panel, ...]
    grids: tuple[Grid, ...]

    @property
    def sizes(self) -> tuple[float, ...]:
        """All sizes of all curves, ascending."""
        return tuple(sorted({x for panel in self.panels for curve in panel.curves for x, _ in curve.points}))


def thinned(values: Sequence[float], most: int) -> tuple[float, ...]:
    """At most so many of the values, evenly chosen, the first among them."""
    step = -(-len(values) // most) if values else 1
    return tuple(values[::step])


def tick_text(value: float) -> str:
    """A tick in as few digits as tell it, in thousands (k), millions (M) or billions (B)."""
    for limit, factor, unit in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit:
            return f"{value / factor:.4g}{unit}"
    return f"{value / 1e9:.4g}B"
