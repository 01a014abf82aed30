"""The fewest knobs to turn: from one plan towards a faster one.

A is one plan, B a faster one of the same job; where B is not faster, the best neighbour of A stands for it. With K the axes
turned between them, every subset of K turned in A is priced (`_tried`), and

    S = the smallest subset that keeps the rules, fits, and realises at least `MOST` of step(A) − step(A with all of K)

the fastest of those of one size. Its knobs are told in the order in which every step on the way is legal, the largest gain
first; each of these plans has been priced too. Where the framework is Megatron, its arguments that change are told as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.planner.emit.megatron.arguments import texts_by_option
from shardwright.planner.emit.megatron.parallel import job_words, parallel_words
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.emit.request import read_request
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.explanation.knobs import NAMES, OWN_SPLIT, Point, degrees_at, followed, point_of, turned, word
from shardwright.planner.explanation.neighbours import faster_neighbour
from shardwright.planner.explanation.saved import Record, priced
from shardwright.planner.explanation.sides import Side
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem
from shardwright.planner.rules.registry import AXIS_ORDER
from shardwright.planner.settling import settle

MOST = 0.8
"""Share of the gain that is most of it."""

FASTER = 1e-3
"""A plan counts as faster from this relative difference on."""

MANY = 9
"""Axes of which all subsets are tried; of more only subsets of up to three."""

Knobs = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A plan with some knobs turned."""

    degrees: Degrees
    step_s: float
    peak_bytes: int
    able: bool


def shortest(one: Side, other: Side, *, same_job: bool) -> Record | None:
    """The fewest changes of one plan that make it nearly as fast as a faster one; None where nothing faster is known.

    Args:
        one: the plan that is changed.
        other: the plan it is compared with.
        same_job: whether both train the same on the same machine.
    """
    before = one.estimate["predicted"]["step_time_s"]
    if same_job and other.estimate["feasible"] and other.estimate["predicted"]["step_time_s"] < before * (1 - FASTER):
        found = _towards(one, degrees_of(other.estimate), point_of(other.estimate))
        if found is not None:
            return {"towards": "b", **found}
    point = faster_neighbour(one.problem, one.estimate)
    found = None if point is None else _towards(one, degrees_at(one.problem, point), point)
    return None if found is None else {"towards": "neighbour", **found}


def _towards(one: Side, target: Degrees, there: Point) -> Record | None:
    """The fewest changes towards a plan."""
    base = point_of(one.estimate)
    axes = turned(base, there)
    if not axes:
        return None
    tried = _tried(one, target, base, there, _subsets(axes))
    before, full = one.estimate["predicted"]["step_time_s"], tried.get(frozenset(axes))
    if full is None or not full.able or full.step_s >= before * (1 - FASTER):
        return None
    gain = before - full.step_s
    enough = [knobs for knobs, plan in tried.items() if plan.able and before - plan.step_s >= MOST * gain]
    chosen = min(enough, key=lambda knobs: (len(knobs), tried[knobs].step_s, sorted(knobs)))
    order = _order(chosen, tried)
    steps = [_step(one, base, there, order[: count + 1], tried) for count in range(len(order))]
    return {
        "gain_s": gain,
        "realised_s": before - tried[chosen].step_s,
        "realised_fraction": (before - tried[chosen].step_s) / gain,
        "turned": list(axes),
        "steps": steps,
        "flags": _flags(one, tried[chosen].degrees),
    }


def _subsets(axes: Sequence[str]) -> list[Knobs]:
    sizes = range(1, len(axes) + 1) if len(axes) <= MANY else (1, 2, 3, len(axes))
    return [frozenset(chosen) for size in sizes for chosen in combinations(axes, size)]


def _tried(one: Side, target: Degrees, base: Point, there: Point, subsets: Iterable[Knobs]) -> dict[Knobs, _Tried]:
    """Plans with every subset of knobs turned; of two ways to let the other axes follow, the faster that is legal."""
    asked = [(knobs, degrees) for knobs in subsets for degrees in _ways(one, target, base, there, knobs)]
    legal = [_legal(one.problem, degrees) for _, degrees in asked]
    prices = priced(one.problem, [degrees for _, degrees in asked])
    fits = prices.prices.fits
    made: dict[Knobs, _Tried] = {}
    for place, row in enumerate(prices.rows.tolist()):
        knobs, degrees = asked[row]
        step, peak = float(prices.prices.step_s[place]), int(prices.prices.peak_bytes[place])
        plan = _Tried(degrees=degrees, step_s=step, peak_bytes=peak, able=legal[row] and bool(fits[place]))
        known = made.get(knobs)
        if known is None or (not plan.able, plan.step_s) < (not known.able, known.step_s):
            made[knobs] = plan
    return made


