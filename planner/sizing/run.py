"""`size`: the smallest, the cheapest and the fastest cluster that meet a target.

For every node type the sizes are taken upwards:

1. a size whose memory cannot hold the states, or at which even the least outcome misses the target, is excluded, and with it
   all smaller ones: both limits are monotone (`excluded_below`);
2. every other size is searched as `plan` does, and its run priced (`outcome_of`), unless it can no longer be an answer: a
   smaller cluster is found, and its least USD and its least days are beaten.

No bisection: the time of the best plan is not monotone in the number of nodes (seven nodes may have no plan, or a slower one
than six), so a size between two others is known only when it is searched. Answers are those of the declared sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwright.errors import ConflictError
from shardwright.hardware.economics import needed_price
from shardwright.planner.description import problem_summary
from shardwright.planner.estimation import estimate_problem
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.problem import Problem
from shardwright.planner.search.limits import holds_states
from shardwright.planner.search.options import Progress
from shardwright.planner.search.run import plan_cluster
from shardwright.planner.shown import Shown
from shardwright.planner.sizing.outcome import Least, Outcome, least_outcome, outcome_of
from shardwright.planner.sizing.request import SizeRequest
from shardwright.planner.sizing.target import Target

Record = dict[str, Any]
Report = Callable[[Progress], None]

CRITERIA: Mapping[str, Callable[[Tried], tuple[float, float]]] = {
    "smallest": lambda tried: (tried.gpus, tried.run.usd),
    "cheapest": lambda tried: (tried.run.usd, tried.gpus),
    "fastest": lambda tried: (tried.run.days, tried.gpus),
}
"""What each answer makes least, then second."""


SEARCHED = frozenset(("meets", "misses", "nothing fits", "no plan"))
"""States of a size that was searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult(Shown):
    """The answers.

    Attributes:
        data: the record `size --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """0 if some size meets the target, else 1."""
        return 0 if self.data["answers"] else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One size of one node type.

    Attributes:
        problem: the job there.
        nodes: how many.
        least: what no plan there can beat.
        status: excluded, beaten, no plan, nothing fits, misses or meets.
        reason: why, where it is not obvious.
        plan: the best one, where one fits.
        outcome: of the whole run with it.
    """

    problem: Problem
    nodes: int
    least: Least
    status: str
    reason: str = ""
    plan: Mapping[str, Any] | None = None
    outcome: Outcome | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.problem.cluster.gpus

    @property
    def run(self) -> Outcome:
        """The outcome of a size that has one."""
        if self.outcome is None:
            raise ValueError(f"{self.problem.cluster.name} has no plan")
        return self.outcome


def size(request: SizeRequest, *, on_progress: Report | None = None) -> SizeResult:
    """The smallest, the cheapest and the fastest cluster that meet a target.

    Args:
        request: job, node types, sizes and target.
        on_progress: called while the candidates of a size are priced.

    Raises:
        ShardwrightError: an input that cannot be used, or a node type without a price.

    Example:
        >>> from shardwright.planner.sizing.request import SizeRequest
        >>> from shardwright.planner.sizing.target import Target
        >>> target = Target(tokens=10**11, days=30)
        >>> asked = SizeRequest(model="llama3.1-8b", target=target, seq_len=8192, global_batch=64, node_types=("dgx-h100",))
        >>> [answer["cluster"]["nodes"] for answer in size(asked).data["answers"] if answer["criterion"] == "smallest"]
        [1]
    """
    started = time.perf_counter(), time.process_time()
    asked = request.loaded()
    for node_id in asked.node_types:
        needed_price(asked.problem(node_id, 1).cluster.node)
    tried = evaluated(asked, on_progress)
    meeting = [one for one in tried if one.status == "meets"]
    best = {name: min(meeting, key=rank) for name, rank in CRITERIA.items()} if meeting else {}
    shown = next(iter(best.values()), tried[-1]).problem
    data = {
        "schema_version": 1,
        "kind": "size-result",
        "target": asked.target.to_dict(),
        **{key: value for key, value in problem_summary(shown).items() if key != "cluster"},
        "assumptions": [row.to_dict() for row in shown.assumptions if not row.key.startswith(("node.", "device."))],
        "answers": [_answer(asked, name, one, tried, on_progress) for name, one in best.items()],
        "nearest": None if best else _nearest(asked.target, tried),
        "bound": {node: _bound(asked.target, [one for one in tried if _node(one) == node]) for node in asked.node_types},
        "sizes": [_row(one) for one in tried],
    }
    wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    return SizeResult(data=data | {"run": {"wall_s": wall, "cpu_s": cpu}})


def evaluated(request: SizeRequest, on_progress: Report | None = None) -> list[Tried]:
    """Every declared size, by GPUs: excluded, beaten, or searched."""
    asked = [(request.problem(node, nodes), nodes) for node in request.node_types for nodes in request.sizes(node)]
    asked.sort(key=lambda pair: (pair[0].cluster.gpus, request.node_types.index(pair[0].cluster.node.id)))
    made: list[Tried] = []
    for problem, nodes in asked:
        one = untried(problem, nodes, request.target)
        reason = excluded(problem, one.least, request.target)
        if reason is not None:
            made.append(replace(one, status="excluded", reason=reason))
        elif _beaten(one, [other for other in made if other.status == "meets"]):
            made.append(replace(one, status="beaten"))
        else:
            made.append(_searched(one, request, on_progress))
    return made


def untried(problem: Problem, nodes: int, target: Target) -> Tried:
    """A size of which only the least is known."""
    return Tried(problem=problem, nodes=nodes, least=least_outcome(problem, target.tokens), status="")


