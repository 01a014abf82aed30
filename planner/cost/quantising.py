"""Memory traffic of quantising operands of products below 16 bits, and of scaling what they make, bytes an element.

    operands and results            input       gradient of output   weight      gradient of input, of weight
                                 fwd  for weight    for weight      fwd   bwd
    Transformer Engine            3+1   -        3      1            -     -        -      -
      a scale a tensor, Blackwell 3     -        3      -            -     -        -      -
    torchao, a scale a tensor     3     3        3      1            3     3        -      -
    torchao, blocks               3     3        3      3            3     3        -      -
    a scale a row                 3     F        3      F            3     F        4      4
      weight gradients in 16 bits 3     -        3      -            3     3        4      -
    largest value first          +2             +2                  +2                            scales of tensors at hand

A cast reads 2 and writes 1, and 1 more where products need the operand laid out in the other direction too: before Blackwell,
and where blocks have scales of their own in either. Scales of rows differ with the dimension that a product sums over, so that
an operand is cast once along its rows and once across them, at a share of the bandwidth (F = 3 / `FAR_SHARE`). Products by
rows have a kernel of their own where they sum fast, which forward ones do; gradients are products by tensors whose result is
read, scaled and written. Transformer Engine casts weights once a step, torchao in every pass. The largest value of a tensor at
hand is found by reading it once more (2), unless what makes the tensor finds it: a norm run within a product (Transformer
Engine), or elementwise operators where a compiler joins them (torchao). What a stack quantises before ranks gather it is cast
and searched on each rank's part alone.

Sources: NVIDIA/TransformerEngine, docs/features/low_precision_training (fp8_current_scaling, fp8_delayed_scaling, mxfp8) and
pytorch/csrc/extensions/normalization.cpp (since 2.7); pytorch/ao, testing/training/roofline_utils.py (passes by recipe),
float8/float8_linear.py (the backward pass casts 16-bit operands again), float8/config.py (which products sum fast) and
float8/float8_ops.py (scaling of results; pytorch/ao issue 2184).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.models.dtypes import Precision
from shardwright.models.graph import LayerGraph, Operator, OperatorKind
from shardwright.planner.axes.sharding import LocalSizes, has_tensor_dim
from shardwright.planner.cost.recompute import module_of
from shardwright.planner.plans import FloatArray
from shardwright.planner.stacks import StackProfile

LARGEST_BYTES = 2.0
"""Of reading a tensor once for its largest value."""

ROW_RATE = 0.95
"""Rate of the kernel of products by rows over that by tensors: on H100 most shapes have 90 to 100 % of it (pytorch/pytorch
issue 147971; pytorch/FBGEMM pull 2764: 91 to 100 %, median 98 %, on five shapes). Other devices are taken to be alike."""

FAR_SHARE = 0.65 / 2.1
"""Bandwidth of a compiled cast with scales of rows that lie across memory over that of one along it: 0.6 to 0.7 TB/s for 2.0 to
2.2 on H100 (pytorch/pytorch issue 149982). Other devices are taken to be alike."""

CAST_BYTES = 3.0
"""Of reading 16 bits and writing 8."""

ONE_LAYOUT = ("blackwell",)
"""Generations whose 8-bit products take operands in either layout (Transformer Engine, fp8_current_scaling: no transposes)."""

TORCHAO = "torchao"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Bytes an element of operands and results.

    `copy` is what the gradient of the weight needs beside and the forward pass makes, `again` what the backward pass makes.
    """

    input: float = CAST_BYTES
    input_copy: float = 0.0
    input_again: float = 0.0
    gradient: float = CAST_BYTES
    gradient_again: float = 1.0
    weight_forward: float = 0.0
    weight_backward: float = 0.0
    result: float = 0.0
    weight_result: float = 0.0


BY_TRANSFORMER_ENGINE = Passes(input_copy=1.0)
IN_ONE_LAYOUT = Passes(gradient_again=0.0)
BY_TORCHAO: Mapping[str, Passes] = {
    "delayed": Passes(input_again=CAST_BYTES, weight_forward=CAST_BYTES, weight_backward=CAST_BYTES),
    "tensor": Passes(input_again=CAST_BYTES, weight_forward=CAST_BYTES, weight_backward=CAST_BYTES),
    "block": Passes(input_again=CAST_BYTES, gradient_again=CAST_BYTES, weight_forward=CAST_BYTES, weight_backward=CAST_BYTES),
}
FAR = CAST_BYTES / FAR_SHARE
BY_ROWS = Passes(
    input_again=FAR, gradient_again=FAR, weight_forward=CAST_BYTES, weight_backward=FAR, result=4.0, weight_result=4.0
)
BY_ROWS_IN_PART = Passes(gradient_again=0.0, weight_forward=CAST_BYTES, weight_backward=CAST_BYTES, result=4.0)
"""By kind of scales; the last with gradients of weights in 16 bits. A pass at a share of the bandwidth counts as more bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What stands around a product.

    Attributes:
        input_found, gradient_found: whether the largest value of its input, of the gradient of its output, comes with it.
        input_gathered, gradient_gathered: whether tensor-parallel ranks gather it, quantised where they hold parts.
    """

    input_found: bool = False
    gradient_found: bool = False
    input_gathered: bool = False
    gradient_gathered: bool = False


