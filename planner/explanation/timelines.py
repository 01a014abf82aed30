"""One step of a plan as its schedule's simulator runs it, every pass split into computing and what each axis adds.

    F = compute + Σ exposed exchange forward + send          B = compute + recomputed + Σ exposed exchange backward + send

of each chunk of layers, as `cost.pipelines.exact_ends` sums them; after its last pass a rank has its exposed data-parallel
exchange, its update, and what it waits for the longest documents, and when all are done the sum of tied embeddings takes
`tied_s`. So

    step_s of the simulation + tied_s = predicted.step_time_s

and on the stage that determines the step each track sums to its part of `time`, the rest of the step being the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.planner.cost.memory import FULL, recomputed_share
from shardwright.planner.cost.operators import LAYER_AXES
from shardwright.planner.cost.pipelines import EXPERTS, has_order, hidden_exchange, passes
from shardwright.planner.cost.pricing import rest_of, send_s, shared_rows, tied_s
from shardwright.planner.cost.stages import by_chunk, fold
from shardwright.planner.cost.work import stage_work
from shardwright.planner.estimation import degrees_of
from shardwright.planner.explanation.saved import Priced, priced
from shardwright.planner.plans import FloatArray
from shardwright.planner.problem import Problem, problem_from_inputs
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.schedules.shape import Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timeline import Timeline
from shardwright.planner.schedules.timing import chunk_times

TRACKS = ("compute", "tp", "cp", "ep", "pp")
"""What a pass consists of, in the order it is drawn."""

MOST_OPERATIONS = 2_000_000
"""Operations of a step that are simulated at most; 64 stages of 256 micro-batches have 32,768."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step.

    Attributes:
        made: what happened when.
        passes: seconds of each track of a pass, by phase, [chunks, tracks].
        exchange_s, update_s, waiting_s: of each rank after its last pass, in that order, [pp].
        tied_s: sum of tied embeddings between the first and the last rank, at the end.
        critical: rank that determines the step.
    """

    made: Timeline
    passes: Mapping[int, FloatArray]
    exchange_s: FloatArray
    update_s: FloatArray
    waiting_s: FloatArray
    tied_s: float
    critical: int

    @property
    def step_s(self) -> float:
        """The printed step."""
        return self.made.step_s + self.tied_s


def timeline_of(estimate: Mapping[str, Any]) -> StepTimeline:
    """The step of a priced plan with its inputs, as `estimate` makes it.

    Raises:
        InvalidValueError: the plan has no price.
        UnsupportedError: its schedule has no known order with so many micro-batches, or too many operations.
    """
    if estimate["predicted"] is None:
        raise InvalidValueError("the plan has no price, hence no step", where="--trace", hint="mend its violations first")
    problem = problem_from_inputs(estimate["inputs"])
    found = priced(problem, [degrees_of(estimate)])
    shape = _shape(found)
    return _simulated(problem, found, shape)


def _shape(found: Priced) -> Shape:
    batch = found.batch
    pp, vpp, count = (int(column[0]) for column in (batch.pp, batch.vpp, batch.micro_batches))
    shape = Shape(schedule=SCHEDULE_IDS[int(batch.schedule[0])], pp=pp, vpp=vpp, micro_batches=count)
    if not has_order(shape):
        message = f"no order of {shape.schedule} is known for {count} micro-batches on {pp} ranks"
        raise UnsupportedError(message, where="--trace", hint=f"give a multiple of {pp} micro-batches")
    if 3 * pp * vpp * count > MOST_OPERATIONS:
        message = f"a step of {pp} stages of {vpp} chunks and {count:,} micro-batches is too long to draw"
        raise UnsupportedError(message, where="--trace", hint="give a larger micro-batch, or a smaller global batch")
    return shape


def _simulated(problem: Problem, found: Priced, shape: Shape) -> StepTimeline:
    parts = _passes(problem, found, shape)
    tails = _tails(problem, found, shape.pp)
    seconds = {phase: tracks.sum(axis=1)[None, :] for phase, tracks in parts.items()}
    times = chunk_times(
        seconds[FORWARD],
        seconds[INPUT],
        seconds[WEIGHT],
        pp=shape.pp,
        tail_s=sum(tails, start=np.zeros(1))[None, :],
    )
    return StepTimeline(
        made=simulate(order_of(shape), times),
        passes=parts,
        exchange_s=tails[0],
        update_s=tails[1],
        waiting_s=tails[2],
        tied_s=float(tied_s(found.context, found.batch, found.key)[0]),
        critical=int(found.prices.critical[0]),
    )


def _tails(problem: Problem, found: Priced, pp: int) -> list[FloatArray]:
    """Exposed data-parallel exchange, update and waiting of each rank, [pp] each."""
    context, batch = found.context, found.batch
    shared = shared_rows(context, batch, found.key, pp)
    share = recomputed_share(batch, shared.work.layers[shared.row])
    alone = passes(shared.work, shared.row, share, batch, hidden_exchange(batch, problem.stack))
    rest = rest_of(context, batch, shared, alone)
    return [np.broadcast_to(part[0], (pp,)) for part in (rest.data_s, rest.update_s, rest.uneven_s)]


def _passes(problem: Problem, found: Priced, shape: Shape) -> dict[int, FloatArray]:
    """Seconds of each track, by phase, [chunks, tracks]."""
    context, batch = found.context, found.batch
    split = context.splits.splits[int(batch.split[0])]
    chunks = shape.pp * shape.vpp
    table = fold(problem.graph, by_chunk([split]), every_rank=True)
    work = stage_work(found.key, np.zeros(1, dtype=np.int64), context.tables, table, chunks)
    share = recomputed_share(batch, context.splits.layers[batch.split])[0][split.ranks]
    mode = int(batch.recompute[0])
    again = share * work.again_s[0, mode]
    again_exposed = (share * (mode == FULL))[:, None] * work.again_exposed_s[0]
    kept = np.ones(len(LAYER_AXES))
    kept[EXPERTS] -= float(hidden_exchange(batch, problem.stack)[0])
    send = np.full((chunks, 1), float(send_s(context, batch, found.key)[0]) / shape.vpp)
    forward = (work.compute_forward_s + work.host_forward_s)[0][:, None]
    backward = (work.compute_backward_s + work.host_backward_s)[0] + again
    weight = np.zeros((chunks, len(TRACKS)))
    weight[:, 0] = work.weight_s[0]
    whole = np.concatenate((backward[:, None], work.exposed_backward_s[0] * kept + again_exposed, send), axis=1)
    return {
        FORWARD: np.concatenate((forward, work.exposed_forward_s[0] * kept, send), axis=1),
        BACKWARD: whole,
        INPUT: whole - weight,
        WEIGHT: weight,
    }
