"""Plans that may use fewer nodes than there are: the search of each size, and one ranking of all of them by the objective.

    value(plan) = weight(size) · step          `planner.spending`: seconds, USD, J or seconds of useful step
    least(size) = weight(size) · least step    `limits`: what no plan of that size can beat

Sizes whose memory cannot hold the states are left out of the space; so the space is nodes x the axes of every search, one
space for all sizes (`declare_all`), and candidates = Σ rejected + pruned_by_bound + priced over all of them. Sizes are scanned
in the order of `least`; one whose `least` is beyond the worst plan to be shown is pruned whole. The size of the best plan is
then searched with the effort that was asked for. The bound is the least over sizes of weight · (bound of the search there), so
`gap` is that of the objective. Ties and ranks are by value; in a tie fewer nodes come first, then the order of their size.

In the account `best_step_time_s` is the step of the plan that is best in the objective, and `lower_bound_step_time_s` the step
that plan would need for its value to reach the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.cluster import Cluster
from shardwright.planner.description import Record
from shardwright.planner.problem import Problem
from shardwright.planner.search import run
from shardwright.planner.search.limits import holds_states, least_step_s
from shardwright.planner.search.options import Progress, SearchOptions
from shardwright.planner.search.pareto import merged
from shardwright.planner.search.run import PROVEN, PlanResult
from shardwright.planner.search.space import Space, declare_all, enumerate_legal
from shardwright.planner.spending import OBJECTIVE_UNITS, Spending

ALL_UP_TO = 16
"""Clusters of so many nodes are searched at every size, larger ones at the sizes of `subset_nodes`."""

SUBSET_BUDGET = 600_000
"""Legal candidates over all sizes up to which the space is refined."""


@dataclass(slots=True, kw_only=True)
class Size:
    """The first nodes of a cluster, and what is known of plans on them.

    Attributes:
        problem: the job there.
        nodes: how many.
        weight: value of a second of step time.
        result: of its search; None where it is pruned.
        rejected, pruned: what became of its candidates where it is pruned or has no legal one.
        effort: of its search; "" where it is pruned.
    """

    problem: Problem
    nodes: int
    weight: float
    result: PlanResult | None = None
    rejected: dict[str, int] = field(default_factory=dict)
    pruned: int = 0
    effort: str = ""

    @property
    def least(self) -> float:
        """No plan here has a smaller value."""
        return self.weight * least_step_s(self.problem)

    @property
    def best(self) -> float | None:
        """The least value found."""
        step = self.result.data["search"]["best_step_time_s"] if self.result else None
        return None if step is None else self.weight * step

    @property
    def bound(self) -> float | None:
        """No plan of the space has a smaller value here; None where the search was interrupted."""
        if self.result is None:
            return self.least
        found = self.result.data["search"]
        if found["best_step_time_s"] is None:
            return float("inf")
        bound = found["lower_bound_step_time_s"]
        return None if bound is None else self.weight * bound


def subset_nodes(nodes: int) -> tuple[int, ...]:
    """Sizes that are tried: all of a small cluster; powers of two, three times those, and divisors of a large one."""
    if nodes <= ALL_UP_TO:
        return tuple(range(1, nodes + 1))
    powers = [2**n for n in range(nodes.bit_length())]
    divisors = [n for n in range(1, nodes + 1) if nodes % n == 0]
    return tuple(sorted({n for n in (*powers, *(3 * p for p in powers), *divisors) if n <= nodes}))


def plan_subsets(problem: Problem, search: SearchOptions, on_progress: Callable[[Progress], None] | None = None) -> PlanResult:
    """The best plans on the cluster of a problem or on its first nodes.

    Args:
        problem: with the objective; its whole cluster.
        search: how to search each size.
        on_progress: called while candidates are priced; counts restart with each size.

    Raises:
        ShardwrightError: no candidate keeps the rules at any size.
    """
    started = time.perf_counter(), time.process_time()
    sizes = [_size(problem, nodes) for nodes in subset_nodes(problem.cluster.nodes)]
    able = _able(sizes)
    space = declare_all([size.problem for size in able], search.fix, SUBSET_BUDGET)
    stopped = _search_all(able, space, search, on_progress)
    if not any(size.result for size in able):
        run.plan_cluster(problem, search, on_progress, space)  # says which rule no plan keeps
    ranked = _ranked(able, search)
    found = [size for size in able if size.best is not None]
    holder = min(found, key=lambda size: (size.best, size.nodes)) if found else _largest(able)
    data = dict(holder.result.data) if holder.result else {}
    data["inputs"] = data["inputs"] | {"search": data["inputs"]["search"] | search.to_dict() | {"allow_subset": True}}
    data["search"] = _account(able, space, holder if found else None, stopped) | {"subsets": _listed(sizes, able)}
    data |= {"plans": ranked, "near_misses": [] if ranked else (_largest(able).result or holder.result).data["near_misses"]}  # type: ignore[union-attr]
    if search.pareto:
        data["pareto"] = merged([size.result.data["pareto"] for size in able if size.result])
    wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    return PlanResult(data=data | {"run": data["run"] | {"wall_s": wall, "cpu_s": cpu}})


def _able(sizes: Sequence[Size]) -> Sequence[Size]:
    """Sizes that may hold a plan with a value; the largest where none holds the states.

    Raises:
        InvalidValueError: interruptions leave no time to train, at any size.
    """
    lasting = [size for size in sizes if math.isfinite(size.weight)]
    if not lasting:
        hint = "lower operation.interruptions_per_gpu_hour or operation.restart_s"
        raise InvalidValueError("interruptions leave no time to train", where="--objective", hint=hint)
    return [size for size in lasting if holds_states(size.problem)] or lasting[-1:]


def gpus_of_first(cluster: Cluster, nodes: int) -> int:
    """Usable GPUs of the first nodes."""
    total, left = 0, nodes
    for group in cluster.groups:
        taken = min(left, group.count)
        total, left = total + taken * group.gpus_per_node, left - taken
    return total


def _size(problem: Problem, nodes: int) -> Size:
    part = problem.on_first(gpus_of_first(problem.cluster, nodes))
    return Size(problem=part, nodes=nodes, weight=Spending.of(part).weight(problem.objective))


def _search_all(
    sizes: Sequence[Size], space: Space, search: SearchOptions, on_progress: Callable[[Progress], None] | None
) -> str | None:
    """Scans the sizes, best bound first, and searches the best one in full; says what stopped it."""
    quick = replace(search, effort="scan", remedies=search.remedies and len(sizes) == 1)
    values: list[float] = []
    for size in sorted(sizes, key=lambda size: (size.least, size.nodes)):
        if not search.pareto and len(values) >= search.top and size.least > sorted(values)[search.top - 1]:
            _prune(size, space)
            continue
        stopped = _try(size, space, quick, on_progress)
        if size.result:
            values += [size.weight * plan["predicted"]["step_time_s"] for plan in size.result.plans]
        if stopped:
            return stopped
    found = [size for size in sizes if size.best is not None]
    again = min(found, key=lambda size: (size.best, size.nodes)) if found else _largest(sizes)
    if again.result and (search.effort != "scan" or not found):
        return _try(again, space, search, on_progress)
    return None


def _try(size: Size, space: Space, search: SearchOptions, on_progress: Callable[[Progress], None] | None) -> str | None:
    try:
        size.result = run.plan_cluster(size.problem, search, on_progress, space)
    except ConflictError:  # no candidate of this size keeps the rules
        _prune(size, space)
        return None
    size.effort = search.effort
    stopped: str | None = size.result.data["search"]["stopped"]
    return stopped if stopped == "interrupted" else None


def _prune(size: Size, space: Space) -> None:
    legal = enumerate_legal(size.problem, space)
    size.rejected, size.pruned = legal.rejected, len(legal)


def _largest(sizes: Sequence[Size]) -> Size:
    searched = [size for size in sizes if size.result]
    return searched[-1] if searched else sizes[-1]


def _ranked(sizes: Sequence[Size], search: SearchOptions) -> list[Record]:
    """The plans of all sizes by value, tied and numbered anew."""
    rows = [
        (size.weight * plan["predicted"]["step_time_s"], not plan["expressible_by"], size.nodes, plan["rank"], plan)
        for size in sizes
        if size.result
        for plan in size.result.plans
    ]
    rows.sort(key=lambda row: row[:4])
    made: list[Record] = []
    group, start = 0, 0
    while start < len(rows) and len(made) < search.top:
        leader = rows[start]
        if group == 0:
            leader = next((row for row in rows if not row[1]), leader)
        end = next((n for n in range(start, len(rows)) if rows[n][0] > leader[0] * (1 + search.tie_percent / 100)), len(rows))
        end, group = max(end, start + 1), group + 1
        for value, _, _, _, plan in sorted(rows[start:end], key=lambda row: (row[1], row[2], row[3], row[0])):
            if len(made) < search.top:
                made.append(plan | {"rank": len(made) + 1, "tie_group": group, "objective_value": value})
        start = end
    return made


def _account(sizes: Sequence[Size], space: Space, best: Size | None, stopped: str | None) -> Record:
    """The account over all sizes; its gap is that of the objective."""
    searches = [size.result.data["search"] for size in sizes if size.result]
    bounds = [size.bound for size in sizes]
    bound = None if best is None or stopped or None in bounds else min(b for b in bounds if b is not None)
    value = best.best if best else None
    gap = None if bound is None or value is None else max(1.0 - bound / value, 0.0)
    limits = [search["stopped"] for search in searches if search["stopped"]]
    return {
        "space": {"nodes": [size.nodes for size in sizes], **space.to_dict()},
        "candidates": len(sizes) * space.candidates,
        "rejected": _summed([*(search["rejected"] for search in searches), *(size.rejected for size in sizes)]),
        "pruned_by_bound": sum(s["pruned_by_bound"] for s in searches) + sum(size.pruned for size in sizes),
        "priced": sum(search["priced"] for search in searches),
        "fits": sum(search["fits"] for search in searches),
        "best_step_time_s": None if best is None or value is None else value / best.weight,
        "lower_bound_step_time_s": None if best is None or bound is None else min(bound, value or bound) / best.weight,
        "gap": gap,
        "proven_optimal": gap is not None and gap <= PROVEN,
        "stopped": stopped or next(iter(limits), None),
        "objective": sizes[0].problem.objective,
        "objective_unit": OBJECTIVE_UNITS[sizes[0].problem.objective],
        "best_objective": value,
        "lower_bound_objective": bound,
    }


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    made: dict[str, int] = {}
    for rejected in counts:
        for rule, number in rejected.items():
            made[rule] = made.get(rule, 0) + number
    return made


def _listed(sizes: Sequence[Size], able: Sequence[Size]) -> list[dict[str, Any]]:
    """A row a size: what was done there and what came of it."""
    kept = {size.nodes for size in able}
    return [
        {
            "nodes": size.nodes,
            "gpus": size.problem.cluster.gpus,
            "status": _status(size, size.nodes in kept),
            "effort": size.effort or None,
            "best_step_time_s": size.result.data["search"]["best_step_time_s"] if size.result else None,
            "best_objective": size.best,
            "least_objective": size.least if math.isfinite(size.least) else None,
        }
        for size in sizes
    ]


def _status(size: Size, able: bool) -> str:
    if not able:
        return "states too large" if math.isfinite(size.weight) else "never runs"
    if size.result is None:
        return "pruned" if size.pruned else "no legal plan" if size.rejected else "not reached"
    return "searched" if size.best is not None else "nothing fits"
