"""The wall-clock limit of a search: `--time-limit`. What it cuts depends on the machine, and `search.stopped` says so."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When to stop.

    Attributes:
        deadline: `time.monotonic()` of it; None: never.
    """

    deadline: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left, a little at least."""
        return float("inf") if self.deadline is None else max(self.deadline - time.monotonic(), 1e-3)

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.deadline is not None and time.monotonic() >= self.deadline


ENDLESS = Clock()
