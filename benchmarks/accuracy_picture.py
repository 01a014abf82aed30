"""The picture of docs/accuracy.md: measured over predicted step times, as SVG, the same bytes everywhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from shardwright.planner.report.html.svg import element, pixels

SIZE, LEFT, TOP, RIGHT = 640, 64, 40, 20
COLOURS = {"dense": "#2b6cb0", "experts": "#c05621", "fine-tuning": "#2f855a"}
BAND = 0.2
"""Errors between the dashed lines are smaller."""

Record = Mapping[str, Any]
Place = Callable[[float], float]


def picture(record: Record) -> str:
    """Measured over predicted step times, both logarithmic, as one SVG document."""
    pairs = [(x, x * ratio) for found in record["points"].values() for x, ratio in found]
    low = math.floor(math.log10(min(min(pair) for pair in pairs)))
    high = math.ceil(math.log10(max(max(pair) for pair in pairs)))
    side = (SIZE - LEFT - RIGHT) / (high - low)

    def across(value: float) -> float:
        return LEFT + side * (math.log10(value) - low)

    def up(value: float) -> float:
        return TOP + side * (high - math.log10(value))

    parts = [*_axes(low, high, across, up), *_diagonals(10.0**low, 10.0**high, across, up)]
    for index, (kind, found) in enumerate(record["points"].items()):
        parts += [_dots(kind, found, across, up), *_legend(index, kind, len(found), up(10.0**high))]
    height = pixels(up(10.0**low) + 44)
    paper = element("rect", x=0, y=0, width=SIZE, height=height, fill="#ffffff")
    look = {"font_family": "Helvetica, Arial, 'DejaVu Sans', sans-serif", "font_size": "11"}
    title = element("title", "Measured and predicted step times")
    size = {"width": SIZE, "height": height, "viewBox": f"0 0 {SIZE} {height}"}
    whole = element("svg", title, paper, *parts, xmlns="http://www.w3.org/2000/svg", **size, **look)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole}\n'


def _axes(low: int, high: int, across: Place, up: Place) -> Iterator[Markup]:
    first, last = 10.0**low, 10.0**high
    for power in range(low, high + 1):
        value, name = 10.0**power, f"{10.0**power:g} s"
        line = {"stroke": "#d0d0d0", "stroke_width": "1"}
        yield _line(across(value), up(first), across(value), up(last), **line)
        yield _line(across(first), up(value), across(last), up(value), **line)
        yield element("text", name, x=pixels(across(value)), y=pixels(up(first) + 16), text_anchor="middle")
        yield element("text", name, x=pixels(LEFT - 6), y=pixels(up(value) + 4), text_anchor="end")
    middle = pixels((across(first) + across(last)) / 2)
    yield element("text", "predicted step time", x=middle, y=pixels(up(first) + 34), text_anchor="middle")
    yield element("text", "measured step time; dashed: 20 % off", x=LEFT, y=TOP - 10)


def _diagonals(first: float, last: float, across: Place, up: Place) -> Iterator[Markup]:
    for ratio in (1 - BAND, 1.0, 1 + BAND):
        start, end = max(first, first / ratio), min(last, last / ratio)
        dashes = None if ratio == 1.0 else "4 4"
        ends = across(start), up(start * ratio), across(end), up(end * ratio)
        yield _line(*ends, stroke="#606060", stroke_width="1", stroke_dasharray=dashes)


def _line(x1: float, y1: float, x2: float, y2: float, **look: object) -> Markup:
    return element("line", x1=pixels(x1), y1=pixels(y1), x2=pixels(x2), y2=pixels(y2), **look)


def _dots(kind: str, pairs: Sequence[Sequence[float]], across: Place, up: Place) -> Markup:
    seen = Counter((pixels(across(x)), pixels(up(x * ratio))) for x, ratio in pairs)
    dots = [element("circle", cx=x, cy=y, r=pixels(1.8 + 0.5 * math.log2(count))) for (x, y), count in sorted(seen.items())]
    return element("g", *dots, fill=COLOURS[kind], fill_opacity="0.55")


def _legend(index: int, kind: str, count: int, top: float) -> Iterator[Markup]:
    y = top + 18 + 16 * index
    yield element("circle", cx=LEFT + 14, cy=pixels(y - 4), r=4, fill=COLOURS[kind])
    yield element("text", f"{kind}, {count} runs", x=LEFT + 24, y=pixels(y))
