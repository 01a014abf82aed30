"""A chart as PNG, drawn by matplotlib (extra `plot`).

png_bytes(chart) -> bytes
"""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from shardwright.errors import UnsupportedError
from shardwright.planner.report.chart import Chart, Curve, Grid, Panel, thinned, tick_text

INCHES, PANEL_INCHES, ROW_INCHES = 10.0, 2.4, 0.19


def check_installed(where: str) -> None:
    """Sees to it that matplotlib is there.

    Raises:
        UnsupportedError: it is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        hint = "pip install 'shardwright[plot]', or name FILE.svg, which needs no library"
        raise UnsupportedError("PNG needs matplotlib, which is not installed", where=where, hint=hint)


def png_bytes(chart: Chart) -> bytes:
    """The picture as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(chart.panels) // 2)
    heights = [PANEL_INCHES] * rows + [ROW_INCHES * (len(grid.rows) + 2) + 0.3 for grid in chart.grids]
    head = 0.7 + 0.18 * (len(chart.remarks) + len(chart.legend))
    figure = Figure(figsize=(INCHES, head + sum(heights)), dpi=120)
    FigureCanvasAgg(figure)
    top = 1 - head / (head + sum(heights))
    layout = figure.add_gridspec(
        len(heights), 2, height_ratios=heights, hspace=0.55, top=top, bottom=0.03, left=0.08, right=0.98
    )
    for number, panel in enumerate(chart.panels):
        _panel(figure.add_subplot(layout[number // 2, number % 2]), panel, chart.sizes)
    for number, grid in enumerate(chart.grids):
        _grid(figure.add_subplot(layout[rows + number, :]), grid)
    figure.text(0.02, 0.995, "\n".join((chart.title, *chart.remarks)), va="top", fontsize=9)
    handles = [_curve(Curve(index=index, points=())) for index in range(len(chart.legend))]
    below = 0.995 - 0.18 * (len(chart.remarks) + 1.5) / (head + sum(heights))
    figure.legend(handles, chart.legend, loc="upper left", bbox_to_anchor=(0.01, below), frameon=False, fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _curve(curve: Curve) -> Any:
    from matplotlib.lines import Line2D

    xs, ys = ([point[side] for point in curve.points] for side in (0, 1))
    style = (0, curve.dash) if curve.dash else "-"
    marker = None if curve.ideal else "o"
    return Line2D(xs, ys, color=curve.colour, linestyle=style, linewidth=1 if curve.ideal else 1.6, marker=marker, markersize=3)


def _panel(axes: Any, panel: Panel, sizes: tuple[float, ...]) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold")
    axes.set_xscale("log", base=2)
    if panel.log:
        axes.set_yscale("log")
    for curve in panel.curves:
        axes.add_line(_curve(curve))
    for index, size in panel.marks:
        axes.axvline(size, color=Curve(index=index, points=()).colour, linestyle="--", linewidth=0.8)
    axes.autoscale_view()
    if not panel.log:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    shown = thinned(sizes, 9)
    axes.set_xticks(shown, [f"{size:,.0f}" for size in shown], fontsize=7)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: tick_text(value))
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    if not panel.curves:
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", color="#888888")


def _grid(axes: Any, grid: Grid) -> None:
    axes.axis("off")
    axes.set_title(grid.title, fontsize=9, loc="left", fontweight="bold")
    lines, width = len(grid.rows) + 1, 0.92 / max(len(grid.heads), 1)
    for number, (name, cells) in enumerate((("", grid.heads), *grid.rows)):
        y = 1 - (number + 0.5) / lines
        axes.text(0, y, name, fontsize=7, color="#555555", va="center")
        for column, cell in enumerate(cells):
            changed = number > 0 and column > 0 and cell != cells[column - 1]
            box = {"facecolor": "#fde3c8", "edgecolor": "none", "pad": 1.5} if changed else None
            weight = "bold" if changed else "normal"
            axes.text(0.08 + width * (column + 0.5), y, cell, fontsize=7, ha="center", va="center", fontweight=weight, bbox=box)
