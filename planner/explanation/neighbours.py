"""The neighbours of a plan: all legal plans that one or two turned knobs away, each priced; the best are shown.

The values beside a plan's own span a small space (`_space`), of which `search.space.enumerate_legal` keeps what obeys the
rules. Those with at most `KNOBS` knobs turned (`knobs.turned`) are priced by chains, and the best of them as they are printed:

    changes -> the `BEST` fastest that fit, and up to `SHORT` that would be faster still but do not fit
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwright.planner.cost.stages import SPLIT_KINDS
from shardwright.planner.explanation.knobs import Point, change_text, point_of, turned, turned_columns
from shardwright.planner.explanation.saved import Record
from shardwright.planner.plans import RECOMPUTE_CHOICES, BoolArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import divisors, facts_of
from shardwright.planner.rules.losses import LOSS_PIECES
from shardwright.planner.rules.registry import AXIS_ORDER
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.finalists import with_exact
from shardwright.planner.search.scan import Scan, scan
from shardwright.planner.search.space import Legal, Space, enumerate_legal

KNOBS = 2
"""Knobs that are turned at once, at most."""

BEST, SHORT = 4, 2
"""Neighbours shown: the fastest that fit, and faster ones that do not."""

LOOKED_AT = 16
"""So many of each, the fastest by chains, are priced exactly."""

REACH = 0.25
"""Plans that need more than this beyond the memory there is are not worth telling."""

WORTH = 1e-3
"""A plan that does not fit is worth telling if it is faster than every one that fits by this much."""


def changes(problem: Problem, estimate: Mapping[str, Any]) -> list[Record]:
    """The best neighbours of a plan: those that fit, fastest first, then those that do not.

    Args:
        problem: what the plan is made for.
        estimate: its record.
    """
    return [found for found, _ in _found(problem, estimate)]


def faster_neighbour(problem: Problem, estimate: Mapping[str, Any]) -> Point | None:
    """The fastest neighbour that fits, if it is faster than the plan."""
    found = [point for change, point in _found(problem, estimate) if change["fits"] and change["delta_s"] < 0]
    return found[0] if found else None


def _found(problem: Problem, estimate: Mapping[str, Any]) -> list[tuple[Record, Point]]:
    base = point_of(estimate)
    near = neighbours(problem, base)
    if len(near) == 0:
        return []
    made = scan(problem, near)
    within = (made.peak_bytes <= estimate["memory"]["capacity_bytes"] * (1 + REACH)) & ~made.fits
    made = with_exact(made, _looked_at(made, made.fits, within))
    fitting = _listed(estimate, base, near, made, made.fits)
    least = min([estimate["predicted"]["step_time_s"], *(found["step_time_s"] for found, _ in fitting[:1])])
    short = _listed(estimate, base, near, made, within & (made.step_s < least * (1 - WORTH)))
    return [*fitting[:BEST], *short[:SHORT]]


def _looked_at(made: Scan, *kinds: BoolArray) -> IntArray:
    """The fastest of each kind, by chains."""
    order = np.argsort(made.step_s, kind="stable")
    return np.concatenate([order[kind[order]][:LOOKED_AT] for kind in kinds])


def _listed(estimate: Mapping[str, Any], base: Point, near: Legal, made: Scan, where: BoolArray) -> list[tuple[Record, Point]]:
    """Plans whose price is exact, fastest first; of those that turn the same knobs only the first."""
    rows = np.flatnonzero(where & made.exact)
    found: dict[tuple[str, ...], tuple[Record, Point]] = {}
    for row in rows[np.argsort(made.step_s[rows], kind="stable")].tolist():
        point = {axis: int(near.columns[axis][row]) for axis in AXIS_ORDER}
        found.setdefault(turned(base, point), (_change(estimate, base, point, made, row), point))
    return list(found.values())


def _change(estimate: Mapping[str, Any], base: Point, point: Point, made: Scan, row: int) -> Record:
    before, memory = estimate["predicted"]["step_time_s"], estimate["memory"]
    step, peak = float(made.step_s[row]), int(made.peak_bytes[row])
    return {
        "change": change_text(base, point),
        "turned": list(turned(base, point)),
        "fits": bool(made.fits[row]),
        "step_time_s": step,
        "delta_s": step - before,
        "delta_fraction": step / before - 1,
        "peak_bytes": peak,
        "delta_bytes": peak - memory["peak_bytes"],
        "shortage_bytes": max(peak - memory["capacity_bytes"], 0),
    }


def neighbours(problem: Problem, base: Point) -> Legal:
    """Legal plans at most `KNOBS` knobs from a plan, itself left out."""
    legal = enumerate_legal(problem, _space(problem, base))
    rows = np.flatnonzero(_distance(legal.columns, base))
    return Legal(columns={name: column[rows] for name, column in legal.columns.items()}, rejected={}, facts=legal.facts)


def _distance(columns: dict[str, IntArray], base: Point) -> BoolArray:
    """Where one knob or more is turned, and no more than `KNOBS`."""
    count = sum((turn.astype(np.int64) for turn in turned_columns(base, columns).values()), start=np.zeros(1, dtype=np.int64))
    return np.asarray((count >= 1) & (count <= KNOBS))


def _space(problem: Problem, base: Point) -> Space:
    """The values beside those of a plan."""
    ranks, facts = divisors(problem.cluster.gpus), facts_of(problem)
    moe, dp = problem.graph.spec.moe is not None, max(problem.cluster.gpus // (base["tp"] * base["cp"] * base["pp"]), 1)
    axes = {axis: _beside(base[axis], ranks) for axis in ("tp", "cp", "pp")}
    axes |= {name: (base[name],) for name in ("cp_comm", "moe_dispatcher")}
    axes["loss_chunks"] = _pieces(problem, base["loss_chunks"])
    axes["offload"] = tuple(sorted({0, base["offload"]}))
    axes |= {"ep": _beside(base["ep"], ranks) if moe else (1,), "etp": _kept({1, base["etp"], *axes["tp"]}) if moe else (1,)}
    axes |= {"sp": (0, 1), "zero": _kept({max(base["zero"] - 1, 0), base["zero"], min(base["zero"] + 1, 3)})}
    replicas = {dp * 2**power for power in (-2, -1, 1, 2)} if base["zero"] <= 1 else set[float]()
    axes["dp_replicate"] = tuple(d for d in ranks if d in {1, dp, base["dp_replicate"], *replicas})
    axes["micro_batch"] = _beside(base["micro_batch"], divisors(facts.global_batch))
    chunks = {1, 2, base["vpp"] - 1, base["vpp"] // 2, base["vpp"], base["vpp"] + 1, 2 * base["vpp"]}
    axes["vpp"] = tuple(sorted(v for v in chunks if 1 <= v <= problem.graph.layers))
    axes["schedule"] = tuple(range(len(SCHEDULE_IDS)))
    axes["split"] = tuple(range(len(SPLIT_KINDS)))
    axes["recompute"] = tuple(range(len(RECOMPUTE_CHOICES)))
    return Space(axes={axis: axes[axis] for axis in AXIS_ORDER})


def _pieces(problem: Problem, pieces: int) -> tuple[int, ...]:
    """A loss as it is, whole, and in more pieces where a framework is named: its rules say whether it cuts losses."""
    return (pieces,) if problem.framework == "any" else _kept({1, pieces, LOSS_PIECES * pieces})


def _beside(value: int, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """A value, its double and its half, of those allowed; neighbours in the list where these are none."""
    near = {value, 2 * value, value // 2} & set(allowed)
    if len(near) < 3:
        smaller, larger = [a for a in allowed if a < value], [a for a in allowed if a > value]
        near |= {*smaller[-1:], *larger[:1]}
    return tuple(sorted(near))


def _kept(values: set[int]) -> tuple[int, ...]:
    return tuple(sorted(values))
