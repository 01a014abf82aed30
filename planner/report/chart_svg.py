"""A chart as SVG, written here: no library, and the same bytes everywhere.

svg_text(chart) -> text
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from markupsafe import Markup

from shardwright.planner.report.chart import Chart, Curve, Grid, Panel, thinned, tick_text
from shardwright.planner.report.html.axes import Scale
from shardwright.planner.report.html.svg import element, pixels

WIDTH, PANEL, HEIGHT, GAP = 960, 450, 230, 20
LEFT, RIGHT, TOP, BOTTOM, INSET = 58, 12, 26, 34, 10
LINE, ROW, NAME = 16, 17, 74
ROOM = 1.08
"""Height of a panel over its greatest value."""

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"

Place = Callable[[float], float]


def svg_text(chart: Chart) -> str:
    """The picture as one SVG document."""
    at = 30.0 + LINE * (len(chart.remarks) + len(chart.legend))
    parts = list(_head(chart))
    for number, panel in enumerate(chart.panels):
        across, down = (number % 2) * (PANEL + GAP), (number // 2) * (HEIGHT + GAP)
        parts.append(_moved(GAP / 2 + across, at + down, _panel(panel, chart.sizes)))
    at += -(-len(chart.panels) // 2) * (HEIGHT + GAP)
    for grid in chart.grids:
        parts.append(_moved(GAP / 2, at, _grid(grid)))
        at += ROW * (len(grid.rows) + 2) + GAP
    size = {"width": WIDTH, "height": pixels(at), "viewBox": f"0 0 {WIDTH} {pixels(at)}"}
    paper = _box(0, 0, WIDTH, at, "#ffffff")
    look = {"font_family": FONT, "font_size": "11"}
    whole = element("svg", element("title", chart.title), paper, *parts, xmlns="http://www.w3.org/2000/svg", **size, **look)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole}\n'


def _head(chart: Chart) -> Iterator[Markup]:
    left = GAP / 2
    yield _text(left, 20, chart.title, font_size="14", font_weight="bold")
    y = 36.0
    for remark in chart.remarks:
        yield _text(left, y, remark)
        y += LINE
    for index, name in enumerate(chart.legend):
        yield _line(Curve(index=index, points=((left, y - 4), (left + 28, y - 4))), _same, _same)
        yield _text(left + 34, y, name)
        y += LINE


def _panel(panel: Panel, sizes: tuple[float, ...]) -> Iterator[Markup]:
    floor, right = HEIGHT - BOTTOM, PANEL - RIGHT
    heights = [y for curve in panel.curves for _, y in curve.points] or [1.0]
    low = min(heights) / ROOM if panel.log else min(0.0, *heights)
    up, across = (
        Scale(low=low, high=max(*heights, low) * ROOM or 1.0, log=panel.log),
        Scale(low=sizes[0], high=sizes[-1], log=True),
    )

    def x(value: float) -> float:
        return LEFT + INSET + across.share(value) * (right - LEFT - 2 * INSET)

    def y(value: float) -> float:
        return floor - up.share(value) * (floor - TOP)

    yield _text(LEFT, 15, panel.title, font_weight="bold")
    for mark in up.ticks():
        yield _stroke(LEFT, y(mark), right, y(mark), "#dddddd")
        yield _text(LEFT - 5, y(mark) + 4, tick_text(mark), text_anchor="end")
    for size in thinned(sizes, 9):
        yield _text(x(size), floor + 14, f"{size:,.0f}", text_anchor="middle")
    yield _text(right, floor + 28, "GPUs", text_anchor="end")
    for index, size in panel.marks:
        yield _stroke(x(size), TOP, x(size), floor, Curve(index=index, points=()).colour, stroke_dasharray="4 3")
    for curve in panel.curves:
        yield _line(curve, x, y)
        for one in () if curve.ideal else curve.points:
            yield element("circle", cx=pixels(x(one[0])), cy=pixels(y(one[1])), r="2.4", fill=curve.colour)
    if not panel.curves:
        yield _text(PANEL / 2, HEIGHT / 2, "not known", text_anchor="middle", fill="#888888")


def _grid(grid: Grid) -> Iterator[Markup]:
    width = (WIDTH - GAP - NAME) / max(len(grid.heads), 1)
    yield _text(0, 12, grid.title, font_weight="bold")
    for column, head in enumerate(grid.heads):
        yield _text(NAME + width * (column + 0.5), 12 + ROW, head, text_anchor="middle", fill="#555555")
    for number, (name, cells) in enumerate(grid.rows):
        y = 12.0 + ROW * (number + 2)
        yield _text(0, y, name, fill="#555555")
        for column, cell in enumerate(cells):
            changed = column > 0 and cell != cells[column - 1]
            left = NAME + width * column
            if changed:
                yield _box(left + 2, y - 12, width - 4, ROW - 2, "#fde3c8")
            yield _text(left + width / 2, y, cell, text_anchor="middle", font_weight="bold" if changed else None)


def _same(value: float) -> float:
    return value


def _moved(x: float, y: float, parts: Iterator[Markup]) -> Markup:
    return element("g", *parts, transform=f"translate({pixels(x)},{pixels(y)})")


def _line(curve: Curve, x: Place, y: Place) -> Markup:
    points = " ".join(f"{pixels(x(a))},{pixels(y(b))}" for a, b in curve.points)
    look = {"stroke": curve.colour, "stroke_width": 1 if curve.ideal else 1.8}
    return element("polyline", points=points, fill="none", stroke_dasharray=" ".join(map(str, curve.dash)) or None, **look)


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, **more: object) -> Markup:
    ends = {"x1": pixels(x1), "y1": pixels(y1), "x2": pixels(x2), "y2": pixels(y2)}
    return element("line", **ends, stroke=colour, **more)


def _box(x: float, y: float, width: float, height: float, colour: str) -> Markup:
    return element("rect", x=pixels(x), y=pixels(y), width=pixels(width), height=pixels(height), fill=colour)


def _text(x: float, y: float, words: str, **more: object) -> Markup:
    return element("text", words, x=pixels(x), y=pixels(y), **more)
