"""A chart as SVG, written here: no library, and the same bytes everywhere.

svg_text(chart) -> text
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from html import escape

from shardwright.planner.report.chart import Chart, Curve, Grid, Panel, log_ticks, thinned, tick_text, ticks

WIDTH, PANEL, HEIGHT, GAP = 960, 450, 230, 20
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 34
ROW, NAME = 17, 74
FONT = "font-family='Helvetica, Arial, sans-serif'"

Scale = Callable[[float], float]


def svg_text(chart: Chart) -> str:
    """The picture as one SVG document."""
    parts, at = list(_head(chart)), 30 + 16 * (len(chart.remarks) + len(chart.legend))
    for number, panel in enumerate(chart.panels):
        x, y = GAP // 2 + (number % 2) * (PANEL + GAP), at + (number // 2) * (HEIGHT + GAP)
        parts += [f"<g transform='translate({x},{y})'>", *_panel(panel, chart.sizes), "</g>"]
    at += -(-len(chart.panels) // 2) * (HEIGHT + GAP)
    for grid in chart.grids:
        parts += [f"<g transform='translate({GAP // 2},{at})'>", *_grid(grid), "</g>"]
        at += ROW * (len(grid.rows) + 2) + GAP
    size = f"width='{WIDTH}' height='{at}' viewBox='0 0 {WIDTH} {at}'"
    start = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} font-size='11'>"
    return (
        "\n".join([start, f"<title>{escape(chart.title)}</title>", _rectangle(0, 0, WIDTH, at, "#fff"), *parts, "</svg>"])
        + "\n"
    )


def _head(chart: Chart) -> Iterator[str]:
    yield _text(GAP // 2, 20, chart.title, size=14, weight="bold")
    y = 36
    for remark in chart.remarks:
        yield _text(GAP // 2, y, remark)
        y += 16
    for index, name in enumerate(chart.legend):
        yield _line(Curve(index=index, points=((GAP // 2, y - 4), (GAP // 2 + 28, y - 4))), lambda v: v, lambda v: v)
        yield _text(GAP // 2 + 34, y, name)
        y += 16


def _panel(panel: Panel, sizes: tuple[float, ...]) -> Iterator[str]:
    heights = [y for curve in panel.curves for _, y in curve.points] or [0.0, 1.0]
    marks = log_ticks(min(heights), max(heights)) if panel.log else ticks(min(0.0, *heights), max(heights))
    across = _scale(math.log2(sizes[0]), math.log2(sizes[-1]), LEFT + 10, PANEL - RIGHT - 10)
    low, high = ((math.log10(v) if panel.log else v) for v in (marks[0], marks[-1]))
    up = _scale(low, high, HEIGHT - BOTTOM, TOP)

    def x(value: float) -> float:
        return across(math.log2(value))

    def y(value: float) -> float:
        return up(math.log10(value) if panel.log else value)

    yield _text(LEFT, 15, panel.title, weight="bold")
    for mark in marks:
        yield _stroke(LEFT, y(mark), PANEL - RIGHT, y(mark), "#ddd")
        yield _text(LEFT - 5, y(mark) + 4, tick_text(mark), anchor="end")
    for size in thinned(sizes, 9):
        yield _text(x(size), HEIGHT - BOTTOM + 14, f"{size:,.0f}", anchor="middle")
    yield _text(PANEL - RIGHT, HEIGHT - BOTTOM + 28, "GPUs", anchor="end")
    for index, size in panel.marks:
        colour = Curve(index=index, points=()).colour
        yield _stroke(x(size), TOP, x(size), HEIGHT - BOTTOM, colour, "4,3")
    for curve in panel.curves:
        yield _line(curve, x, y)
        if not curve.ideal:
            yield from (f"<circle cx='{x(a):.1f}' cy='{y(b):.1f}' r='2.4' fill='{curve.colour}'/>" for a, b in curve.points)
    if not panel.curves:
        yield _text(PANEL / 2, HEIGHT / 2, "not known", anchor="middle", colour="#888")


def _grid(grid: Grid) -> Iterator[str]:
    width = (WIDTH - GAP - NAME) / max(len(grid.heads), 1)
    yield _text(0, 12, grid.title, weight="bold")
    for column, head in enumerate(grid.heads):
        yield _text(NAME + width * (column + 0.5), 12 + ROW, head, anchor="middle", colour="#555")
    for number, (name, cells) in enumerate(grid.rows):
        y = 12 + ROW * (number + 2)
        yield _text(0, y, name, colour="#555")
        for column, cell in enumerate(cells):
            changed = column > 0 and cell != cells[column - 1]
            left = NAME + width * column
            if changed:
                yield _rectangle(left + 2, y - 12, width - 4, ROW - 2, "#fde3c8")
            yield _text(left + width / 2, y, cell, anchor="middle", weight="bold" if changed else "normal")


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    span = high - low
    return lambda value: (start + end) / 2 if span == 0 else start + (value - low) / span * (end - start)


def _line(curve: Curve, x: Scale, y: Scale) -> str:
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve.points)
    dash = f" stroke-dasharray='{','.join(map(str, curve.dash))}'" if curve.dash else ""
    width = 1 if curve.ideal else 1.8
    return f"<polyline points='{points}' fill='none' stroke='{curve.colour}' stroke-width='{width}'{dash}/>"


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> str:
    more = f" stroke-dasharray='{dash}'" if dash else ""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'{more}/>"


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{colour}'/>"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, weight: str = "normal", colour: str = "#000"
) -> str:
    style = f"text-anchor='{anchor}' font-size='{size}' font-weight='{weight}' fill='{colour}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
