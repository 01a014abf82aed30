"""Operators that every block uses: norms, residual additions, bias parameters.

Saved for backward per token of width h (16-bit activations):

    rmsnorm     2 h (its input) + 4 (reciprocal deviation)             `norm`
    layernorm   2 h (its input) + 8 (mean, reciprocal deviation)       `norm`
    residual    0, or h with dropout (a mask of one byte)              `residual`

A norm's output is kept by the GEMM that reads it. Source: arXiv 2205.05198 section 4.1.
"""

from __future__ import annotations

from typing import TypeVar

from shardwright.models.dims import TOKENS
from shardwright.models.graph import GemmShape, Normalised, Operator, OperatorKind, TensorSpec
from shardwright.models.spec import ModelSpec

ItemT = TypeVar("ItemT")

FP32 = 4.0
MASK = 1.0


def activation(name: str, *dims: str) -> TensorSpec:
    """A tensor of batch x seq x dims in the activation dtype."""
    return TensorSpec(name=name, dims=(*TOKENS, *dims))


def parameter(name: str, *dims: str) -> TensorSpec:
    """A trainable parameter."""
    return TensorSpec(name=name, dims=dims)


def hidden(name: str) -> TensorSpec:
    """A tensor of the residual stream's width."""
    return activation(name, "hidden")


def norm(
    spec: ModelSpec,
    name: str,
    source: TensorSpec,
    target: TensorSpec,
    *,
    module: str = "layernorm",
    kept: bool = True,
) -> Operator:
    """A norm over the last dim of `source`, which it keeps with its statistics (suffix ``_stats``).

    Args:
        spec: of the model.
        name: of the operator.
        source: what is normalised.
        target: what is written.
        module: recompute module.
        kept: whether a later operator keeps the target, so that recomputing the norm saves it.
    """
    layernorm = spec.norm != "rmsnorm"
    width = source.dims[-1]
    stats = TensorSpec(name=f"{name}_stats", dims=source.dims[:-1], bytes_per_element=2 * FP32 if layernorm else FP32)
    weight, bias = parameter(f"{name}_weight", width), parameter(f"{name}_bias", width)
    return Operator(
        name=name,
        kind=OperatorKind.ELEMENTWISE,
        module=module,
        inputs=(source,),
        outputs=(target,),
        parameters=(*optional(spec.norm != "layernorm-plain", weight), *optional(spec.norm == "layernorm", bias)),
        saved=(source, stats),
        recompute_drops=(*optional(kept, target.name), stats.name),
        normalised=Normalised(dims=(width,)),
    )


def opened(spec: ModelSpec, name: str, source: TensorSpec, target: TensorSpec) -> tuple[TensorSpec, tuple[Operator, ...]]:
    """What a block reads, and the norm before it, if there is one."""
    if spec.norm_at == "after":
        return source, ()
    return target, (norm(spec, name, source, target),)


def closed(spec: ModelSpec, prefix: str, branch: TensorSpec, stream: TensorSpec, target: TensorSpec) -> tuple[Operator, ...]:
    """From what a block gives to the stream: the norm after it, if there is one, and the residual addition."""
    if spec.norm_at == "before":
        return (residual(spec, f"{prefix}_residual", (branch,), stream, target),)
    normed = TensorSpec(name=f"{branch.name}_normed", dims=branch.dims)
    return (
        norm(spec, f"{prefix}_out_norm", branch, normed, kept=False),
        residual(spec, f"{prefix}_residual", (normed,), stream, target),
    )


def residual(spec: ModelSpec, name: str, branches: tuple[TensorSpec, ...], stream: TensorSpec, target: TensorSpec) -> Operator:
    """``target = stream + dropout(sum of branches)``; the dropout mask is kept."""
    mask = (TensorSpec(name=f"{name}_mask", dims=target.dims, bytes_per_element=MASK),) if spec.dropout else ()
    return Operator(
        name=name,
        kind=OperatorKind.ELEMENTWISE,
        module="residual",
        inputs=(*branches, stream),
        outputs=(target, *mask),
        saved=mask,
    )


def projection(name: str, source: TensorSpec, target: TensorSpec, *, module: str, bias: bool = False) -> Operator:
    """A GEMM from the last dim of `source` to the last dim of `target`, both beside the tokens alone."""
    width, out = source.dims[-1], target.dims[-1]
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        module=module,
        inputs=(source,),
        outputs=(target,),
        parameters=(parameter(f"{name}_weight", width, out), *optional(bias, parameter(f"{name}_bias", out))),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=((out,),), k=(width,)),
    )


def optional(present: bool, *items: ItemT) -> tuple[ItemT, ...]:
    """The items, or none."""
    return items if present else ()
