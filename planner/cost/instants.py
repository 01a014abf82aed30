"""Instants at which a stage can be fullest, and what of it is there then beside its states.

    loss        all logits of a micro-batch
    head        of the logits their gradient is left; the gradients of the head's weights and of what it read are there
    reduction   gradients of the head's weights beside the copy that is reduced (`ends`)
    layer       the backward pass of the largest layer, the logits gone
    embedding   the last of a backward pass: the activations of that chunk are gone, the embedding's gradients are made
    update      the optimizer's: no activations, nothing gathered; what it takes for its time

`instants` gives them, `memory.stage_memory` takes the fullest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.ends import ZERO_3, made_apart
from shardwright.planner.cost.handover import Handover
from shardwright.planner.cost.states import StateTables
from shardwright.planner.cost.work import StageWork
from shardwright.planner.offloading import fractions
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULES

INSTANTS = ("loss", "head", "reduction", "layer", "embedding", "update")
SPLITS_BACKWARD = np.array([schedule.splits_backward for schedule in SCHEDULES])
FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What a schedule keeps, [plans, runs].

    Attributes:
        alive: micro-batches whose activations are there.
        logits: those whose logits are; behind: those of whose logits the gradient alone is.
    """

    alive: FloatArray
    logits: FloatArray
    behind: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One instant, [plans, runs]: micro-batches whose activations are there, and bytes.

    Attributes:
        alive: micro-batches whose activations are there.
        live: activations made again.
        logits: logits and their gradients.
        buffers: all that is neither state nor activation.
    """

    alive: FloatArray
    live: FloatArray
    logits: FloatArray
    buffers: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Work and states of the runs of a batch, and each plan's rows of them."""

    work: StageWork
    row: IntArray
    state: StateTables
    state_row: IntArray

    def of_work(self, name: str) -> FloatArray:
        """A table of the work, [plans, runs]."""
        return np.asarray(getattr(self.work, name)[self.row])

    def of_state(self, name: str) -> FloatArray:
        """A table of the states, [plans, runs]."""
        return np.asarray(getattr(self.state, name)[self.state_row])


def instants(
    batch: PlanBatch, stage: Stage, flight: Flight, handed: Handover, recomputed: BoolArray, problem: Problem
) -> tuple[Instant, ...]:
    """The instants of `INSTANTS`, in their order.

    Args:
        batch: plans.
        stage: work and states.
        flight: what the schedule keeps.
        handed: what the pipeline holds between stages.
        recomputed: where layers are run again, [plans, runs].
        problem: constants of the stack.
    """
    width, each = problem.job.precision.activation_bytes, problem.stack.logit_saved_bytes
    logits, none = stage.of_work("logits"), np.zeros_like(flight.alive)
    behind = width * flight.behind
    later = logits * (each * (flight.logits - 1.0) + behind)
    whole = np.where(batch.zero[:, None] < ZERO_3, 1.0, 0.0)
    always = stage.of_work("dispatch_bytes") + stage.of_work("workspace_bytes") + handed.always
    always = always + whole * stage.of_work("stand_in_bytes")
    passing = always + handed.passing + stage.of_state("buffers_bytes")
    uncut = 1.0 * (batch.loss_chunks == 1)[:, None]
    head = stage.of_work("head_gradients") + uncut * stage.of_state("head_gradient_bytes")
    layer = stage.of_work("backward_bytes") + stage.of_state("reducing_bytes") + stage.of_state("kept_gradient_bytes")
    layer = layer + whole * made_apart(batch, problem) * stage.of_work("made_bytes")
    first = stage.of_state("embedding_gradient_bytes")
    gone = np.where(SPLITS_BACKWARD[batch.schedule], 0.0, 1.0 / batch.vpp)[:, None]
    after = np.where(first > 0, np.maximum(flight.alive - gone, 0.0), 0.0)
    update = always + whole * stage.of_state("buffers_bytes") + _update_bytes(batch, stage, problem)
    live = np.where(recomputed, stage.work.live_bytes[stage.row, batch.recompute], 0.0)
    rows = (
        (flight.alive, none, logits * (each * flight.logits + behind), passing + stage.of_work("beside_loss")),
        (flight.alive, none, later + width * logits, passing + head),
        (flight.alive, none, later, passing + head + stage.of_work("beside_loss") + stage.of_state("head_reduced_bytes")),
        (flight.alive, live, later, passing + layer),
        (after, none, later, passing + stage.of_work("border_bytes") + first),
        (none, none, none, update),
    )
    return tuple(Instant(alive=a, live=b, logits=c, buffers=d) for a, b, c, d in rows)


def _update_bytes(batch: PlanBatch, stage: Stage, problem: Problem) -> FloatArray:
    """What the update takes for its time of the states that are on the device, [plans, runs]."""
    stack = problem.stack
    cast = FP32 if stack.casts_gradients and problem.job.grad_bytes < FP32 else 0
    there = 1.0 - fractions(batch.offload, "optimizer")[:, None]
    return np.asarray((stack.update_bytes + cast) * there * stage.of_state("updated"))
