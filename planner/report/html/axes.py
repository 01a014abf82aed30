"""Axes of charts: round numbers between two ends, and places on them.

A chart keeps GUTTER of its width on the left for the numbers of the vertical axis, which stand on their lines, and MARGIN on
the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from shardwright.planner.report.html import svg

GUTTER, MARGIN = 0.1, 0.03
TOP, BOTTOM = 26.0, 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A straight or logarithmic scale.

    Attributes:
        low, high: ends.
        log: whether it is logarithmic.
    """

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """Round numbers inside the ends."""
        if self.log:
            return _decades(self.low, self.high)
        step = _round_step((self.high - self.low) / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(n * step for n in range(first, last + 1))


def around(values: Sequence[float], room: float = 0.06) -> Scale:
    """A scale that holds all values with room on both sides."""
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0
    return Scale(low=low - room * spread, high=high + room * spread)


def _round_step(rough: float) -> float:
    size = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(step * size for step in (1, 2, 2.5, 5, 10) if step * size >= rough * (1 - 1e-9))


def _decades(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten; powers of ten alone where they are many."""
    steps = (1, 2, 5) if high / low <= 200 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return tuple(step * 10.0**n for n in powers for step in steps if low <= step * 10.0**n <= high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Two scales on a drawing.

    Attributes:
        x, y: scales.
        height: of the drawing, pixels.
    """

    x: Scale
    y: Scale
    height: float

    def left(self, value: float) -> str:
        """Horizontal place of a value."""
        return svg.percent(GUTTER + self.x.share(value) * (1 - GUTTER - MARGIN))

    def top(self, value: float) -> float:
        """Vertical place of a value, pixels."""
        return self.height - BOTTOM - self.y.share(value) * (self.height - BOTTOM - TOP)

    def grid(
        self,
        x_said: Callable[[float], str],
        y_said: Callable[[float], str],
        names: tuple[str, str],
        x_ticks: Sequence[float] = (),
    ) -> Markup:
        """Lines, numbers and names of the axes."""
        floor = self.height - BOTTOM
        made = [
            svg.text(names[1], "0", 12, "t small"),
            svg.text(names[0], "100%", self.height - 4, "t small", text_anchor="end"),
        ]
        for value in self.y.ticks():
            made.append(svg.line("0", self.top(value), "100%", self.top(value), "grid"))
            made.append(svg.text(y_said(value), "0", self.top(value) - 4, "t small num"))
        for value in x_ticks or self.x.ticks():
            made.append(svg.line(self.left(value), floor, self.left(value), floor + 4, "axis"))
            made.append(svg.text(x_said(value), self.left(value), floor + 17, "t small num", text_anchor="middle"))
        made.append(svg.line("0", floor, "100%", floor, "axis"))
        return svg.many(made)

    def path(self, points: Sequence[tuple[float, float]], class_: str) -> Markup:
        """Straight lines from point to point."""
        ends = [(self.left(x), self.top(y)) for x, y in points]
        return svg.many(svg.line(a[0], a[1], b[0], b[1], class_) for a, b in pairwise(ends))

    def dot(self, x: float, y: float, radius: float, class_: str, title: str, **more: object) -> Markup:
        """A point."""
        place = {"cx": self.left(x), "cy": svg.pixels(self.top(y)), "r": svg.pixels(radius)}
        return svg.element("circle", svg.element("title", title), **place, class_=class_, **more)