def _legal(problem: Problem, degrees: Degrees) -> bool:
    settled = settle(problem, degrees)
    return settled.row is not None and not settled.violations


def _ways(one: Side, target: Degrees, base: Point, there: Point, knobs: Knobs) -> list[Degrees]:
    """The plan with knobs turned, with what follows set as it must, and as the target has it."""
    asked = {axis: there[axis] for axis in AXIS_ORDER if axis in knobs}
    follows = {axis: there[axis] for axis in AXIS_ORDER if axis not in turned(base, there)}
    points = [followed(one.problem.cluster.gpus, base, asked), followed(one.problem.cluster.gpus, base, follows | asked)]
    return [_degrees(one, target, point, base, there, knobs) for point in points]


def _degrees(one: Side, target: Degrees, point: Point, base: Point, there: Point, knobs: Knobs) -> Degrees:
    """The plan of a point; own splits and shares of recomputed layers as the plan has them that the knob comes from."""
    made = degrees_at(one.problem, point)
    recompute = target if "recompute" in knobs else one.degrees
    if point["recompute"] == (there if "recompute" in knobs else base)["recompute"]:
        made = replace(made, recompute=recompute.recompute, recompute_layers=recompute.recompute_layers)
    for plan, its in ((one.degrees, base), (target, there)):
        same_pipeline = (its["pp"], its["vpp"], its["schedule"]) == (point["pp"], point["vpp"], point["schedule"])
        wanted = "split" in knobs if its is there else "split" not in knobs
        if its["split"] == OWN_SPLIT and wanted and same_pipeline:
            made = replace(made, layers_per_stage=plan.layers_per_stage)
    return made


def _order(chosen: Knobs, tried: dict[Knobs, _Tried]) -> tuple[str, ...]:
    """The order with the fewest plans on the way that cannot run, then with the largest gains first."""

    def cost(order: tuple[str, ...]) -> tuple[int, tuple[float, ...], tuple[str, ...]]:
        way = [tried.get(frozenset(order[: count + 1])) for count in range(len(order))]
        unable = sum(1 for plan in way if plan is None or not plan.able)
        return unable, tuple(np.inf if plan is None else plan.step_s for plan in way), order

    return min(permutations(sorted(chosen)), key=cost) if len(chosen) <= 6 else tuple(sorted(chosen))


def _step(one: Side, base: Point, there: Point, order: tuple[str, ...], tried: dict[Knobs, _Tried]) -> Record:
    """One change, with what the plan costs by then."""
    axis, plan = order[-1], tried.get(frozenset(order))
    before = one.estimate["predicted"]["step_time_s"]
    change = f"{NAMES.get(axis, axis)} {word(axis, there[axis])} instead of {word(axis, base[axis])}"
    made: Record = {"axis": axis, "change": change, "feasible": plan is not None and plan.able}
    if plan is None:
        return made | {"step_time_s": None, "delta_s": None, "delta_fraction": None, "peak_bytes": None}
    delta = plan.step_s - before
    return made | {
        "step_time_s": plan.step_s,
        "delta_s": delta,
        "delta_fraction": delta / before,
        "peak_bytes": plan.peak_bytes,
    }


def _flags(one: Side, degrees: Degrees) -> list[str] | None:
    """The Megatron arguments that change; None where the plans cannot be written as such."""
    if one.problem.framework != "megatron":
        return None
    try:
        plans = [one.estimate | {"feasible": True}, estimate_degrees(one.problem, degrees)]
        inputs = one.problem.to_inputs()
        requests = [
            replace(read_request(plan | {"inputs": inputs}, LaunchOptions()), version=one.problem.target_version or "0.16")
            for plan in plans
        ]
        before, after = (texts_by_option((*parallel_words(r), *job_words(r))) for r in requests)
    except ShardwrightError:
        return None
    changed = [" ".join((f"--{name}", *after[name])) for name in after if before.get(name) != after[name]]
    return [*changed, *(f"without --{name}" for name in before if name not in after)]
