"""One plan's step, operation by operation: what pictures and traces of a pipeline are drawn from.

    step_timeline(problem, degrees) -> StepTimeline

The times are those `cost.pricing` prices the plan with, run through the event simulator of its schedule, so that

    predicted.step_time_s = Timeline.step_s + tied_s        `StepTimeline.step_s`

with tied_s the sum of the gradients of tied embeddings, between the first and the last stage after all updates. Exposed
exchange is part of the passes; `PassParts` says how much of each. A plan without pipeline is one stage. There is no timeline
where the order of operations is not known (interleaved micro-batches that do not fill their groups; `missing` says so).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.errors import InvalidValueError
from shardwright.planner.cost.context import Context, make_context
from shardwright.planner.cost.memory import FULL, recomputed_share
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.operators import LAYER_AXES
from shardwright.planner.cost.pipelines import EXPERTS, chunks_of, has_order, hidden_exchange, passes
from shardwright.planner.cost.pricing import Rest, rest_of
from shardwright.planner.cost.sends import send_s, tied_s
from shardwright.planner.cost.sharing import shared_rows
from shardwright.planner.cost.stages import fold, fold_chunks
from shardwright.planner.cost.work import stage_work
from shardwright.planner.plans import Degrees, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.schedules.shape import Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timeline import Timeline
from shardwright.planner.settling import settle

AXES = (*LAYER_AXES, "pp")
"""Axes whose exposed exchange is part of a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassParts:
    """Exposed exchange inside the passes of one micro-batch, seconds by axis (`AXES`), [stages, axes].

    Attributes:
        forward_s, backward_s: of the whole pass.
    """

    forward_s: FloatArray
    backward_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TailParts:
    """What ranks do after their last pass, seconds, one number a rank.

    Attributes:
        data_s: exposed exchange of gradients and parameters.
        uneven_s: waiting for the rank whose documents take the most attention.
        update_s: of the optimizer.
    """

    data_s: tuple[float, ...]
    uneven_s: tuple[float, ...]
    update_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """A step.

    Attributes:
        timeline: what each rank does when.
        passes: exposed exchange inside passes.
        tails: what follows them.
        tied_s: exchange of tied embeddings after all that.
    """

    timeline: Timeline
    passes: PassParts
    tails: TailParts
    tied_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the step; equals `predicted.step_time_s` up to rounding."""
        return self.timeline.step_s + self.tied_s

    def idle(self, rank: int) -> float:
        """Share of the step in which a rank does nothing."""
        return 1.0 - (self.timeline.busy_s(rank) + self.timeline.tail_s[rank]) / self.step_s


def missing(shape: Shape) -> str | None:
    """Why there is no timeline of such a pipeline; None where there is one."""
    if shape.pp == 1 or has_order(shape):
        return None
    return f"{shape.micro_batches} micro-batches do not fill groups of {shape.pp}: the order of operations is not known"


def step_timeline(problem: Problem, degrees: Degrees) -> StepTimeline:
    """Simulates the step of one plan.

    Args:
        problem: model, cluster and batch.
        degrees: the plan.

    Raises:
        InvalidValueError: its degrees do not multiply up, or the order of operations is not known.
    """
    settled = settle(problem, degrees)
    if settled.row is None or settled.split is None:
        raise InvalidValueError("the degrees of this plan do not multiply up", hint="see the violations that `estimate` lists")
    batch = PlanBatch.stack([settled.row])
    shape = shape_of(batch)
    if (why := missing(shape)) is not None:
        raise InvalidValueError(why, hint="choose micro-batches in multiples of pp, or another schedule")
    context, key = make_context(
        problem, batch, fold(problem.graph, [settled.split], every_rank=True, areas=problem.areas), network_of(problem)
    )
    return _simulated(context, batch, key, shape)


def shape_of(batch: PlanBatch) -> Shape:
    """What fixes the order of operations of the first plan of a batch."""
    pp, vpp, count = (int(column[0]) for column in (batch.pp, batch.vpp, batch.micro_batches))
    return Shape(schedule=SCHEDULE_IDS[int(batch.schedule[0])], pp=pp, vpp=vpp, micro_batches=count)


def _simulated(context: Context, batch: PlanBatch, key: IntArray, shape: Shape) -> StepTimeline:
    problem = context.problem
    runs = int(context.splits.runs[batch.split].max())
    shared = shared_rows(context, batch, key, runs)
    share, hidden = recomputed_share(batch, shared.work.layers[shared.row]), hidden_exchange(batch, problem.stack)
    rest = rest_of(context, batch, shared, passes(shared.work, shared.row, share, batch, hidden))
    sends = send_s(context, batch, key)
    times = chunks_of(shape, batch, key, context.tables, context.splits, problem, sends, rest.total_s)
    return StepTimeline(
        timeline=simulate(order_of(shape), times),
        passes=_pass_parts(context, batch, key, share, (hidden, sends)),
        tails=_tail_parts(rest),
        tied_s=float(tied_s(context, batch, key)[0]),
    )


def _pass_parts(
    context: Context, batch: PlanBatch, key: IntArray, share: FloatArray, beside: tuple[FloatArray, FloatArray]
) -> PassParts:
    hidden, sends = float(beside[0][0]), float(beside[1][0])
    split = context.splits.splits[int(batch.split[0])]
    chunks = fold_chunks(context.problem.graph, [split], context.problem.areas)
    work = stage_work(key, np.zeros(1, dtype=np.int64), context.tables, chunks, len(split.chunks))
    again = (share[0, split.ranks] * (batch.recompute[0] == FULL))[:, None] * work.again_exposed_s[0]
    kept = np.ones(len(LAYER_AXES))
    kept[EXPERTS] -= hidden
    send = np.full((len(split.chunks), 1), sends / split.vpp)
    return PassParts(
        forward_s=np.hstack((work.exposed_forward_s[0] * kept, send)),
        backward_s=np.hstack((work.exposed_backward_s[0] * kept + again, send)),
    )


def _tail_parts(rest: Rest) -> TailParts:
    return TailParts(data_s=_row(rest.data_s), uneven_s=_row(rest.uneven_s), update_s=_row(rest.update_s))


def _row(column: FloatArray) -> tuple[float, ...]:
    values: Sequence[float] = column[0].tolist()
    return tuple(values)
