"""The dense feed-forward block: operators from what it reads to ``mlp_out``, which is added to the stream.

With f the width of the block:

    gate_up   m = b s, n = f + f, k = h     (a block without gate: `up` with n = f)
    act       elementwise: reads 2 f (or f), writes f
    down      m = b s, n = h, k = f

Saved per token (16-bit activations): 2 h (norm input) + 2 h (norm output) + 4 f (or 2 f, input of the
activation) + 2 f (its output). Source: arXiv 2002.05202 (gates), arXiv 2205.05198 section 4.1.
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import GemmShape, Operator, OperatorKind, TensorSpec
from shardwright.models.parts import activation, hidden, optional, parameter
from shardwright.models.spec import ModelSpec

MADE = hidden("mlp_out")


def dense_block(spec: ModelSpec, source: TensorSpec) -> tuple[Operator, ...]:
    """Operators of the dense feed-forward block."""
    return feed_forward(spec, source, MADE, width="ffn", prefix="", modules=("mlp", "mlp_act"))


def feed_forward(
    spec: ModelSpec, source: TensorSpec, target: TensorSpec, *, width: str, prefix: str, modules: tuple[str, str]
) -> tuple[Operator, ...]:
    """Up projection (with its gate), activation and down projection.

    Args:
        spec: of the model.
        source: what is read.
        target: what is written.
        width: dim of the width of the block.
        prefix: put before every name, so that two blocks can stand in a layer.
        modules: recompute modules of the projections and of the activation.
    """
    parts = ("gate", "up") if spec.gated else ("up",)
    wide = tuple(activation(prefix + part, width) for part in parts)
    acted = activation(f"{prefix}act_out", width)
    return (
        _up(spec, source, wide, width, prefix, modules[0]),
        Operator(
            name=f"{prefix}act",
            kind=OperatorKind.ELEMENTWISE,
            module=modules[1],
            inputs=wide,
            outputs=(acted,),
            saved=wide,
            recompute_drops=(acted.name,),
        ),
        _down(spec, acted, target, width, prefix, modules[0]),
    )


def _up(spec: ModelSpec, source: TensorSpec, wide: tuple[TensorSpec, ...], width: str, prefix: str, module: str) -> Operator:
    weights = tuple(parameter(f"{part.name}_weight", "hidden", width) for part in wide)
    biases = tuple(parameter(f"{part.name}_bias", width) for part in wide)
    return Operator(
        name=prefix + ("gate_up" if spec.gated and not prefix else "up"),
        kind=OperatorKind.GEMM,
        module=module,
        inputs=(source,),
        outputs=wide,
        parameters=weights + optional(spec.mlp_bias, *biases),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=tuple((width,) for _ in wide), k=("hidden",)),
    )


def _down(spec: ModelSpec, acted: TensorSpec, target: TensorSpec, width: str, prefix: str, module: str) -> Operator:
    return Operator(
        name=f"{prefix}down",
        kind=OperatorKind.GEMM,
        module=module,
        inputs=(acted,),
        outputs=(target,),
        parameters=(
            parameter(f"{prefix}down_weight", width, "hidden"),
            *optional(spec.mlp_bias, parameter(f"{prefix}down_bias", "hidden")),
        ),
        saved=(acted,),
        gemm=GemmShape(m=TOKENS, n=(("hidden",),), k=(width,)),
    )
