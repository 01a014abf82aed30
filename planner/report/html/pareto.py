"""Step time against memory: plans that no other plan beats in both are joined, those that are beaten are faint.

a is beaten by b  ⇔  step(b) <= step(a) and peak(b) <= peak(a), one of them less
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.html.axes import Plane, around
from shardwright.planner.report.html.picture import Legend, Picture, Table

HEIGHT = 340.0


def pareto_picture(plans: Sequence[Mapping[str, Any]], shown: int) -> Picture:
    """The picture of some ESTIMATEs.

    Args:
        plans: ranked.
        shown: rank of the one whose details the page shows.
    """
    points = [_point(plan) for plan in plans]
    for point in points:
        point["beaten"] = any(_beats(other, point) for other in points)
    front = sorted((p for p in points if not p["beaten"]), key=lambda p: (p["step_time_s"], p["peak_bytes"]))
    gib = [p["peak_bytes"] / words.GIB for p in points]
    plane = Plane(x=around([p["step_time_s"] for p in points]), y=around(gib, 0.12), height=HEIGHT)
    grid = plane.grid(words.seconds, lambda v: f"{v:,.4g}", ("step time →", "GiB of the fullest rank"))
    line = plane.path(_stairs([(p["step_time_s"], p["peak_bytes"] / words.GIB) for p in front]), "front")
    return Picture(
        id="pareto",
        title="Time against memory",
        caption="Each point is a ranked plan; left and low is better. "
        "Plans right of and above the line are beaten in both by another.",
        data={"points": points},
        body=grid + line + _dots(plane, points, shown),
        height=HEIGHT,
        legend=[
            Legend(class_="d-shown", label=f"rank {shown}, shown here"),
            Legend(class_="d-front", label="on the front"),
            Legend(class_="d-beaten", label="beaten by another plan"),
        ],
        table=Table(columns=("rank", "step", "GiB", "on the front"), rows=[_cells(point) for point in points]),
    )


def _point(plan: Mapping[str, Any]) -> dict[str, Any]:
    step, peak = plan["predicted"]["step_time_s"], plan["memory"]["peak_bytes"]
    return {"rank": plan["rank"], "step_time_s": step, "peak_bytes": peak}


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    a, b = ((p["step_time_s"], p["peak_bytes"]) for p in (one, other))
    return a != b and a[0] <= b[0] and a[1] <= b[1]


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Corners of the edge of what is beaten."""
    corners = [((b[0], a[1]), b) for a, b in pairwise(points)]
    return [*points[:1], *(corner for pair in corners for corner in pair)]


def _dots(plane: Plane, points: Sequence[Mapping[str, Any]], shown: int) -> Any:
    from shardwright.planner.report.html import svg

    made = []
    for p in sorted(points, key=lambda p: (p["rank"] == shown, not p["beaten"])):
        class_ = "d-shown" if p["rank"] == shown else "d-beaten" if p["beaten"] else "d-front"
        y = p["peak_bytes"] / words.GIB
        title = f"rank {p['rank']}: {words.seconds(p['step_time_s'], 4)}, {words.gib(p['peak_bytes'])} GiB"
        made.append(plane.dot(p["step_time_s"], y, 5, class_, title, data_rank=p["rank"]))
        if len(points) <= 40:
            made.append(svg.text(p["rank"], plane.left(p["step_time_s"]), plane.top(y) - 9, "t small", text_anchor="middle"))
    return svg.many(made)


def _cells(point: Mapping[str, Any]) -> tuple[str, ...]:
    on = "no" if point["beaten"] else "yes"
    return (str(point["rank"]), words.seconds(point["step_time_s"], 4), words.gib(point["peak_bytes"]), on)
