"""Scaling curves of a sweep: tokens a second against GPUs, with the line of perfect scaling from the smallest size that fits.

Points that differ only in the number of nodes and in what follows from it are one series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from shardwright.planner.report import words
from shardwright.planner.report.html.axes import Plane, Scale
from shardwright.planner.report.html.picture import Legend, Picture, Table
from shardwright.planner.report.html.svg import many

HEIGHT = 380.0
SIZES = frozenset(("nodes", "gpus", "global_batch"))
"""Keys of a point that are its size or follow from it."""

COLOURS = 6


def scaling_picture(points: Sequence[Mapping[str, Any]]) -> Picture | None:
    """The picture of the points of a sweep-result; None where no plan fits at any."""
    series = _series(points)
    if not series:
        return None
    sizes = [p for one in series for p in one["points"]]
    plane = Plane(x=_ends([p["gpus"] for p in sizes]), y=_ends([p["tokens_per_s"] for p in sizes]), height=HEIGHT)
    ticks = sorted({p["gpus"] for p in sizes})
    grid = plane.grid(words.count, _rate, ("GPUs →", "tokens/s"), ticks if len(ticks) <= 12 else ())
    return Picture(
        id="scaling",
        title="Scaling",
        caption="Tokens a second of the best plan of each size, both axes logarithmic; dashed: as if the smallest size scaled "
        "perfectly.",
        data={"series": series},
        body=grid + many(_curve(plane, one, index) for index, one in enumerate(series)),
        height=HEIGHT,
        legend=[Legend(class_=f"c-{i % COLOURS}", label=one["name"]) for i, one in enumerate(series)],
        table=Table(
            columns=("series", "GPUs", "tokens/s", "a GPU", "of perfect", "step", "MFU"),
            rows=[_cells(one, point) for one in series for point in one["points"]],
        ),
        note=""
        if len(sizes) == len(points)
        else f"No plan fits at {words.many(len(points) - len(sizes), 'point')}, see the table.",
    )


def _series(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for point in points:
        if point["status"] == "ok":
            key = tuple((name, str(value)) for name, value in point["key"].items() if name not in SIZES)
            found.setdefault(key, []).append(point)
    differing = [name for name in dict(next(iter(found), ())) if len({dict(key)[name] for key in found}) > 1]
    return [_one(", ".join(dict(key)[n] for n in differing) or dict(key).get("model", ""), some) for key, some in found.items()]


def _one(name: str, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    made = sorted((_point(point) for point in points), key=lambda p: p["gpus"])
    base = made[0]["tokens_per_s"] / made[0]["gpus"]
    for point in made:
        point["efficiency"] = point["tokens_per_s"] / point["gpus"] / base
    return {"name": name, "points": made}


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    predicted, parallel = point["best"]["predicted"], point["best"]["parallel"]
    gpus = point["key"].get("gpus") or parallel["world_size"]
    return {
        "gpus": gpus,
        "tokens_per_s": predicted["tokens_per_s"],
        "tokens_per_s_per_gpu": predicted["tokens_per_s"] / gpus,
        "step_time_s": predicted["step_time_s"],
        "mfu": predicted["mfu"],
    }


def _ends(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    return Scale(low=low / 1.25, high=high * 1.25, log=True)


def _curve(plane: Plane, one: Mapping[str, Any], index: int) -> Markup:
    points = [(p["gpus"], p["tokens_per_s"]) for p in one["points"]]
    first, last = points[0], points[-1][0]
    reach = min(last, first[0] * plane.y.high / first[1])
    ideal = [first, (reach, first[1] * reach / first[0])]
    colour = index % COLOURS
    dots = [
        plane.dot(p["gpus"], p["tokens_per_s"], 4.5, f"c-{colour}", _title(one, p), data_gpus=p["gpus"]) for p in one["points"]
    ]
    parts = [plane.path(ideal, "ideal"), *(plane.path(list(pair), f"c-{colour} curve") for pair in pairwise(points)), *dots]
    return many(parts)


def _title(one: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    of_perfect = words.percent(point["efficiency"])
    return (
        f"{one['name']}, {words.many(point['gpus'], 'GPU')}: {_rate(point['tokens_per_s'])} tokens/s, {of_perfect} of perfect"
    )


def _rate(value: float) -> str:
    return words.big(value) if value >= 1e6 else words.count(value)


def _cells(one: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["name"],
        words.count(point["gpus"]),
        words.count(point["tokens_per_s"]),
        words.count(point["tokens_per_s_per_gpu"]),
        words.percent(point["efficiency"]),
        words.seconds(point["step_time_s"], 4),
        words.percent(point["mfu"]),
    )
