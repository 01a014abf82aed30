"""What a search adds to a scan: plans whose layers are divided freely, and the bound of all plans of the space.

    search    until the gap is within 1 %, or for 16 deterministic seconds
    prove     until the gap is within 1e-4, for 300 deterministic seconds or until the time limit

Each plan found joins the scan as one more row, priced as all others are, so that ranking, ties and output know no difference.
The bound is the least of the bounds of all tasks (`proof`) and of the candidates that belong to none: plans without a pipeline,
and all plans where the target or the user leaves no division free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.stages import Split, SplitTable, fold
from shardwright.planner.description import Record
from shardwright.planner.plans import FloatArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import FOLDED
from shardwright.planner.search.finalists import least_s
from shardwright.planner.search.ranking import best_step_s
from shardwright.planner.search.scan import Scan
from shardwright.planner.search.space import Space
from shardwright.planner.search.stages.clock import Clock
from shardwright.planner.search.stages.freedom import Freedom, covered, freedom_of
from shardwright.planner.search.stages.proof import Limits, Proof, prove
from shardwright.planner.search.stages.tasks import Divided

GAPS = {"search": 0.0099, "prove": 9.9e-5}
"""Relative gap at which each effort is done, a little below what is promised."""

SECONDS = {"search": 16.0, "prove": 300.0}
"""Deterministic seconds of each effort."""


FINE_SECONDS = 0.5
"""Deterministic seconds within which `search` goes on to a gap of 1e-4, so that small problems are proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What dividing gave.

    Attributes:
        made: the scan with the plans found as further rows.
        bound_s: no plan of the space takes less; None where nothing fits.
        stopped: why it ended before its gap; None where it did not.
        freedom: what was free.
        proof: its account; None where nothing was to divide.
    """

    made: Scan
    bound_s: float | None
    stopped: str | None
    freedom: Freedom
    proof: Proof | None

    def to_dict(self) -> Record:
        """What `search.division` says."""
        if self.proof is None:
            return {"families": 0, "tasks": 0, "solved": 0, "programs": 0, "variables": 0, "plans": 0}
        names = ("families", "tasks", "solved", "programs", "variables")
        return {name: getattr(self.proof, name) for name in names} | {"plans": len(self.proof.plans)}


def divide(
    problem: Problem,
    space: Space,
    made: Scan,
    effort: str,
    *,
    workers: int = 1,
    seconds: float | None = None,
    deadline: float | None = None,
    on_wave: Callable[[float, float], None] | None = None,
) -> Division:
    """Divides the layers of the candidates of a scan, as far as the effort goes.

    Args:
        problem: what is planned.
        space: the declared space.
        made: a scan whose best plan is priced exactly.
        effort: scan, search or prove.
        workers: tasks solved at once; the answer does not depend on it.
        seconds: deterministic seconds; None for those of the effort.
        deadline: `time.monotonic()` at which to stop.
        on_wave: called with the best step and the bound.
    """
    freedom = freedom_of(problem, space)
    best = best_step_s(made)
    known = float(np.where(made.fits, least_s(made), np.inf).min(initial=np.inf))
    if effort not in GAPS or made.interrupted or not (freedom.layers or freedom.recompute):
        none = Freedom(layers=False, recompute=False, modes=freedom.modes)
        return Division(made=made, bound_s=None if best is None else known, stopped=None, freedom=none, proof=None)
    limits = Limits(
        gap=GAPS[effort],
        effort=SECONDS[effort] if seconds is None else seconds,
        fine=FINE_SECONDS,
        clock=Clock(deadline=deadline),
    )
    proof = prove(made, freedom, np.inf if best is None else best, limits, workers=workers, on_wave=on_wave)
    others = float(np.where(made.fits & ~covered(made.batch, freedom), least_s(made), np.inf).min(initial=np.inf))
    joined = with_plans(problem, made, proof.plans)
    found = best_step_s(joined)
    bound = None if found is None else min(found, proof.bound_s, others)
    return Division(made=joined, bound_s=bound, stopped=proof.stopped, freedom=freedom, proof=proof)


def with_plans(problem: Problem, made: Scan, plans: tuple[Divided, ...]) -> Scan:
    """The scan with further rows, priced exactly."""
    if not plans:
        return made
    rows = np.array([plan.row for plan in plans])
    splits = tuple(
        Split(
            chunks=plan.chunks,
            pp=int(made.batch.pp[plan.row]),
            vpp=int(made.batch.vpp[plan.row]),
            folded=bool(FOLDED[made.batch.schedule[plan.row]]),
        )
        for plan in plans
    )
    batch = replace(
        made.batch.take(rows),
        recompute=np.array([plan.recompute for plan in plans]),
        recompute_layers=np.array([plan.recompute_layers for plan in plans]),
        split=len(made.splits) + np.arange(len(plans)),
    )
    context = replace(made.context, splits=extended(made.context.splits, fold(problem.graph, splits)))
    prices = price(context, batch, made.key[rows], exact=True)

    def more(old: FloatArray, new: FloatArray) -> FloatArray:
        return np.concatenate((old, new))

    yes = np.ones(len(plans), dtype=bool)
    return Scan(
        batch=PlanBatch.joined((made.batch, batch)),
        splits=(*made.splits, *splits),
        step_s=more(made.step_s, prices.step_s),
        busy_s=more(made.busy_s, prices.step_s - prices.parts["bubble_s"]),
        peak_bytes=more(made.peak_bytes, prices.peak_bytes),
        capacity_bytes=more(made.capacity_bytes, prices.capacity_bytes),
        fits=np.concatenate((made.fits, prices.fits)),
        priced=np.concatenate((made.priced, yes)),
        exact=np.concatenate((made.exact, yes)),
        context=context,
        key=np.concatenate((made.key, made.key[rows])),
    )


def extended(table: SplitTable, more: SplitTable) -> SplitTable:
    """Two tables of splits as one, the second after the first."""
    widest = max(table.counts.shape[1], more.counts.shape[1])

    def padded(first: np.ndarray, second: np.ndarray, value: int) -> np.ndarray:
        parts = []
        for part in (first, second):
            width = [(0, 0), (0, widest - part.shape[1]), *((0, 0) for _ in part.shape[2:])]
            parts.append(np.pad(part, width, constant_values=value))
        return np.concatenate(parts)

    return SplitTable(
        splits=(*table.splits, *more.splits),
        runs=np.concatenate((table.runs, more.runs)),
        counts=padded(table.counts, more.counts, 0),
        first_rank=padded(table.first_rank, more.first_rank, 1),
        last_rank=padded(table.last_rank, more.last_rank, 0),
        layers=padded(table.layers, more.layers, 0),
        kinds=table.kinds,
    )
