"""Memory of stages by component, at the fullest moment of their most loaded rank, as the driver reports it.

    activations   in-flight micro-batches · saved bytes + what was recomputed of the layer whose backward pass runs
    logits        loss buffers of one micro-batch (of all where the schedule keeps them; of one piece where the loss is cut),
                  and the gradient of those whose weight gradient the schedule puts off
    buffers       gathered parameters or gradient buckets + gradients of activations of the layer whose backward pass runs and,
                  where they are reduced at once, of its parameters; or what a loss in pieces adds up (`losses`)
                  + what the dispatcher of tokens registers (`routed.buffer_bytes`)
                  + gradients that stand in for those of fused weights (`standins`)
    reserve       driver context + communicators + allocator slack · (all of the above) + margin
    total         parameters + gradients + optimizer + activations + logits + buffers + reserve

Saved bytes under a recompute mode m that covers a share φ of a stage's layers: s_none + φ·(s_m − s_none).
A stage is fullest at its loss, in the backward pass of its head, when of the logits their gradient alone is left, or in that
of a layer, when the logits of that micro-batch are gone: the parts are those of the fullest instant.
What is offloaded to the host leaves its part (`offload.relieved`).
`meters` gives the three readings: allocated (tensors), reserved (with allocator slack), device (with context).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.losses import logits_alive
from shardwright.planner.cost.offload import relieved
from shardwright.planner.cost.states import StateTables
from shardwright.planner.cost.work import StageWork
from shardwright.planner.plans import RECOMPUTE_MODES, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULES

FULL = RECOMPUTE_MODES.index("full")
ZERO_3 = 3
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
    share, saved = recomputed_share(batch, work.layers[row]), saved_of(batch, work, row)
    alive, logits_alive, behind = _in_flight(batch, ends)
    reducing = state.reducing_bytes[state_row]
    logits, live, gradients = _fullest(batch, work, row, share, (logits_alive, behind), reducing, problem)
    standing = np.where(batch.zero[:, None] < ZERO_3, work.stand_in_bytes[row], 0.0)
    parts = {
        "parameters_bytes": state.parameters_bytes[state_row],
        "gradients_bytes": state.gradients_bytes[state_row],
        "optimizer_bytes": state.optimizer_bytes[state_row],
        "activations_bytes": alive * saved + live,
        "logits_bytes": logits,
        "buffers_bytes": state.buffers_bytes[state_row] + gradients + work.dispatch_bytes[row] + standing,
    }
    host = np.zeros_like(alive)
    if batch.offload.any():
        parts, host = relieved(batch, parts, state.updated[state_row], (saved, alive, work.layers[row]), problem)
    whole = {name: np.ceil(value) for name, value in parts.items()}
    allocated = sum(whole.values(), start=np.zeros(1))
    whole["reserve_bytes"] = np.ceil(_reserve(batch, problem)[:, None] + problem.stack.allocator_slack * allocated)
    return StageMemory(**whole, total_bytes=allocated + whole["reserve_bytes"], host_bytes=host)


def saved_of(batch: PlanBatch, work: StageWork, row: IntArray) -> FloatArray:
    """Activations that one micro-batch keeps on each stage, with what is recomputed left out; bytes [plans, runs]."""
    kept = work.saved_bytes[row, 0]
    return np.asarray(kept + recomputed_share(batch, work.layers[row]) * (work.saved_bytes[row, batch.recompute] - kept))


def _fullest(
    batch: PlanBatch,
    work: StageWork,
    row: IntArray,
    share: FloatArray,
    alive: tuple[FloatArray, FloatArray],
    reducing: FloatArray,
    problem: Problem,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Logits, recomputed activations, gradients (those of a layer with them) at the fullest instant, bytes [plans, runs]."""
    width = problem.job.precision.activation_bytes
    each, behind = problem.stack.logit_saved_bytes, width * alive[1]
    logits = work.logits[row]
    later = logits * (each * (alive[0] - 1.0) + behind)
    live = np.where(share > 0, work.live_bytes[row, batch.recompute], 0.0)
    none = np.zeros_like(later)
    instants = (
        (logits * (each * alive[0] + behind), none, work.beside_loss[row]),
        (later + width * logits, none, work.head_gradients[row]),
        (later, live, work.backward_bytes[row] + reducing),
    )
    fullest = np.argmax([sum(parts, start=none) for parts in instants], axis=0)
    chosen = (np.choose(fullest, parts) for parts in zip(*instants, strict=True))
    return next(chosen), next(chosen), next(chosen)


def meters(memory: StageMemory, problem: Problem) -> dict[str, FloatArray]:
    """The three readings of every stage, [plans, runs]."""
    allocated = memory.total_bytes - memory.reserve_bytes
    slack = np.ceil(problem.stack.allocator_slack * allocated)
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + slack,
        "device_bytes": memory.total_bytes - problem.memory_margin_bytes,
    }


def _in_flight(batch: PlanBatch, ends: tuple[IntArray, IntArray]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Micro-batches whose activations, whose logits, and of whose logits only the gradient is alive."""
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
    return alive, *logits_alive(batch.loss_chunks > 1, logits, behind)


def _reserve(batch: PlanBatch, problem: Problem) -> FloatArray:
    """Driver context, communicators (one an axis in use and those beside them), and the margin asked for, [plans]."""
    groups = sum(
        ((degree > 1).astype(np.float64) for degree in (batch.tp, batch.cp, batch.pp, batch.ep, batch.dp)), start=np.zeros(1)
    )
    stack = problem.stack
    communicators = stack.communicators(groups, batch.pp > 1)
    return stack.context_bytes + stack.nccl_bytes_per_group * communicators + problem.memory_margin_bytes
