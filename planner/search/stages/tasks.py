"""What there is to solve: families of a scan, each in one recompute mode, with the bound of `bounds`.

A family with a pipeline is solved by its program (`candidate`). Where any number of layers of each stage may be recomputed, one
program with the least time and the most room of all numbers comes first. If that leaves a better plan possible, every number
from none on is a program of its own: more recomputing never makes a bound smaller, so the first whose own bound is too large
ends it. Without a pipeline, all numbers are priced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.memory import FULL
from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.sends import tied_s
from shardwright.planner.cost.stages import Split, fold
from shardwright.planner.plans import ALL_LAYERS, FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.search.stages.bounds import least_partial_s, least_step_s, least_with_s
from shardwright.planner.search.stages.candidate import best_division, shape_of
from shardwright.planner.search.stages.clock import ENDLESS, Clock
from shardwright.planner.search.stages.freedom import PARTIAL, Freedom, dividable
from shardwright.planner.search.stages.layers import layers_of
from shardwright.planner.search.stages.menu import most_layers
from shardwright.planner.search.stages.rows import Chains

COUNTING = 0.01
"""Deterministic seconds for the bounds of all counts of recomputed layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """One plan of each family, its operator key, and its row in the scan."""

    batch: PlanBatch
    key: IntArray
    rows: IntArray


@dataclass(slots=True, kw_only=True)
class Task:
    """Families of one pipeline in one recompute mode: they differ only in how states are sharded and replicated.

    Attributes:
        members: indices of them.
        mode: recompute choice; `PARTIAL` for any number of layers of each stage, none too where that fits.
        least: the least count of layers recomputed that could fit, under `PARTIAL`.
        bound_s: no plan of it takes less.
        tries: how often it was solved.
    """

    members: tuple[int, ...]
    mode: int
    least: int
    bound_s: float
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A plan found by dividing.

    Attributes:
        row: candidate of the scan that it belongs to (same mesh, schedule and so on).
        recompute, recompute_layers: as in `PlanBatch`.
        chunks: layers of each chunk.
        step_s: its price.
    """

    row: int
    recompute: int
    recompute_layers: int
    chunks: tuple[int, ...]
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What solving a task gave.

    Attributes:
        plan: the best plan below the limit, if any was found.
        bound_s: no plan of the task takes less; the limit where none takes less than that.
        shape: of its pipeline, and the rows found for it.
        rows: of chains.
        work: deterministic seconds.
        programs, variables: how many were solved, and variables of the largest.
    """

    plan: Divided | None
    bound_s: float
    shape: Shape | None = None
    rows: FloatArray | None = None
    work: float = 0.0
    programs: int = 0
    variables: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task to solve, with what is known.

    Attributes:
        task: what to solve.
        limit_s: step to beat.
        chains: rows known for its shape.
        effort: deterministic seconds at most.
        clock: wall-clock time that is left.
    """

    task: Task
    limit_s: float
    chains: Chains | None
    effort: float
    clock: Clock = ENDLESS


def tasks_of(context: Context, families: Families, freedom: Freedom, beat_s: float) -> list[Task]:
    """All tasks with a plan that could fit, by bound; bounds are taken no further than a step to beat."""
    batch, key = families.batch, families.key
    divided = dividable(batch) & freedom.layers
    least = least_step_s(context, batch, key, freedom.modes, beat_s)
    counts = np.full(len(batch), ALL_LAYERS)
    tasks = []
    for at, mode in enumerate(freedom.modes):
        if mode or not freedom.recompute:
            tasks += _grouped(families, mode, np.where(divided, least[at], np.inf), counts)
    if freedom.recompute:
        some, counts = least_partial_s(context, batch, key, beat_s)
        none = least[freedom.modes.index(0)] if 0 in freedom.modes else np.full(len(batch), np.inf)
        counts = np.where(np.isfinite(none), 0, counts)
        some = np.where(divided, np.minimum(some, none), np.where(batch.pp == 1, some, np.inf))
        tasks += _grouped(families, PARTIAL, some, counts)
    return sorted(tasks, key=lambda task: (task.bound_s, task.members, task.mode))


def _grouped(families: Families, mode: int, least: FloatArray, counts: IntArray) -> list[Task]:
    """Families that could fit as tasks: those of one pipeline together."""
    some = np.flatnonzero(np.isfinite(least))
    if len(some) == 0:
        return []
    batch = families.batch.take(some)
    _, group = distinct(families.key[some], batch.pp, batch.vpp, batch.schedule, batch.micro_batches, batch.dp)
    order = np.argsort(group, kind="stable")
    made = []
    for members in np.split(some[order], np.flatnonzero(np.diff(group[order])) + 1):
        made.append(
            Task(
                members=tuple(members.tolist()),
                mode=mode,
                least=int(counts[members].min()),
                bound_s=float(least[members].min()),
            )
        )
    return made


def apart(task: Task) -> list[Task]:
    """One task for each of its families."""
    return [
        Task(members=(member,), mode=task.mode, least=task.least, bound_s=task.bound_s, tries=task.tries)
        for member in task.members
    ]


def shape_of_task(families: Families, task: Task) -> Shape | None:
    """Shape of a task's pipeline; None without one."""
    plan = families.batch.take(np.array(task.members[:1]))
    return shape_of(plan) if int(plan.pp[0]) > 1 else None


