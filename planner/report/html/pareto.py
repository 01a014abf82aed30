"""Step time against memory, or against money: plans that no other plan beats in both stand on the line, others are faint.

    a is beaten by b  ⇔  step(b) <= step(a) and y(b) <= y(a), one of them less

The points are the ranked plans and, where the search was asked for it (`--pareto`), the plans of the front it found. Money is
drawn where plans use different numbers of GPUs: on one cluster it is proportional to the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from shardwright.planner.report import words
from shardwright.planner.report.html import svg
from shardwright.planner.report.html.axes import Plane, around
from shardwright.planner.report.html.picture import Legend, Picture, Table

HEIGHT = 340.0
LABELLED = 40
"""Points beyond which ranks are not written beside them."""

COLUMNS = ("rank", "GPUs", "step", "GiB", "USD/M tokens", "on the front")
DEAR = 1.5
"""Times the least price beyond which plans are left out of the picture of money: they are there for their memory."""

STEP, MEMORY, MONEY = "step_time_s", "peak_bytes", "usd_per_1m_tokens"


def pareto_pictures(plans: Sequence[Mapping[str, Any]], shown: int, found: Sequence[Mapping[str, Any]] = ()) -> list[Picture]:
    """The pictures of some ESTIMATEs; none of a single one.

    Args:
        plans: ranked.
        shown: rank of the one whose details the page shows.
        found: `pareto` of the result.
    """
    points = [_ranked(plan) for plan in plans]
    known = {(point[STEP], point[MEMORY]) for point in points}
    points += [_unranked(point) for point in found if (point[STEP], point[MEMORY]) not in known]
    if len(points) < 2:
        return []
    made = [_picture(points, shown, MEMORY)]
    if len({point["gpus"] for point in points}) > 1 and all(point[MONEY] is not None for point in points):
        least = min(point[MONEY] for point in points)
        made.append(_picture([p for p in points if p[MONEY] <= DEAR * least or p["rank"] == shown], shown, MONEY))
    return made


def _ranked(plan: Mapping[str, Any]) -> dict[str, Any]:
    predicted = plan["predicted"]
    made = {STEP: predicted[STEP], MEMORY: plan["memory"][MEMORY], MONEY: predicted[MONEY]}
    return {"rank": plan["rank"], "gpus": plan["parallel"]["world_size"], **made}


def _unranked(point: Mapping[str, Any]) -> dict[str, Any]:
    return {"rank": None, "gpus": point["parallel"]["world_size"], **{key: point[key] for key in (STEP, MEMORY, MONEY)}}


def _picture(every: Sequence[Mapping[str, Any]], shown: int, key: str) -> Picture:
    points = [{**point, "beaten": any(_beats(other, point, key) for other in every)} for point in every]
    front = sorted((p for p in points if not p["beaten"]), key=lambda p: (p[STEP], p[key]))
    memory = key == MEMORY
    plane = Plane(x=around([p[STEP] for p in points]), y=around([_height(p, key) for p in points], 0.12), height=HEIGHT)
    name = "GiB of the fullest rank" if memory else "USD a million tokens"
    grid = plane.grid(words.seconds, lambda v: f"{v:,.4g}", ("step time →", name))
    line = plane.path(_stairs([(p[STEP], _height(p, key)) for p in front]), "front")
    lone = any(point["rank"] is None for point in points)
    return Picture(
        id="pareto" if memory else "money",
        title="Time against memory" if memory else "Time against money",
        caption=f"Each point is a ranked plan{' or one of the front that was searched' if lone else ''}; left and low is "
        "better. Plans right of and above the line are beaten in both by another.",
        data={"points": points},
        body=grid + line + _dots(plane, points, shown, key),
        height=HEIGHT,
        legend=[
            Legend(class_="d-shown", label=f"rank {shown}, shown here"),
            Legend(class_="d-front", label="on the front"),
            Legend(class_="d-beaten", label="beaten by another plan"),
        ],
        table=Table(columns=COLUMNS, rows=[_cells(point) for point in points]),
    )


def _height(point: Mapping[str, Any], key: str) -> float:
    """Where a point stands on the vertical axis."""
    return float(point[key]) / words.GIB if key == MEMORY else float(point[key])


def _beats(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    a, b = ((p[STEP], p[key]) for p in (one, other))
    return a != b and a[0] <= b[0] and a[1] <= b[1]


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Corners of the edge of what is beaten."""
    corners = [((b[0], a[1]), b) for a, b in pairwise(points)]
    return [*points[:1], *(corner for pair in corners for corner in pair)]


def _dots(plane: Plane, points: Sequence[Mapping[str, Any]], shown: int, key: str) -> Markup:
    made = []
    for p in sorted(points, key=lambda p: (p["rank"] == shown, not p["beaten"])):
        class_ = "d-shown" if p["rank"] == shown else "d-beaten" if p["beaten"] else "d-front"
        x, y, ranked = p[STEP], _height(p, key), p["rank"] is not None
        place = {"data_rank": p["rank"], "data_step": repr(x), "data_value": repr(p[key])}
        made.append(plane.dot(x, y, 5 if ranked else 3.5, class_, _said(p), **place))
        if ranked and len(points) <= LABELLED:
            made.append(svg.text(p["rank"], plane.left(x), plane.top(y) - 9, "t small", text_anchor="middle"))
    return svg.many(made)


def _said(point: Mapping[str, Any]) -> str:
    name = "front" if point["rank"] is None else f"rank {point['rank']}"
    money = "" if point[MONEY] is None else f", {words.digits(point[MONEY])} USD a million tokens"
    size = f"{words.many(point['gpus'], 'GPU')}, {words.seconds(point[STEP], 4)}, {words.gib(point[MEMORY])} GiB"
    return f"{name}: {size}{money}"


def _cells(point: Mapping[str, Any]) -> tuple[str, ...]:
    money = words.UNKNOWN if point[MONEY] is None else words.digits(point[MONEY])
    size = (words.count(point["gpus"]), words.seconds(point[STEP], 4), words.gib(point[MEMORY]), money)
    return (words.plain(point["rank"]), *size, "no" if point["beaten"] else "yes")
