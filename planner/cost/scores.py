"""Scores of attention that is not fused: where the stack's softmax kernel serves them, and what runs where it does not.

    served      heads · batch on a rank a multiple of the stack's `softmax_heads_multiple`, and at most `softmax_most_keys` keys
    else        cast to fp32, scale, mask, softmax and cast back, each an operator of its own (`EAGER_SOFTMAX_*`)

Bytes a score of 16 bits, dropout (5 both ways) included:

    forward     cast 6, scale 8, mask in place 9, softmax 8, cast 6
    backward    cast 6, softmax 20 (it reads its two operands twice), mask 17, scale 8, cast 6

Source: NVIDIA/Megatron-LM v2.5, model/fused_softmax.py (`custom_kernel_constraint`, and its other branch).
"""

from __future__ import annotations

import numpy as np

from shardwright.models.graph import AttentionShape, LayerGraph
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.plans import BoolArray, FloatArray
from shardwright.planner.stacks import StackProfile

EAGER_SOFTMAX_FORWARD, EAGER_SOFTMAX_BACKWARD = 42.0, 62.0
EAGER_SOFTMAX_KERNELS = 4.0
"""Launches of a pass of softmax operator by operator over those of the one kernel."""


def served(shape: AttentionShape, sizes: LocalSizes, stack: StackProfile) -> BoolArray:
    """Where one kernel does mask and softmax of a core, [keys] or [1]."""
    batch = sizes.product(shape.rows, beside_tensor=True)
    heads = np.ceil(sizes.dim(shape.heads, beside_tensor=True) / sizes.head_split())
    whole = (batch * heads) % stack.softmax_heads_multiple == 0
    return np.asarray(whole & (sizes.whole(shape.keys) <= stack.softmax_most_keys))


def score_bytes(shape: AttentionShape, sizes: LocalSizes, stack: StackProfile) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Traffic of the passes over one score, forward and backward, and where they are operators of their own."""
    fused = served(shape, sizes, stack)
    forward = np.where(fused, stack.score_bytes_forward, EAGER_SOFTMAX_FORWARD)
    backward = np.where(fused, stack.score_bytes_backward, EAGER_SOFTMAX_BACKWARD)
    return forward, backward, ~fused | stack.eager_scores


def further_kernels(unit: LayerGraph, sizes: LocalSizes, stack: StackProfile) -> FloatArray:
    """Launches that a pass of a layer makes because no kernel serves its softmax, [keys] or [1]."""
    made = np.zeros(1)
    if stack.fused_attention:
        return made
    for operator in unit.operators:
        if operator.attention is not None:
            made = made + np.where(served(operator.attention, sizes, stack), 0.0, EAGER_SOFTMAX_KERNELS)
    return made