ALONE = Beside()
"""Nothing is known of what stands around a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedBytes:
    """Bytes moved beside a product, arrays of shape [keys]; `weight` is the part of the backward pass for its gradient."""

    forward: FloatArray
    backward: FloatArray
    weight: FloatArray


def passes_of(stack: StackProfile, precision: Precision, *, one_layout: bool) -> Passes:
    """Bytes an element by who quantises and how scales are found, without searches for largest values.

    Args:
        stack: who quantises.
        precision: how scales are found.
        one_layout: whether products of the device take operands as they lie, whichever dimension they sum over.
    """
    if precision.scales == "row":
        return BY_ROWS_IN_PART if precision.wide_weight_gradients else BY_ROWS
    if stack.quantiser == TORCHAO:
        return BY_TORCHAO[precision.scales]
    return IN_ONE_LAYOUT if one_layout and precision.scales != "block" else BY_TRANSFORMER_ENGINE


def travels_quantised(stack: StackProfile, precision: Precision) -> bool:
    """Whether operands are quantised before tensor-parallel ranks gather them: torchao does so with one scale a tensor alone.

    Source: pytorch/torchtitan, docs/float8.md: with scales by rows all exchange is in high precision.
    """
    fits = precision.scales == "tensor" if stack.quantiser == TORCHAO else precision.scales != "row"
    return stack.gathers_quantised and precision.narrow and fits


def beside(unit: LayerGraph, operator: Operator, stack: StackProfile, precision: Precision) -> Beside:
    """What stands around a product of a layer."""
    gemm = operator.gemm
    if gemm is None or not (precision.narrow and operator.quantizable):
        return ALONE
    makers = [o for o in unit.operators if set(o.outputs) & set(operator.inputs)]
    readers = [o for o in unit.operators if set(o.inputs) & set(operator.outputs)]
    travels, split = travels_quantised(stack, precision), has_tensor_dim(gemm.k)
    columns = any(has_tensor_dim(term) for term in gemm.n) and not split
    alike = [o for o in unit.operators if o.gemm is not None and set(o.inputs) & set(operator.inputs)]
    if stack.quantiser == TORCHAO:
        compiled = stack.fused_gate
        found = compiled and bool(makers) and all(o.kind is OperatorKind.ELEMENTWISE for o in makers)
        after = compiled and bool(readers) and all(o.kind is OperatorKind.ELEMENTWISE for o in readers)
    else:
        norms = [o for o in makers if o.module == "layernorm"]
        found, after = any(module_of(o, unit, stack) != o.module for o in norms), False
    return Beside(
        input_found=found,
        gradient_found=after,
        input_gathered=travels and columns and all(o.quantizable for o in alike),
        gradient_gathered=travels and split,
    )


def quantised_bytes(
    operator: Operator,
    around: Beside,
    elements: tuple[FloatArray, FloatArray, FloatArray],
    sizes: LocalSizes,
    stack: StackProfile,
    precision: Precision,
    *,
    one_layout: bool = False,
) -> QuantisedBytes:
    """Bytes moved beside a product below 16 bits.

    Args:
        operator: the product.
        around: what stands around it.
        elements: of its input (gathered), of its output and of its weight on one rank, [keys].
        sizes: of the rank.
        stack: who quantises.
        precision: how scales are found.
        one_layout: whether products of the device take operands as they lie.
    """
    each, (inputs, outputs, weights) = passes_of(stack, precision, one_layout=one_layout), elements
    largest = LARGEST_BYTES if precision.scales == "tensor" else 0.0
    part = sizes.sequence_share()
    of_input = (each.input + largest * (not around.input_found)) * (part if around.input_gathered else 1.0)
    of_gradient = (each.gradient + largest * (not around.gradient_found)) * (part if around.gradient_gathered else 1.0)
    of_weight = each.weight_forward + (largest if each.weight_forward else 0.0)
    trained = each.input_again * inputs + each.gradient_again * outputs + each.weight_result * weights
    return QuantisedBytes(
        forward=np.asarray((of_input + each.input_copy * operator.trains) * inputs + of_weight * weights),
        backward=np.asarray(of_gradient * outputs + each.weight_backward * weights + each.result * inputs),
        weight=np.asarray(trained * operator.trains),
    )
