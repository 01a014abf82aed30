"""Memory of stages by component, at the fullest moment of their most loaded rank, as the driver reports it.

    activations   in-flight micro-batches · saved bytes + what was recomputed of the layer whose backward pass runs
    logits        loss buffers of one micro-batch (of all where the schedule keeps them; of one piece where the loss is cut),
                  and the gradient of those whose weight gradient the schedule puts off
    buffers       gathered parameters or gradient buckets + gradients of activations of the layer whose backward pass runs and,
                  where they are reduced at once, of its parameters; or what a loss in pieces adds up (`losses`)
                  + what the dispatcher of tokens registers (`routed.buffer_bytes`)
                  + gradients that stand in for those of fused weights, or of weights as they are made (`standins`, `ends`)
                  + what a pipeline holds to hand over (`handover`) + workspaces of products (`workspaces`)
                  + what the update takes for its time
    reserve       driver context + communicators + allocator slack · (all of the above) + margin
    total         parameters + gradients + optimizer + activations + logits + buffers + reserve

Saved bytes under a recompute mode m that covers a share φ of a stage's layers: s_none + φ·(s_m − s_none).
The parts are those of the fullest of six instants (`instants`): the loss, the head's backward pass, the reduction of its
gradients, a layer's backward pass, the embedding's, the update.
What is offloaded to the host leaves its part (`offload`).
`meters` gives the three readings: allocated (tensors), reserved (with allocator slack), device (with context).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.handover import handover
from shardwright.planner.cost.instants import Flight, Stage, instants
from shardwright.planner.cost.losses import logits_alive
from shardwright.planner.cost.offload import activations_left, relieved
from shardwright.planner.cost.states import StateTables
from shardwright.planner.cost.work import StageWork
from shardwright.planner.plans import RECOMPUTE_MODES, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULES

FULL = RECOMPUTE_MODES.index("full")
PARTS = (
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "logits_bytes",
    "buffers_bytes",
    "reserve_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of each part, their sum, and bytes in host memory, of one rank: whole numbers, [plans, runs]."""

    parameters_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    activations_bytes: FloatArray
    logits_bytes: FloatArray
    buffers_bytes: FloatArray
    reserve_bytes: FloatArray
    total_bytes: FloatArray
    host_bytes: FloatArray


def recomputed_share(batch: PlanBatch, layers: FloatArray) -> FloatArray:
    """Share φ of each stage's layers that is recomputed, [plans, runs]."""
    limit = np.where(batch.recompute == FULL, batch.recompute_layers, 0)[:, None]
    partial = np.minimum(limit, layers) / np.maximum(layers, 1.0)
    return np.where((batch.recompute == FULL)[:, None], partial, 1.0 * (batch.recompute > 0)[:, None])


def stage_memory(
    batch: PlanBatch,
    work: StageWork,
    row: IntArray,
    state: StateTables,
    state_row: IntArray,
    ends: tuple[IntArray, IntArray],
    problem: Problem,
) -> StageMemory:
    """Memory of the fullest rank of every run (its first or its last: in flight only falls, or only grows, with the rank).

    Args:
        batch: plans.
        work: work of stages.
        row: each plan's row of it.
        state: states of stages.
        state_row: each plan's row of them.
        ends: first and last rank of each run, [plans, runs].
        problem: constants of the stack.
    """
    layers, saved = work.layers[row], saved_of(batch, work, row)
    stage, flight = Stage(work=work, row=row, state=state, state_row=state_row), _in_flight(batch, ends)
    handed = handover(batch, work.border_bytes[row], flight.alive, ends, problem.stack)
    recomputed = recomputed_share(batch, layers) > 0
    found = instants(batch, stage, flight, handed, recomputed, problem)
    states = {f"{part}_bytes": stage.of_state(f"{part}_bytes") for part in ("parameters", "gradients", "optimizer")}
    host, kept = np.zeros_like(flight.alive), [instant.alive * saved for instant in found]
    if batch.offload.any():
        states, host = relieved(batch, states, state.updated[state_row], flight.alive * saved, problem)
        kept = [activations_left(batch, each, saved, layers) for each in kept]
    rows = [(each + i.live, i.logits, i.buffers) for each, i in zip(kept, found, strict=True)]
    fullest = np.argmax([sum(parts, start=np.zeros(1)) for parts in rows], axis=0)
    chosen = [np.choose(fullest, parts) for parts in zip(*rows, strict=True)]
    parts = states | dict(zip(("activations_bytes", "logits_bytes", "buffers_bytes"), chosen, strict=True))
    whole = {name: np.ceil(value) for name, value in parts.items()}
    allocated = sum(whole.values(), start=np.zeros(1))
    whole["reserve_bytes"] = np.ceil(_reserve(batch, problem)[:, None] + problem.stack.allocator_slack * allocated)
    return StageMemory(**whole, total_bytes=allocated + whole["reserve_bytes"], host_bytes=host)


def saved_of(batch: PlanBatch, work: StageWork, row: IntArray) -> FloatArray:
    """Activations that one micro-batch keeps on each stage, with what is recomputed left out; bytes [plans, runs]."""
    kept = work.saved_bytes[row, 0]
    return np.asarray(kept + recomputed_share(batch, work.layers[row]) * (work.saved_bytes[row, batch.recompute] - kept))


def meters(memory: StageMemory, problem: Problem) -> dict[str, FloatArray]:
    """The three readings of every stage, [plans, runs]."""
    allocated = memory.total_bytes - memory.reserve_bytes
    slack = np.ceil(problem.stack.allocator_slack * allocated)
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + slack,
        "device_bytes": memory.total_bytes - problem.memory_margin_bytes,
    }


def _in_flight(batch: PlanBatch, ends: tuple[IntArray, IntArray]) -> Flight:
    """What the schedule of each plan keeps on every run."""
    alive = np.zeros(ends[0].shape)
    logits, behind = np.ones((len(batch), 1)), np.zeros((len(batch), 1))
    for index, schedule in enumerate(SCHEDULES):
        rows = np.flatnonzero(batch.schedule == index)
        if len(rows) == 0:
            continue
        pp, vpp, count = (c[rows, None] for c in (batch.pp, batch.vpp, batch.micro_batches))
        alive[rows] = np.maximum(*(schedule.in_flight(pp, vpp, count, rank[rows]) for rank in ends))
        if schedule.keeps_all_logits:
            logits[rows] = count
        if schedule.logits_behind is not None:
            behind[rows] = schedule.logits_behind(pp, count)
    counted = logits_alive(batch.loss_chunks > 1, logits, behind)
    return Flight(alive=alive, logits=counted[0], behind=counted[1])


def _reserve(batch: PlanBatch, problem: Problem) -> FloatArray:
    """Driver context, communicators (one an axis in use and those beside them), and the margin asked for, [plans]."""
    groups = sum(
        ((degree > 1).astype(np.float64) for degree in (batch.tp, batch.cp, batch.pp, batch.ep, batch.dp)), start=np.zeros(1)
    )
    stack = problem.stack
    communicators = stack.communicators(groups, batch.pp > 1)
    return stack.context_bytes + stack.nccl_bytes_per_group * communicators + problem.memory_margin_bytes
