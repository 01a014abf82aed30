"""When a pipeline is done: by chains of work for the plans of a scan, by the schedule's recurrence for those that are shown.

Rank i takes F_i, B_i (W_i of it the gradients of weights) for a micro-batch, and r_i for what follows its last pass (exposed
data-parallel exchange, update). The step ends when the last rank is done, each on its own: no rank waits for another between
its last pass and its update.

    chains      max over i of (max over k >= i of rows_k − Σ_{j<i} B_j / vpp + r_i)      for schedules that drain
                max over i of (rows_i + r_i)                                             for the others
    exact       `exact_step_s` over the chunks of every rank

For GPipe and 1F1B the chains are lengths of dependent work and never exceed the exact end; how close they are is measured by
benchmarks/schedule_accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.memory import FULL, recomputed_share
from shardwright.planner.cost.operators import LAYER_AXES, UnitTables
from shardwright.planner.cost.stages import Split, SplitTable, fold_chunks
from shardwright.planner.cost.work import StageWork, stage_work
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules import dualpipe_v
from shardwright.planner.schedules.base import StageTimes
from shardwright.planner.schedules.exact import exact_step_s
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES
from shardwright.planner.schedules.shape import Shape, shapes_of
from shardwright.planner.schedules.timing import ChunkTimes, chunk_times
from shardwright.planner.schedules.uneven import Repeating, repeating, uneven_factor
from shardwright.planner.stacks import StackProfile

LOOPED, PAIRED = SCHEDULE_IDS.index("interleaved-1f1b"), SCHEDULE_IDS.index("dualpipe-v")
EXPERTS = LAYER_AXES.index("ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of one micro-batch, [plans, runs] or [plans, chunks].

    Attributes:
        forward_s, backward_s: whole passes, recomputing and exposed exchange inside layers included.
        weight_s: of the backward pass, gradients of weights.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray

    def plus(self, seconds: FloatArray) -> Passes:
        """With as much more in every pass of a plan, [plans]."""
        more = seconds[:, None]
        return Passes(forward_s=self.forward_s + more, backward_s=self.backward_s + more, weight_s=self.weight_s)

    def within(self, present: BoolArray) -> Passes:
        """With nothing beyond the last run, [plans, runs]."""
        return Passes(**{name: np.where(present, getattr(self, name), 0.0) for name in Passes.__slots__})


def passes(work: StageWork, row: IntArray, share: FloatArray, batch: PlanBatch, hidden: FloatArray) -> Passes:
    """One micro-batch on every run or chunk, sends and data-parallel exchange apart.

    Args:
        work: work of runs or chunks.
        row: each plan's row of it.
        share: recomputed share of the layers, of the shape of the result.
        batch: plans.
        hidden: share of the exposed expert exchange that the schedule hides (`hidden_exchange`), [plans].
    """
    full = share * (batch.recompute == FULL)[:, None]
    forward = work.compute_forward_s + work.host_forward_s + work.exposed_forward_s.sum(axis=2)
    backward = work.compute_backward_s + work.host_backward_s + work.exposed_backward_s.sum(axis=2)
    again = share * work.again_s[row, batch.recompute] + full * work.again_exposed_s.sum(axis=2)[row]
    made = Passes(forward_s=forward[row], backward_s=backward[row] + again, weight_s=work.weight_s[row])
    if not hidden.any():
        return made
    saved = (hidden[:, None] * exposed[row, :, EXPERTS] for exposed in (work.exposed_forward_s, work.exposed_backward_s))
    return replace(made, forward_s=made.forward_s - next(saved), backward_s=made.backward_s - next(saved))


def hidden_exchange(batch: PlanBatch, stack: StackProfile) -> FloatArray:
    """Share of the exposed expert exchange that passes which run together hide: the stack's, in DualPipe-V, [plans]."""
    paired = (batch.schedule == PAIRED) & (batch.pp > 1)
    return np.where(paired, stack.dualpipe_ep_hidden * dualpipe_v.together(batch.pp, batch.micro_batches), 0.0)


def uneven_splits(splits: Sequence[Split]) -> dict[int, Repeating]:
    """Steps of the looped splits whose chunks differ, by place in the sequence."""
    return {
        index: _repeating(split.pp, split.vpp, split.chunks)
        for index, split in enumerate(splits)
        if split.vpp > 1 and not split.folded and min(split.chunks) != max(split.chunks)
    }


@lru_cache(maxsize=8192)
def _repeating(pp: int, vpp: int, chunks: tuple[int, ...]) -> Repeating:
    """Steps of one division; pricings of parts of a space, and the points of a sweep, have most divisions in common."""
    return repeating(pp, vpp, np.array([chunks], dtype=np.float64))[0]