def excluded(problem: Problem, least: Least, target: Target) -> str | None:
    """Why no plan on this cluster, or on a smaller one of its nodes, can meet the target; None where one may."""
    if not holds_states(problem):
        return "parameters and optimiser states are larger than its memory"
    if target.days is not None and least.days > target.days:
        return f"at full rate of all GPUs and without failures it takes {least.days:,.3g} days"
    if target.tokens_per_s is not None and least.tokens_per_s < target.tokens_per_s:
        return f"at full rate of all GPUs it trains {least.tokens_per_s:,.4g} tokens a second"
    if target.budget_usd is not None and least.usd > target.budget_usd:
        return f"at full rate of all GPUs and without failures it costs {least.usd:,.4g} USD"
    return None


def _beaten(one: Tried, meeting: Sequence[Tried]) -> bool:
    """Whether a size can no longer be an answer, by what no plan there can beat."""
    if not meeting:
        return False
    smaller = min(other.gpus for other in meeting) < one.gpus
    cheaper = min(other.run.usd for other in meeting) < one.least.usd
    return smaller and cheaper and min(other.run.days for other in meeting) < one.least.days


def _searched(one: Tried, request: SizeRequest, on_progress: Report | None) -> Tried:
    """A size with its best plan and the run with it."""
    try:
        found = plan_cluster(one.problem, request.search, on_progress)
    except ConflictError as error:
        return replace(one, status="no plan", reason=error.message)
    if found.data["search"]["stopped"] == "interrupted":
        raise KeyboardInterrupt
    if not found.plans:
        return replace(one, status="nothing fits", reason="no plan fits into memory")
    plan = found.plans[0]
    outcome = outcome_of(one.problem, plan["predicted"]["step_time_s"], request.target.tokens)
    if outcome is None:
        return replace(one, status="misses", reason="interruptions leave no time to train", plan=plan)
    status = "meets" if request.target.excess(outcome) <= 1 else "misses"
    return replace(one, status=status, plan=plan, outcome=outcome)


def _answer(request: SizeRequest, criterion: str, one: Tried, tried: Sequence[Tried], on_progress: Report | None) -> Record:
    record: Record = {
        "criterion": criterion,
        "cluster": _cluster(one.problem),
        "plan": _plan(one),
        **one.run.to_dict(),
        "meets_at_worst": request.target.worst_excess(one.run) <= 1,
    }
    return record | ({"spare": _spare(request, one, tried, on_progress)} if request.spare else {})


def _spare(request: SizeRequest, one: Tried, tried: Sequence[Tried], on_progress: Report | None) -> Record:
    """The fastest run that is left with some nodes lost: on all others, or on as many of them as a smaller size tried."""
    nodes, node = one.nodes - request.spare, _node(one)
    made: Record = {"lost": request.spare, "nodes": max(nodes, 0), "nodes_used": None, "plan": None, "reason": None}
    if nodes < 1:
        return made | {"reason": "no node is left"}
    known = {other.nodes: other for other in tried if _node(other) == node and other.status in SEARCHED}
    left: Tried | None = None
    for count in sorted({nodes, *(n for n in request.sizes(node) if n <= nodes)}, reverse=True):
        if left is not None and count not in known:  # what is known costs nothing; else the largest size with a plan will do
            continue
        if count not in known:
            known[count] = _searched(untried(request.problem(node, count), count, request.target), request, on_progress)
        found = known[count]
        if found.outcome is not None and (left is None or found.run.days < left.run.days):
            left = found
    if left is None:
        return made | {"reason": "no plan fits on the nodes that are left"}
    return made | {"nodes_used": left.nodes, "plan": _plan(left), **left.run.to_dict()}


def _plan(one: Tried) -> Record | None:
    """The plan as `estimate` prints it, with its inputs."""
    return None if one.plan is None else estimate_problem(one.problem, degrees_of(one.plan)).to_dict()


def _nearest(target: Target, tried: Sequence[Tried]) -> Record | None:
    """The size that misses the target by the least factor."""
    near = [one for one in tried if one.outcome is not None]
    if not near:
        return None
    best = min(near, key=lambda one: (target.excess(one.run), one.gpus))
    return {"cluster": _cluster(best.problem), "excess": target.excess(best.run), **best.run.to_dict(), "plan": _plan(best)}


def _bound(target: Target, tried: Sequence[Tried]) -> Record:
    """Below which size a node type is excluded, and why."""
    out = [one for one in tried if one.status == "excluded"]
    return {
        "excluded_up_to_nodes": out[-1].nodes if out else None,
        "reason": out[-1].reason if out else None,
        "least_usd": tried[-1].least.usd,
        "least_days": tried[-1].least.days,
        "searched": sum(one.status in SEARCHED for one in tried),
    }


def _row(one: Tried) -> Record:
    run = one.outcome
    return {
        "node": _node(one),
        "nodes": one.nodes,
        "gpus": one.gpus,
        "status": one.status,
        "reason": one.reason or None,
        "least_days": one.least.days,
        "least_usd": one.least.usd,
        "step_time_s": run.step_time_s if run else None,
        "days": run.days if run else None,
        "days_low": run.days_low if run else None,
        "days_high": run.days_high if run else None,
        "usd": run.usd if run else None,
        "tokens_per_s": run.tokens_per_s if run else None,
    }


def _cluster(problem: Problem) -> Record:
    """The cluster in short, with the price in force."""
    cluster = problem.cluster
    price = {"usd_per_gpu_hour": cluster.node.usd_per_gpu_hour, "price_source": cluster.node.price_source or "given"}
    return {**problem_summary(problem)["cluster"], "node": cluster.node.id, **price}


def _node(one: Tried) -> str:
    return one.problem.cluster.node.id
