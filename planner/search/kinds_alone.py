"""Whether mixing pays: the best plan on the GPUs of each kind alone, beside the best on all of them; and the other rank order.

    rate fraction = step on all / step alone            cost fraction = USD a token alone / USD a token on all

Every kind is searched as a cluster of its own, by the scan, with the same job and fixed axes. Slow GPUs may take more from a
step than they give: they hold few layers, and the network between kinds is the slower one (Sailor finds that 384 V100 beside
128 A100 add a quarter of throughput for 2.7 times the money an iteration). Which kind comes first matters as well: the first
stages hold the activations of more micro-batches, the last one the head; so the groups are also searched last to first.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.errors import ConflictError
from shardwright.planner.cost.stages import SPEED_KINDS
from shardwright.planner.description import Record
from shardwright.planner.problem import Problem
from shardwright.planner.search import run
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import PlanResult
from shardwright.planner.spending import Spending


def with_kinds_alone(problem: Problem, search: SearchOptions, result: PlanResult) -> PlanResult:
    """A result on mixed nodes with `kinds_alone` and `reversed_order`: each kind by itself, and all in the other order."""
    plans = result.data["plans"]
    best = min(plans, key=lambda plan: plan["predicted"]["step_time_s"]) if plans else None
    quick = replace(search, effort="scan", top=1, remedies=False, pareto=False, trials=0, allow_subset=False)
    if quick.fix.get("split") in SPEED_KINDS:
        quick = replace(quick, fix={axis: value for axis, value in quick.fix.items() if axis != "split"})
    rows = [_row(alone, quick, best) for alone in kinds_of(problem)]
    more = {"kinds_alone": rows, "reversed_order": _reversed(problem, quick, best)}
    return PlanResult(data={**result.data, "search": {**result.data["search"], **more}})


def _reversed(problem: Problem, search: SearchOptions, best: Record | None) -> Record:
    """The best plan with the groups of nodes last to first, on all of them."""
    cluster = replace(problem.cluster, groups=problem.cluster.groups[::-1])
    other = replace(problem, cluster=cluster, whole=None)
    try:
        step = run.plan_cluster(other, search).data["search"]["best_step_time_s"]
    except ConflictError:  # no candidate keeps the rules
        step = None
    compared = None if best is None or step is None else best["predicted"]["step_time_s"] / step
    return {"nodes": [group.node.id for group in cluster.groups], "best_step_time_s": step, "rate_fraction": compared}


def kinds_of(problem: Problem) -> list[Problem]:
    """The problem on the nodes of each kind alone, in the order of the file."""
    areas, made = problem.areas, []
    for kind, node in enumerate(areas.kinds):
        part = areas.part(areas.members.index((kind,)))
        made.append(replace(problem, cluster=part, whole=None, kernels=problem.kernels_of(node.device), further=()))
    return made


def _row(alone: Problem, search: SearchOptions, best: Record | None) -> Record:
    """One kind: what came of its search, and how that compares."""
    row: Record = {
        "node": alone.cluster.groups[0].node.id,
        "gpus": alone.cluster.gpus,
        "status": "no legal plan",
        "best_step_time_s": None,
        "usd_per_1m_tokens": None,
        "rate_fraction": None,
        "cost_fraction": None,
    }
    try:
        step = run.plan_cluster(alone, search).data["search"]["best_step_time_s"]
    except ConflictError:  # no candidate keeps the rules
        return row
    if step is None:
        return row | {"status": "nothing fits"}
    price = Spending.of(alone).usd_per_1m_tokens(step)
    row |= {"status": "searched", "best_step_time_s": step, "usd_per_1m_tokens": price}
    if best is None:
        return row
    whole = best["predicted"]["usd_per_1m_tokens"]
    row["rate_fraction"] = best["predicted"]["step_time_s"] / step
    row["cost_fraction"] = price / whole if price is not None and whole else None
    return row