def chain_ends(
    batch: PlanBatch, splits: SplitTable, uneven: Mapping[int, Repeating], one: Passes, rest_s: FloatArray
) -> FloatArray:
    """When the last rank is done, by chains, [plans].

    Args:
        batch: plans.
        splits: units of runs.
        uneven: what is known of looped splits whose chunks differ, by split.
        one: passes of each run, sends included; 0 beyond the last run.
        rest_s: what follows the last pass, [plans, runs].
    """
    runs = rest_s.shape[1]
    made = np.zeros(len(batch))
    for index, schedule in enumerate(SCHEDULES):
        rows = np.flatnonzero(batch.schedule == index)
        if len(rows) == 0:
            continue
        some = batch.take(rows)
        times = StageTimes(
            forward_s=one.forward_s[rows],
            backward_s=one.backward_s[rows],
            weight_s=one.weight_s[rows],
            multiplicity=splits.multiplicity[some.split, :runs],
            last_rank=splits.last_rank[some.split, :runs],
            pp=some.pp[:, None],
            vpp=some.vpp[:, None],
            micro_batches=some.micro_batches[:, None],
            stretch=_stretch(some, uneven) if index == LOOPED else None,
        )
        chains = np.where(times.multiplicity > 0, schedule.rows(times), 0.0)
        if schedule.drains:
            chains = np.maximum.accumulate(chains[:, ::-1], axis=1)[:, ::-1] - _ahead(times)
        made[rows] = np.where(times.multiplicity > 0, chains + rest_s[rows], 0.0).max(axis=1)
    return made


def _ahead(times: StageTimes) -> FloatArray:
    """How long before the first rank the first rank of each run is done, [plans, runs]."""
    weighted = times.backward_s * times.multiplicity
    return np.asarray((np.cumsum(weighted, axis=1) - weighted) / times.vpp)


def _stretch(batch: PlanBatch, uneven: Mapping[int, Repeating]) -> FloatArray:
    """What unequal chunks cost in looped schedules, [plans, 1]."""
    first, row = distinct(batch.split, batch.micro_batches)
    pairs = zip(batch.split[first].tolist(), batch.micro_batches[first].tolist(), strict=True)
    found = [uneven_factor(uneven[split], count) if split in uneven else 1.0 for split, count in pairs]
    return np.array(found)[row][:, None]


def has_order(shape: Shape) -> bool:
    """Whether the order of operations is known: interleaving needs whole groups of pp micro-batches."""
    looped = shape.schedule == SCHEDULE_IDS[LOOPED] and shape.vpp > 1
    return not looped or shape.micro_batches < shape.pp or shape.micro_batches % shape.pp == 0


def exact_ends(
    batch: PlanBatch,
    key: IntArray,
    tables: UnitTables,
    splits: SplitTable,
    problem: Problem,
    sends_s: FloatArray,
    rest_s: FloatArray,
) -> FloatArray:
    """When the last rank is done, by the schedule's recurrence, [plans]; not a number without a pipeline or an order of it.

    Args:
        batch: plans.
        key: operator key of each plan.
        tables: quantities of units.
        splits: units of runs.
        problem: model and stack.
        sends_s: exposed sends of a pass of a whole rank, [plans].
        rest_s: what follows the last pass, [plans, runs].
    """
    made = np.full(len(batch), np.nan)
    names = [SCHEDULE_IDS[index] for index in batch.schedule.tolist()]
    for shape, rows in shapes_of(names, batch.pp, batch.vpp, batch.micro_batches):
        if shape.pp > 1 and has_order(shape):
            times = chunks_of(shape, batch.take(rows), key[rows], tables, splits, problem, sends_s[rows], rest_s[rows])
            made[rows] = exact_step_s(shape, times)
    return made


def chunks_of(
    shape: Shape,
    some: PlanBatch,
    key: IntArray,
    tables: UnitTables,
    splits: SplitTable,
    problem: Problem,
    sends_s: FloatArray,
    rest_s: FloatArray,
) -> ChunkTimes:
    """Times of the chunks of plans of one shape; arguments as of `exact_ends`, of these plans alone."""
    used, own = np.unique(some.split, return_inverse=True)
    divisions = [splits.splits[index] for index in used]
    run = np.stack([_run_of_rank(splits, index) for index in used])[own]
    chunk_rank = divisions[0].ranks
    share = np.take_along_axis(recomputed_share(some, splits.layers[some.split]), run, axis=1)[:, chunk_rank]
    table = fold_chunks(problem.graph, divisions, problem.areas)
    first, row = distinct(key, own)
    work = stage_work(key[first], own[first], tables, table, shape.pp * shape.vpp)
    one = passes(work, row, share, some, hidden_exchange(some, problem.stack)).plus(sends_s / shape.vpp)
    return chunk_times(
        one.forward_s,
        one.backward_s - one.weight_s,
        one.weight_s,
        pp=shape.pp,
        tail_s=np.take_along_axis(rest_s, run, axis=1),
    )


def _run_of_rank(splits: SplitTable, index: int) -> IntArray:
    """Run that each rank of a split belongs to, [pp]."""
    last = splits.last_rank[index, : splits.runs[index]]
    return np.asarray(np.searchsorted(last, np.arange(splits.splits[index].pp)))
