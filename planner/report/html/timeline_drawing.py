"""The timeline as a drawing of its own: one path for all operations of a kind on a stage.

    x = GUTTER + (time / step) · (WIDTH − GUTTER)

The page draws the same rectangles again at every zoom, from the same data (`templates/report.js`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from shardwright.planner.report import words
from shardwright.planner.report.html import svg

WIDTH, GUTTER = 1200.0, 62.0
LANE, THIN, GAP, AXIS = 16.0, 5.0, 6.0, 22.0
TAILS = {"data_s": "p-exposed_dp", "uneven_s": "p-bubble", "update_s": "p-optimizer"}
CLASSES = {"forward": "f-forward", "weight-gradient": "f-weight-gradient"}

Span = tuple[int, int, str]
"""Start and end in ticks, CSS class."""


def height(data: Mapping[str, Any]) -> float:
    """Pixels."""
    return len(data["stages"]) * (LANE + THIN + GAP) + AXIS


def drawing(data: Mapping[str, Any]) -> Markup:
    """Everything inside the root element, 1200 pixels wide."""
    rows = (_row(data, stage, index * (LANE + THIN + GAP)) for index, stage in enumerate(data["stages"]))
    return svg.many([_axis(data), *rows])


def _row(data: Mapping[str, Any], stage: Mapping[str, Any], top: float) -> Markup:
    scale = (WIDTH - GUTTER) / data["ticks"]
    paths: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for (start, end, class_), lower in _spans(data, stage):
        y, high = (top + LANE, THIN) if lower else (top, LANE)
        x, width = GUTTER + start * scale, max((end - start) * scale, 0.05)
        paths[class_, lower].append(f"M{x:.2f} {y:g}h{width:.2f}v{high:g}h-{width:.2f}z")
    drawn = (svg.element("path", d="".join(parts), class_=class_) for (class_, _), parts in paths.items())
    label = svg.text(f"stage {stage['index']}", "0", top + LANE - 4)
    idle = svg.rect(str(GUTTER), top, str(WIDTH - GUTTER), LANE, "f-idle")
    lane = svg.rect(str(GUTTER), top + LANE, str(WIDTH - GUTTER), THIN, "track")
    return svg.element("g", label, idle, lane, *drawn, data_row=stage["index"])


def _spans(data: Mapping[str, Any], stage: Mapping[str, Any]) -> Iterator[tuple[Span, bool]]:
    """All rectangles of a stage, and whether they stand on the lower lane."""
    for code, start in zip(stage["codes"], stage["starts"], strict=True):
        kind = stage["operations"][code]
        end = start + kind["length"]
        yield (start, end, CLASSES.get(kind["phase"], "f-backward")), False
        at = end - sum(kind["exposed"])
        for axis, length in zip(data["axes"], kind["exposed"], strict=True):
            if length:
                yield (at, at + length, f"p-exposed_{axis}"), True
            at += length
    if stage["fold"]:
        yield (stage["fold"]["start"], stage["fold"]["end"], "f-fold"), False
    at = stage["last"]
    for name, class_ in TAILS.items():
        if stage["tail"][name]:
            yield (at, at + stage["tail"][name], class_), name != "update_s"
        at += stage["tail"][name]


def _axis(data: Mapping[str, Any]) -> Markup:
    bottom = height(data) - AXIS
    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = svg.pixels(GUTTER + share * (WIDTH - GUTTER))
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        marks.append(svg.line(x, 0, x, bottom, "grid"))
        said = words.seconds(share * data["step_time_s"], 4) if share else "0 s"
        marks.append(svg.text(said, x, bottom + 14, "t small", text_anchor=anchor))
    return svg.many(marks)
