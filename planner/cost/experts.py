"""Memory traffic that a stack adds around experts and rotations because it does not fuse it.

Bytes a value, forward and backward, of 16-bit tensors run operator by operator (torch autograd; counted):

    bias      of the second product, b·p: written, read and added, pieces of all experts joined; with probabilities in
              fp32, which DeepEP and HybridEP demand, all of it in fp32 and narrowed at the end       12, 16;  28, 40
    padding   below 16 bits rows are copied to lengths that products can take, and back                8,  8
    clamp     of gate and up: clamped and joined again; backward two or one comparison, their
              conjunction, a choice, and joining                                                       8, 15
    scale     of a rotation that also scales (YaRN): halves turned and joined, two products, a sum,
              a copy; backward the same and two sums of gradients; a fused rotation's 4 are counted   20, 24

Experts one by one also start a kernel each (`further_starts`): their products over `STREAMS` streams, and below 16 bits what
quantises the rows of each before it and the gradients of each behind it, one after another.

A dispatcher that writes rows where the products read them (HybridEP) pads them at once. Source: NVIDIA/Megatron-LM,
transformer/moe/experts.py (TEGroupedMLP: `_apply_bias` since 0.15, before which grouped experts have no biases; `fp8_padding`
and `fp8_unpadding`), transformer/moe/token_dispatcher.py (fp32 probabilities), fusions/fused_bias_geglu.py (a clamp outside the
fused kernel) and models/common/embeddings/rope_utils.py (no fused rotation with a factor), 0.15 to 0.17.
"""

from __future__ import annotations

import numpy as np

from shardwright.models.dtypes import Precision
from shardwright.models.graph import CLAMP, SCALE, Operator, OperatorKind, TensorSpec
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.plans import DEEP_EP, HYBRID_EP, FloatArray
from shardwright.planner.stacks import StackProfile

BIAS_BYTES = (12.0, 16.0)
WIDE_BIAS_BYTES = (28.0, 40.0)
PADDING_BYTES = (8.0, 8.0)
CLAMP_BYTES = (8.0, 15.0)
SCALE_BYTES = (20.0, 24.0)
"""Bytes a value, forward and backward."""

STREAMS = 4.0
"""Streams that products of experts are spread over (NVIDIA/TransformerEngine, common/util/multi_stream.cpp)."""

SCALED_KERNELS = 4.0
"""Kernels that quantise a tensor whose one scale is taken from itself: clearing, largest value, scale, cast; else there is one
(NVIDIA/TransformerEngine, pytorch/csrc/quantizer.cpp)."""

Bytes = tuple[FloatArray, FloatArray]


def quantising_kernels(precision: Precision) -> float:
    """Kernels that quantise one tensor; 0 in 16 bits and above."""
    if not precision.narrow:
        return 0.0
    return SCALED_KERNELS if precision.scales == "tensor" else 1.0


def further_starts(operator: Operator, sizes: LocalSizes, stack: StackProfile, precision: Precision) -> Bytes:
    """Kernels, forward and backward, that follow each other because experts run one by one, beside one of all, [keys]."""
    if operator.kind is not OperatorKind.GROUPED_GEMM or stack.fused_experts:
        return np.zeros(1), np.zeros(1)
    further = sizes.dim("experts", beside_tensor=False) - 1.0
    quantising = quantising_kernels(precision) * operator.quantizable
    return further * (quantising + 1.0 / STREAMS), further * (quantising + 2.0 / STREAMS)


def added_bytes(operator: Operator, sizes: LocalSizes, stack: StackProfile, precision: Precision) -> Bytes | None:
    """Bytes that an operator moves beside its own kernel, forward and backward, [keys]; None where there are none."""
    if SCALE in operator.beside and not stack.fused_rotary_scale:
        return _each(SCALE_BYTES, operator.outputs, sizes)
    if stack.fused_experts:
        return None
    if CLAMP in operator.beside:
        return _each(CLAMP_BYTES, tuple(t for t in operator.inputs if len(t.dims) > 1), sizes)
    if operator.kind is OperatorKind.GROUPED_GEMM and operator.outputs[0].dims[-1] == "hidden":
        return _after_products(operator, sizes, precision)
    return None


def _each(costs: tuple[float, float], tensors: tuple[TensorSpec, ...], sizes: LocalSizes) -> Bytes:
    values = sum((sizes.elements(tensor) for tensor in tensors), start=np.zeros(1))
    return values * costs[0], values * costs[1]


def _after_products(operator: Operator, sizes: LocalSizes, precision: Precision) -> Bytes:
    """Biases of the second product, and padding of what goes into the first and comes out of it."""
    values = sizes.product(operator.outputs[0].dims)
    biased = any(len(parameter.dims) == len(operator.outputs[0].dims) for parameter in operator.parameters)
    low = precision.narrow and operator.quantizable
    rows_in_place = sizes.dispatched_by(HYBRID_EP)
    wide = rows_in_place | sizes.dispatched_by(DEEP_EP)
    forward, backward = (
        values * (biased * np.where(wide, far, near) + low * np.where(rows_in_place, 0.0, pad))
        for near, far, pad in zip(BIAS_BYTES, WIDE_BIAS_BYTES, PADDING_BYTES, strict=True)
    )
    return forward, backward
