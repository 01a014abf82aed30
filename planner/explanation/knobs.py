"""Plans as points of the search space: what was turned between two of them, in words.

    point_of(record)            a plan's value of every axis of `rules.registry.AXIS_ORDER`
    turned_columns, turned      axes that were turned on purpose, those that only follow left out
    change_text(one, other)     "tp 4 instead of 8, micro-batch 2 instead of 1"
    degrees_at(problem, point)  the plan of a point
    followed(gpus, base, asked) a plan with other values of some axes, and what must follow from them

What follows from other axes does not count as turned: sequence parallelism where either plan has tp 1, the schedule that goes
with the number of chunks, chunks and split without a pipeline, the ZeRO stage of a plan that has nobody to share states with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwright.planner.cost.stages import SPLIT_KINDS, even_chunks
from shardwright.planner.offloading import offload_of, text_of
from shardwright.planner.plan_records import chunk_layers
from shardwright.planner.plans import (
    CP_COMM_KINDS,
    MOE_DISPATCHERS,
    RECOMPUTE_CHOICES,
    RECOMPUTE_MODES,
    RECOMPUTED_SHARE,
    BoolArray,
    Degrees,
    IntArray,
)
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import Columns
from shardwright.planner.rules.registry import AXIS_ORDER
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES

Point = dict[str, int]

OWN_SPLIT = len(SPLIT_KINDS)
"""The split of a plan whose layers are divided in none of the ways the search knows."""

NAMES: Mapping[str, str] = {
    "micro_batch": "micro-batch",
    "zero": "ZeRO",
    "sp": "sequence parallelism",
    "split": "layers",
    "loss_chunks": "loss chunks",
}
_FULL = RECOMPUTE_MODES.index("full")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "schedule": SCHEDULE_IDS,
    "recompute": RECOMPUTE_CHOICES,
    "split": (*SPLIT_KINDS, "as given"),
    "sp": ("off", "on"),
    "cp_comm": CP_COMM_KINDS,
    "moe_dispatcher": MOE_DISPATCHERS,
}


def point_of(record: Mapping[str, Any]) -> Point:
    """A plan's value of every axis.

    Args:
        record: an ESTIMATE with a price.
    """
    parallel = record["parallel"]
    made = {
        name: int(parallel[name])
        for name in ("tp", "cp", "pp", "ep", "etp", "dp_replicate", "micro_batch", "vpp", "loss_chunks")
    }
    made |= {"sp": int(parallel["sequence_parallel"]), "zero": int(parallel["zero_stage"])}
    made |= {"schedule": SCHEDULE_IDS.index(parallel["schedule"]), "split": _split_kind(record)}
    made["recompute"] = _recompute_choice(record)
    made["cp_comm"] = CP_COMM_KINDS.index(parallel["cp_comm"])
    made["moe_dispatcher"] = MOE_DISPATCHERS.index(parallel["moe_dispatcher"])
    made["offload"] = offload_of(parallel["offload"]).code
    return {axis: made[axis] for axis in AXIS_ORDER}


def _split_kind(record: Mapping[str, Any]) -> int:
    parallel = record["parallel"]
    layers = chunk_layers(record["stages"], parallel)
    for kind in range(len(SPLIT_KINDS)):
        if even_chunks(sum(layers), parallel["pp"], parallel["vpp"], kind) == layers:
            return kind
    return OWN_SPLIT


def _recompute_choice(record: Mapping[str, Any]) -> int:
    """The nearest of `RECOMPUTE_CHOICES`."""
    recompute, parallel = record["parallel"]["recompute"], record["parallel"]
    mode = RECOMPUTE_MODES.index(recompute["mode"])
    fullest = max((sum(span[1] - span[0] + 1 for span in s["layers"] if span) for s in record["stages"]), default=0)
    if mode != _FULL or recompute["layers"] >= fullest:
        return mode
    layers = -(-sum(chunk_layers(record["stages"], parallel)) // parallel["pp"])
    shares = {choice: np.ceil(layers * RECOMPUTED_SHARE[choice]) for choice in range(_FULL + 1, len(RECOMPUTE_CHOICES))}
    return min(shares, key=lambda choice: abs(shares[choice] - recompute["layers"]))


def turned_columns(base: Point, columns: Columns) -> dict[str, BoolArray]:
    """Where each axis was turned to come from a plan to others.

    Args:
        base: the plan.
        columns: the others, every axis [plans].
    """
    made = {axis: columns[axis] != base[axis] for axis in AXIS_ORDER}
    piped = (columns["pp"] > 1) & (base["pp"] > 1)
    mesh = made["tp"] | made["cp"] | made["pp"]
    chunks = made["pp"] | made["vpp"]
    own = (columns["split"] == OWN_SPLIT) | (base["split"] == OWN_SPLIT)
    plain = (columns["schedule"] == _plain(columns["vpp"] > 1)) & (base["schedule"] == _plain(np.array(base["vpp"] > 1)))
    whole = (columns["zero"] == 0) | (base["zero"] == 0)
    with_tp = np.isin(base["etp"], (1, base["tp"])) & ((columns["etp"] == 1) | (columns["etp"] == columns["tp"]))
    made["cp_comm"] &= (columns["cp"] > 1) & (base["cp"] > 1)
    made["moe_dispatcher"] &= (columns["ep"] > 1) & (base["ep"] > 1)
    made["sp"] &= (columns["tp"] > 1) & (base["tp"] > 1)
    made["zero"] &= ~(whole & mesh)
    made["dp_replicate"] &= ~whole
    made["vpp"] &= piped
    made["schedule"] &= piped & ~plain
    made["split"] &= piped & ~(own & chunks)
    made["etp"] &= ~(made["tp"] & with_tp)
    return made


def _plain(looped: BoolArray) -> IntArray:
    """The schedule that goes with one chunk a rank, or with several."""
    return np.where(looped, SCHEDULE_IDS.index("interleaved-1f1b"), SCHEDULE_IDS.index("1f1b"))


def turned(one: Point, other: Point) -> tuple[str, ...]:
    """Axes that were turned to come from one plan to the other, in the order of the axes."""
    found = turned_columns(one, {axis: np.array([value]) for axis, value in other.items()})
    return tuple(axis for axis in AXIS_ORDER if found[axis][0])


def change_text(one: Point, other: Point) -> str:
    """What was turned, in words; what follows is left out."""
    return ", ".join(
        f"{NAMES.get(axis, axis)} {word(axis, other[axis])} instead of {word(axis, one[axis])}" for axis in turned(one, other)
    )


def word(axis: str, value: int) -> str:
    """A value of an axis as people write it."""
    if axis == "offload":
        return text_of(value)
    return _WORDS[axis][value] if axis in _WORDS else str(value)


def degrees_at(problem: Problem, point: Point) -> Degrees:
    """The plan of a point whose layers are divided in a way the search knows."""
    choice, layers = point["recompute"], problem.graph.layers
    share = RECOMPUTED_SHARE[choice]
    covered = int(np.ceil(-(-layers // point["pp"]) * share)) if choice > _FULL else None
    names = ("tp", "cp", "pp", "ep", "etp", "micro_batch", "vpp", "zero", "dp_replicate", "loss_chunks")
    kind = point["split"]
    return Degrees(
        **{name: point[name] for name in names},
        sequence_parallel=bool(point["sp"]),
        schedule=SCHEDULE_IDS[point["schedule"]],
        recompute=RECOMPUTE_MODES[min(choice, _FULL)],
        recompute_layers=covered,
        cp_comm=CP_COMM_KINDS[point["cp_comm"]],
        moe_dispatcher=MOE_DISPATCHERS[point["moe_dispatcher"]],
        offload=text_of(point["offload"]),
        layers_per_stage=even_chunks(layers, point["pp"], point["vpp"], kind) if 0 < kind < OWN_SPLIT else None,
    )


def followed(gpus: int, base: Point, asked: Mapping[str, int]) -> Point:
    """A plan's own axes with those asked for, and what must follow from them.

    Args:
        gpus: GPUs of the cluster.
        base: the plan.
        asked: axis -> value.
    """
    point = {**base, **asked}
    keeps = set(asked)
    if point["tp"] == 1 and "sp" not in keeps:
        point["sp"] = 0
    if base["tp"] == 1 and point["tp"] > 1 and "sp" not in keeps:
        point["sp"] = 1
    if "etp" not in keeps and base["etp"] == base["tp"]:
        point["etp"] = point["tp"] if base["etp"] > 1 else 1
    _pipeline_follows(base, point, keeps)
    rest = point["tp"] * point["cp"] * point["pp"]
    dp = max(gpus // rest, 1)
    if "dp_replicate" not in keeps:
        point["dp_replicate"] = dp if point["zero"] == 0 else min(base["dp_replicate"], dp) if base["zero"] else 1
    if "zero" not in keeps and dp * point["cp"] == 1:
        point["zero"] = 0
    return point


def _pipeline_follows(base: Point, point: Point, keeps: set[str]) -> None:
    """Chunks, schedule and split that go with the pipeline asked for."""
    if point["pp"] == 1:
        point.update({name: value for name, value in (("vpp", 1), ("schedule", 0), ("split", 0)) if name not in keeps})
    schedule = SCHEDULES[point["schedule"]]
    if "schedule" in keeps and "vpp" not in keeps and not bool(schedule.fits_chunks(np.array(point["vpp"]))):
        point["vpp"] = 2 if schedule.interleaved else 1
    elif "schedule" not in keeps and not bool(schedule.fits_chunks(np.array(point["vpp"]))):
        point["schedule"] = SCHEDULE_IDS.index("interleaved-1f1b" if point["vpp"] > 1 else "1f1b")
    if point["split"] == OWN_SPLIT:
        point["split"] = 0
