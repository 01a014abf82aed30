"""Rows of bars below their labels: memory of stages, parts of a step, reasons of rejection.

label ........................ reading
[===segment===|==segment==]        |          a line across each bar at `mark`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from shardwright.planner.report.html import svg

LABEL, BAR, GAP = 17.0, 14.0, 13.0
ROW = LABEL + BAR + GAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a bar.

    Attributes:
        start, end: shares of the width.
        class_: CSS class.
        title: what is said when it is pointed at.
        key, value: name and number it stands for, kept in the element.
    """

    start: float
    end: float
    class_: str
    title: str
    key: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A bar.

    Attributes:
        label, reading: words on the left and on the right.
        segments: pieces, from the left.
        index: which row it is.
        strong: whether it is a total.
    """

    label: str
    reading: str
    segments: Sequence[Segment]
    index: int | str
    strong: bool = False


def height(rows: Sequence[Row], room: float = 0.0) -> float:
    """Pixels that the rows take, with room above."""
    return room + ROW * len(rows)


def drawn(rows: Sequence[Row], *, mark: tuple[float, str] | None = None) -> Markup:
    """The rows.

    Args:
        rows: from top to bottom.
        mark: place and label of a line across all bars.
    """
    room = 20.0 if mark else 0.0
    tops = [room + index * ROW for index in range(len(rows))]
    made = [_row(row, top) for row, top in zip(rows, tops, strict=True)]
    if mark:
        at = svg.percent(mark[0])
        made += [svg.line(at, top + LABEL - 3, at, top + LABEL + BAR + 3, "limit") for top in tops]
        made.append(svg.text(mark[1], at, 10, "t small", text_anchor="end"))
    return svg.many(made)


def _row(row: Row, top: float) -> Markup:
    weight = "t strong" if row.strong else "t"
    parts = [
        svg.text(row.label, "0", top + 12, weight),
        svg.text(row.reading, "100%", top + 12, f"{weight} num", text_anchor="end"),
        svg.rect("0", top + LABEL, "100%", BAR, "track"),
        *(_segment(segment, row, top + LABEL) for segment in row.segments),
    ]
    return svg.element("g", svg.many(parts), data_row=row.index)


def _segment(one: Segment, row: Row, top: float) -> Markup:
    place = svg.percent(one.start), top, svg.percent(max(one.end - one.start, 0.0)), BAR
    title = svg.element("title", f"{row.label}: {one.title}")
    return svg.rect(*place, one.class_, title, data_key=one.key, data_value=repr(one.value))
