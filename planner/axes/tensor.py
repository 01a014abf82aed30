"""Tensor parallelism, with or without sequence parallelism (arXiv 1909.08053, 2205.05198).

A product whose *output* columns are split (a dim of role tensor in n) needs its whole input on every rank; one whose
*summed* dim is split (role tensor in k) leaves partial sums:

                          sequence parallel                        plain
    split columns  fwd    all-gather of the input                  -
                   bwd    reduce-scatter of its gradient, and      all-reduce of its gradient
                          all-gather of the input once more
                          (for the gradient of the weight)
    split sum      fwd    reduce-scatter of the output             all-reduce of the output
                   bwd    all-gather of its gradient               -

Operators that read the same tensor share one gather. Lookups in a split vocabulary leave partial sums too. What is gathered for
products that run in low precision, and for nothing else, may travel quantised (`operand`); sums are not.
"""

from __future__ import annotations

import numpy as np

from shardwright.models.graph import LayerGraph, Operator, TensorSpec
from shardwright.planner.axes.base import LayerCollective, ParallelAxis
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys, has_tensor_dim
from shardwright.planner.plans import ALL_GATHER, FloatArray, IntArray


def layer_collectives(
    layer: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float
) -> list[LayerCollective]:
    """Gathers and reductions of one layer, tensor-parallel experts among them."""
    made: list[LayerCollective] = []
    for tensor, trains, operand in _gathered_inputs(layer):
        made += _around_split_columns(_whole_bytes(tensor, sizes, activation_bytes), keys, trains=trains, operand=operand)
    for operator in layer.operators:
        if _leaves_partial_sums(operator):
            operand = operator.gemm is not None and operator.quantizable
            made += _around_split_sum(_whole_bytes(operator.outputs[0], sizes, activation_bytes), keys, operand=operand)
        elif operator.kind == "dispatch":
            made += _around_experts(operator, sizes, keys, activation_bytes)
    return made


def _gathered_inputs(layer: LayerGraph) -> list[tuple[TensorSpec, bool, bool]]:
    """Distinct tensors that products with split columns read whole, whether one of these is trained, whether all quantise."""
    found: dict[str, tuple[TensorSpec, bool, bool]] = {}
    for operator in layer.operators:
        gemm = operator.gemm
        if gemm and any(has_tensor_dim(term) for term in gemm.n) and not has_tensor_dim(gemm.k):
            for tensor in operator.inputs:
                if not has_tensor_dim(tensor.dims) and "seq" in tensor.dims:
                    _, trained, operand = found.get(tensor.name, (tensor, False, True))
                    found[tensor.name] = (tensor, trained or operator.trains, operand and operator.quantizable)
    return list(found.values())


def _leaves_partial_sums(operator: Operator) -> bool:
    if operator.gemm:
        return has_tensor_dim(operator.gemm.k)
    return operator.kind == "embedding" and any(has_tensor_dim(p.dims) for p in operator.parameters)


def _whole_bytes(tensor: TensorSpec, sizes: LocalSizes, activation_bytes: float) -> FloatArray:
    """Bytes of a tensor with the whole (context-parallel) sequence of the group."""
    width = activation_bytes if tensor.bytes_per_element is None else tensor.bytes_per_element
    return sizes.product(tensor.dims, beside_tensor=True) * width


def _around_split_columns(whole: FloatArray, keys: OperatorKeys, *, trains: bool, operand: bool) -> list[LayerCollective]:
    sp = keys.sp.astype(np.float64)
    return [
        _over_tp("all_gather", whole, keys, forward=sp, backward=sp if trains else 0 * sp, operand=operand),
        _over_tp("reduce_scatter", whole, keys, forward=0 * sp, backward=sp),
        _over_tp("all_reduce", whole, keys, forward=0 * sp, backward=1 - sp),
    ]


def _around_split_sum(whole: FloatArray, keys: OperatorKeys, *, operand: bool) -> list[LayerCollective]:
    sp = keys.sp.astype(np.float64)
    return [
        _over_tp("reduce_scatter", whole, keys, forward=sp, backward=0 * sp),
        _over_tp("all_gather", whole, keys, forward=0 * sp, backward=sp, operand=operand),
        _over_tp("all_reduce", whole, keys, forward=1 - sp, backward=0 * sp),
    ]


def _around_experts(
    operator: Operator, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float
) -> list[LayerCollective]:
    """Rows of the experts' tensor-parallel group: gathered before the experts, reduced and scattered after them.

    A dispatcher that gathers tokens does so over this group as well (`axes.expert`).
    """
    rows = sizes.bytes(operator.outputs[0], activation_bytes)
    one = np.ones(len(keys))
    apart = 1.0 - (keys.moe_dispatcher == ALL_GATHER)
    return [
        LayerCollective(
            axis="tp", kind=kind, size=keys.etp, stride=one.astype(np.int64), message_bytes=rows, forward=apart, backward=apart
        )
        for kind in ("all_gather", "reduce_scatter")
    ]


def _over_tp(
    kind: str, message: FloatArray, keys: OperatorKeys, *, forward: FloatArray, backward: FloatArray, operand: bool = False
) -> LayerCollective:
    stride: IntArray = np.ones(len(keys), dtype=np.int64)
    return LayerCollective(
        axis="tp",
        kind=kind,
        size=keys.tp,
        stride=stride,
        message_bytes=message,
        forward=forward,
        backward=backward,
        operand=operand,
    )


AXIS = ParallelAxis(name="tp", degree="tp", splits=("tensor", "expert-tensor"), layer_collectives=layer_collectives)
