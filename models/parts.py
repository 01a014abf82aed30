"""Operators that every block uses: norms, residual additions, bias parameters.

Saved for backward per token of width h (16-bit activations):

    rmsnorm     2 h (its input) + 4 (reciprocal deviation)             `norm`
    layernorm   2 h (its input) + 8 (mean, reciprocal deviation)       `norm`
    residual    0, or h with dropout (a mask of one byte)              `residual`

A norm's output is kept by the GEMM that reads it. Source: arXiv 2205.05198 section 4.1.
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import Operator, OperatorKind, TensorSpec
from shardwright.models.spec import ModelSpec

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


def norm(spec: ModelSpec, name: str, source: TensorSpec, target: TensorSpec, *, module: str = "layernorm") -> Operator:
    """A norm over the last dim of `source`, which it keeps with its statistics (suffix ``_stats``)."""
    layernorm = spec.norm == "layernorm"
    width = source.dims[-1]
    stats = TensorSpec(name=f"{name}_stats", dims=source.dims[:-1], bytes_per_element=2 * FP32 if layernorm else FP32)
    parameters = (parameter(f"{name}_weight", width), *([parameter(f"{name}_bias", width)] if layernorm else []))
    return Operator(
        name=name,
        kind=OperatorKind.ELEMENTWISE,
        module=module,
        inputs=(source,),
        outputs=(target,),
        parameters=parameters,
        saved=(source, stats),
        recompute_drops=(target.name, stats.name),
    )


def residual(spec: ModelSpec, name: str, branch: TensorSpec, stream: TensorSpec, target: TensorSpec) -> Operator:
    """``target = stream + dropout(branch)``; the dropout mask is kept."""
    mask = (TensorSpec(name=f"{name}_mask", dims=target.dims, bytes_per_element=MASK),) if spec.dropout else ()
    return Operator(
        name=name,
        kind=OperatorKind.ELEMENTWISE,
        module="residual",
        inputs=(branch, stream),
        outputs=(target, *mask),
        saved=mask,
    )


def optional(present: bool, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
    """The specs, or none."""
    return specs if present else ()
