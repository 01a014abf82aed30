"""What there is to solve: families of a scan, each in one recompute mode, with the bound of `bounds`.

A family with a pipeline is solved by its program (`candidate`). Where some layers of each stage may be recomputed, every count k
that could beat the best is a program of its own, in the order of k: more recomputing never makes a bound smaller, so the first
count whose own bound is too large ends it. Without a pipeline, all counts are priced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.planner.cost.memory import FULL
from shardwright.planner.cost.pricing import Context, price, tied_s
from shardwright.planner.cost.stages import Split, fold
from shardwright.planner.plans import ALL_LAYERS, FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.search.stages.bounds import Layers, layers_of, least_partial_s, least_step_s
from shardwright.planner.search.stages.candidate import best_division, shape_of
from shardwright.planner.search.stages.freedom import PARTIAL, Freedom, dividable
from shardwright.planner.search.stages.rows import Chains


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """One plan of each family, its operator key, and its row in the scan."""

    batch: PlanBatch
    key: IntArray
    rows: IntArray


@dataclass(slots=True, kw_only=True)
class Task:
    """A family in one recompute mode.

    Attributes:
        family: index of it.
        mode: recompute choice; `PARTIAL` for some layers of each stage.
        least: the least count of layers recomputed that could fit, under `PARTIAL`.
        bound_s: no plan of it takes less.
        tries: how often it was solved.
    """

    family: int
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
    """

    task: Task
    limit_s: float
    chains: Chains | None
    effort: float


def tasks_of(context: Context, families: Families, freedom: Freedom) -> list[Task]:
    """All tasks with a plan that could fit, by bound."""
    batch, key = families.batch, families.key
    divided = dividable(batch) & freedom.layers
    least = least_step_s(context, batch, key, freedom.modes)
    tasks = [
        Task(family=int(family), mode=freedom.modes[at], least=ALL_LAYERS, bound_s=float(least[at, family]))
        for at, family in zip(*np.nonzero(np.isfinite(least) & divided), strict=True)
    ]
    if freedom.recompute:
        partial, count = least_partial_s(context, batch, key)
        tasks += [
            Task(family=int(family), mode=PARTIAL, least=int(count[family]), bound_s=float(partial[family]))
            for family in np.flatnonzero(np.isfinite(partial) & (divided | (batch.pp == 1)))
        ]
    return sorted(tasks, key=lambda task: (task.bound_s, task.family, task.mode))


def shape_of_task(families: Families, task: Task) -> Shape | None:
    """Shape of a task's pipeline; None without one."""
    plan = families.batch.take(np.array([task.family]))
    return shape_of(plan) if int(plan.pp[0]) > 1 else None


def solve_task(context: Context, families: Families, job: Job) -> Solution:
    """Solves one task."""
    at = np.array([job.task.family])
    plan, key = families.batch.take(at), families.key[at]
    row = int(families.rows[job.task.family])
    if int(plan.pp[0]) == 1:
        return _single_stage(context, plan, key, row, job)
    if job.task.mode != PARTIAL:
        return _division(context, _recomputing(plan, job.task.mode, ALL_LAYERS), key, row, job, job.effort)
    return _counts(context, plan, key, row, job)


def _recomputing(plan: PlanBatch, mode: int, layers: int) -> PlanBatch:
    return replace(plan, recompute=np.array([mode]), recompute_layers=np.array([layers]))


def _division(context: Context, plan: PlanBatch, key: IntArray, row: int, job: Job, effort: float) -> Solution:
    """The best division of one plan."""
    tied = float(tied_s(context, plan, key)[0])
    found = best_division(context, plan, key, job.limit_s, tied_s=tied, chains=job.chains, effort=effort)
    made = None
    if found.chunks is not None:
        recompute, layers = int(plan.recompute[0]), int(plan.recompute_layers[0])
        made = Divided(row=row, recompute=recompute, recompute_layers=layers, chunks=found.chunks, step_s=found.step_s)
    return Solution(
        plan=made,
        bound_s=max(found.bound_s, job.task.bound_s),
        shape=shape_of(plan),
        rows=found.rows,
        work=found.work,
        programs=found.programs,
        variables=found.variables,
    )


def _counts(context: Context, plan: PlanBatch, key: IntArray, row: int, job: Job) -> Solution:
    """Every count of recomputed layers that could beat the limit."""
    none, full = layers_of(context, plan, key, 0), layers_of(context, plan, key, FULL)
    vpp, task = int(plan.vpp[0]), job.task
    best = Solution(plan=None, bound_s=np.inf)
    limit, bound = job.limit_s, np.inf
    for count in range(-(-task.least // vpp) * vpp, context.problem.graph.layers, vpp):
        own = max(_least_with(context, plan, none, full, count), task.bound_s)
        if own >= limit or best.work >= job.effort:
            bound = min(bound, max(own, 0.0))
            break
        one = replace(job, limit_s=limit, chains=job.chains)
        made = _division(context, _recomputing(plan, FULL, count), key, row, one, job.effort - best.work)
        bound = min(bound, max(made.bound_s, own))
        limit = min(limit, made.plan.step_s) if made.plan else limit
        best = _joined(best, made)
    return replace(best, bound_s=min(bound, limit))


def _joined(one: Solution, other: Solution) -> Solution:
    """Two solutions of one task: the better plan, work and rows of both."""
    rows = other.rows if one.rows is None or not one.rows.size else one.rows
    if one.rows is not None and other.rows is not None and one.rows.size and other.rows.size:
        rows = np.concatenate((one.rows, other.rows))
    return Solution(
        plan=other.plan or one.plan,
        bound_s=min(one.bound_s, other.bound_s),
        shape=other.shape,
        rows=rows,
        work=one.work + other.work,
        programs=one.programs + other.programs,
        variables=max(one.variables, other.variables),
    )


def _least_with(context: Context, plan: PlanBatch, none: Layers, full: Layers, count: int) -> float:
    """No division takes less with so many layers recomputed on each stage."""
    longest = -(-context.problem.graph.layers // int(plan.pp[0]))
    again = max(float(full.layer_s[0] - none.layer_s[0]), 0.0)
    return float(plan.micro_batches[0] * (longest * none.layer_s[0] + min(count, longest) * again))


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
    steps = np.where(made.peak_bytes <= context.problem.device.memory_bytes, made.step_s, np.inf)
    best = int(steps.argmin())
    if not steps[best] < job.limit_s:
        return Solution(plan=None, bound_s=job.limit_s, work=1e-5 * len(counts))
    plan_ = Divided(row=row, recompute=FULL, recompute_layers=int(counts[best]), chunks=(layers,), step_s=float(steps[best]))
    return Solution(plan=plan_, bound_s=float(steps[best]), work=1e-5 * len(counts))
