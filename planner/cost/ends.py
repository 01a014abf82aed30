"""Gradients of embedding and head as their backward passes make them, before they join those that are held.

With w bytes of a parameter, g of a gradient as it is reduced, and E and H trained parameters of embedding and head on a rank
(U of both, what they share once):

    sharded      made w, copied to be reduced g (ZeRO 3; pytorch/pytorch, distributed/fsdp, foreach_reduce):
                 units of their own       head  (w + g)·H            embedding  (w + g)·E
                 one unit that stays      head  w·H, kept until the first layer is done; then  max(w·(E + H), (w + g)·U)
    whole        made w, then added to the gradient: w·H, w·E; nothing of a head whose product adds itself
                 (`stand_in_gradients` says what stands in), nor where what is made is the gradient itself: one
                 micro-batch, of the same type
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import BoolArray, FloatArray, PlanBatch
from shardwright.planner.problem import Problem

ZERO_3 = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EndGradients:
    """Bytes beside what is held, [plans, runs].

    Attributes:
        head: while the head's backward pass makes them.
        reduced: further, while they are reduced.
        kept: while the layers' backward passes run.
        embedding: when the embedding's are made, `kept` among them.
    """

    head: FloatArray
    reduced: FloatArray
    kept: FloatArray
    embedding: FloatArray


def made_apart(batch: PlanBatch, problem: Problem) -> BoolArray:
    """Where a gradient that is held whole is made apart from it and then added, [plans, 1]."""
    wider = problem.job.grad_bytes > problem.job.precision.parameter_bytes and not problem.stack.keeps_both_gradients
    return np.asarray(wider | (batch.micro_batches > 1))[:, None]


def end_gradients(
    batch: PlanBatch, trained: tuple[FloatArray, FloatArray, FloatArray], reduced: BoolArray, problem: Problem
) -> EndGradients:
    """Gradients of the ends that a rank holds for a time.

    Args:
        batch: plans.
        trained: parameters of the embedding, of the head, and of both together, on a rank, [plans, runs].
        reduced: where gradients are reduced after every micro-batch, [plans, 1].
        problem: precision and stack.
    """
    embedding, head, both = trained
    width, grad = problem.job.precision.parameter_bytes, problem.job.grad_bytes
    sharded, joined = reduced & (batch.zero[:, None] >= ZERO_3), problem.stack.keeps_ends_gathered
    apart = width * made_apart(batch, problem)
    own = 0.0 if problem.stack.adds_in_products(width) else apart
    last = np.maximum(width * (embedding + head), (width + grad) * both) if joined else (width + grad) * embedding
    return EndGradients(
        head=np.where(sharded, width, own) * head,
        reduced=np.where(sharded & (not joined), grad, 0.0) * head,
        kept=np.where(sharded & joined, width, 0.0) * head,
        embedding=np.where(sharded, last, apart * embedding),
    )