def solve_task(context: Context, families: Families, job: Job) -> Solution:
    """Solves one task."""
    at = np.array(job.task.members)
    plans, key, rows = families.batch.take(at), families.key[at], families.rows[at]
    if int(plans.pp[0]) == 1:
        found = [_single_stage(context, plans.take(at), key[at], int(rows[at[0]]), job) for at in np.arange(len(at))[:, None]]
        return min(found, key=lambda solution: solution.bound_s)
    if job.task.mode != PARTIAL:
        return _division(context, _recomputing(plans, job.task.mode, ALL_LAYERS), key, rows, job)
    least = _recomputing(plans, FULL if job.task.least else 0, job.task.least or ALL_LAYERS)
    both = PlanBatch.joined((least, _recomputing(plans, FULL, ALL_LAYERS)))
    relaxed = _division(context, both, np.tile(key, 2), np.tile(rows, 2), job)
    if relaxed.bound_s >= job.limit_s or len(at) > 1 or relaxed.work >= job.effort or job.clock.expired:
        return relaxed
    best = job.limit_s if relaxed.plan is None else relaxed.plan.step_s
    chains = job.chains
    if relaxed.rows is not None and relaxed.rows.size:
        chains = chains.with_rows(relaxed.rows) if chains else Chains(counts=relaxed.rows)
    rest = replace(job, limit_s=best, chains=chains, effort=job.effort - relaxed.work)
    counted = _counts(context, plans, key, rows, rest)
    bound = max(relaxed.bound_s, counted.bound_s)
    return replace(_joined(relaxed, counted), bound_s=bound)


def _recomputing(plans: PlanBatch, mode: int, layers: int) -> PlanBatch:
    count = len(plans)
    return replace(plans, recompute=np.full(count, mode), recompute_layers=np.full(count, layers))


def _division(context: Context, plans: PlanBatch, key: IntArray, rows: IntArray, job: Job) -> Solution:
    """The best division of some plans of one pipeline."""
    tied = float(tied_s(context, plans, key).min())
    found = best_division(context, plans, key, job.limit_s, tied_s=tied, chains=job.chains, effort=job.effort, clock=job.clock)
    made = None
    if found.chunks is not None:
        which = found.which
        recompute, layers = int(plans.recompute[which]), int(plans.recompute_layers[which])
        made = Divided(
            row=int(rows[which]), recompute=recompute, recompute_layers=layers, chunks=found.chunks, step_s=found.step_s
        )
    return Solution(
        plan=made,
        bound_s=max(found.bound_s, job.task.bound_s),
        shape=shape_of(plans),
        rows=found.rows,
        work=found.work,
        programs=found.programs,
        variables=found.variables,
    )


def _counts(context: Context, plan: PlanBatch, key: IntArray, rows: IntArray, job: Job) -> Solution:
    """Every count of recomputed layers that could beat the limit."""
    vpp, task = int(plan.vpp[0]), job.task
    counts = np.arange(-(-task.least // vpp) * vpp, context.problem.graph.layers, vpp)
    batch = plan.take(np.zeros(len(counts), dtype=np.int64))
    keys = np.repeat(key, len(counts))
    layers = (layers_of(context, batch, keys, 0)[0], layers_of(context, batch, keys, FULL)[0])
    tied = float(tied_s(context, plan, key)[0])
    least = np.maximum(tied + least_with_s(context, batch, layers, counts, job.limit_s - tied), task.bound_s)
    best, limit, bound = Solution(plan=None, bound_s=np.inf, work=COUNTING), job.limit_s, np.inf
    for count, own in zip(counts.tolist(), least.tolist(), strict=True):
        beyond = count > most_layers(context, plan, key, limit)
        if own >= limit or beyond or best.work >= job.effort or job.clock.expired:
            bound = min(bound, limit if beyond else own)
            break
        one = replace(job, limit_s=limit, effort=job.effort - best.work)
        some = _recomputing(plan, FULL, count) if count else _recomputing(plan, 0, ALL_LAYERS)
        made = _division(context, some, key, rows, one)
        bound = min(bound, max(made.bound_s, own))
        limit = min(limit, made.plan.step_s) if made.plan else limit
        best = _joined(best, made)
    return replace(best, bound_s=min(bound, limit))


def _joined(one: Solution, other: Solution) -> Solution:
    """Two solutions of one task: the better plan, the rows of the later, the work of both."""
    kept = other.rows if other.rows is not None and other.rows.size else one.rows
    return Solution(
        plan=other.plan or one.plan,
        bound_s=min(one.bound_s, other.bound_s),
        shape=other.shape,
        rows=kept,
        work=one.work + other.work,
        programs=one.programs + other.programs,
        variables=max(one.variables, other.variables),
    )


def _single_stage(context: Context, plan: PlanBatch, key: IntArray, row: int, job: Job) -> Solution:
    """All counts of recomputed layers of a plan without a pipeline."""
    layers = context.problem.graph.layers
    counts = np.arange(job.task.least, layers)
    if len(counts) == 0:
        return Solution(plan=None, bound_s=job.limit_s)
    batch = plan.take(np.zeros(len(counts), dtype=np.int64))
    batch = replace(batch, recompute=np.full(len(counts), FULL), recompute_layers=counts, split=np.zeros_like(counts))
    table = fold(context.problem.graph, [Split(chunks=(layers,), pp=1, vpp=1)])
    made = price(replace(context, splits=table, uneven={}), batch, np.repeat(key, len(counts)), exact=True)
    steps = np.where(made.fits, made.step_s, np.inf)
    best = int(steps.argmin())
    if not steps[best] < job.limit_s:
        return Solution(plan=None, bound_s=job.limit_s, work=1e-5 * len(counts))
    plan_ = Divided(row=row, recompute=FULL, recompute_layers=int(counts[best]), chunks=(layers,), step_s=float(steps[best]))
    return Solution(plan=plan_, bound_s=float(steps[best]), work=1e-5 * len(counts))
