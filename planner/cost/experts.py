"""Memory traffic that a stack adds around the grouped products of experts because it does not fuse it.

For rows of h values each, in 16 bits, forward and backward:

    bias of the second product     b·p is written, read and added, and the pieces of all experts are joined:   12·h, 16·h bytes
    padding below 16 bits          rows are copied to lengths that products can take, and back after them:      8·h,  8·h bytes

A dispatcher that writes rows where the products read them (HybridEP) pads them at once. Source: NVIDIA/Megatron-LM,
transformer/moe/experts.py (TEGroupedMLP: `_apply_bias` since 0.15, before which grouped experts have no biases; `fp8_padding`
and `fp8_unpadding`); counted.
"""

from __future__ import annotations

import numpy as np

from shardwright.models.dtypes import Precision
from shardwright.models.graph import Operator, OperatorKind
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.plans import HYBRID_EP, FloatArray
from shardwright.planner.stacks import StackProfile

BIAS_BYTES = (12.0, 16.0)
PADDING_BYTES = (8.0, 8.0)
"""Bytes a value of a row, forward and backward."""


def added_bytes(
    operator: Operator, sizes: LocalSizes, stack: StackProfile, precision: Precision
) -> tuple[FloatArray, FloatArray] | None:
    """Bytes that a grouped product moves beside itself, forward and backward, [keys]; None where there are none."""
    if operator.kind is not OperatorKind.GROUPED_GEMM or stack.fused_experts or operator.outputs[0].dims[-1] != "hidden":
        return None
    values = sizes.product(operator.outputs[0].dims)
    biased = any(len(parameter.dims) == len(operator.outputs[0].dims) for parameter in operator.parameters)
    low = precision.gemm_input_bytes < precision.activation_bytes and operator.quantizable
    padded = np.where(sizes.dispatched_by(HYBRID_EP), 0.0, float(low))
    forward, backward = (biased * b + padded * p for b, p in zip(BIAS_BYTES, PADDING_BYTES, strict=True))
    return values * forward, values * backward
