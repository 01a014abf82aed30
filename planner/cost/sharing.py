"""Rows of work and states that the plans of a batch share: computed once, gathered by each plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.pipelines import (
    EXPERTS,
)
from shardwright.planner.cost.states import StateTables, held, states
from shardwright.planner.cost.work import StageWork, stage_work
from shardwright.planner.plans import FloatArray, IntArray, PlanBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Rows of work and states that the plans of a batch share, and each plan's rows."""

    work: StageWork
    row: IntArray
    state: StateTables
    state_row: IntArray


def shared_rows(context: Context, batch: PlanBatch, key: IntArray, runs: int) -> Shared:
    """Distinct rows of work (by key and split) and of states (by what shards and splits parameters)."""
    first, row = distinct(key, batch.split)
    work = stage_work(key[first], batch.split[first], context.tables, context.splits, runs)
    single = (batch.micro_batches == 1).astype(np.int64)
    columns = (batch.tp, batch.cp, batch.ep, batch.etp, batch.split, batch.dp, batch.dp_replicate, batch.zero, single)
    one, state_row = distinct(*columns)
    some = batch.take(one)
    own = held(some, key[one], context.tables, context.splits, runs)
    state = states(some, own, context.problem, context.grounds, context.splits.standing(some.split, runs))
    return Shared(work=work, row=row, state=state, state_row=state_row)


def expert_exchange_s(shared: Shared) -> FloatArray:
    """Exposed expert exchange of one micro-batch, both ways, [plans, runs]."""
    work = shared.work
    return np.asarray((work.exposed_forward_s + work.exposed_backward_s)[shared.row, :, EXPERTS])
