"""The attention block with grouped key-value heads: operators from the residual stream to the residual stream.

With a query heads, g key-value heads of size d (values d_v), h hidden, s tokens, b sequences:

    qkv         m = b s, n = a d + g d + g d_v, k = h
    attention   FLOPs as in `operators.AttentionShape`
    out_proj    m = b s, n = h, k = a d_v

Saved per token (16-bit activations, fused attention): 2 h (norm input) + 2 h (norm output) + 2 (a d + g d +
g d_v) (queries, keys, values after rotation) + 2 a d_v (attention output) + 4 a (log-sum-exp). A block with
normalised heads also keeps queries and keys before the norm.

`attention_block` lists the operators; `latent.py` replaces the projections for latent attention. Sources:
arXiv 2305.13245 (grouped heads), arXiv 2307.08691 (what a fused kernel keeps), arXiv 2508.10925 (sinks).
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import AttentionShape, GemmShape, Operator, OperatorKind, TensorSpec
from shardwright.models.latent import latent_dims, latent_projections
from shardwright.models.parts import FP32, activation, hidden, norm, optional, parameter, residual
from shardwright.models.spec import ModelSpec

MID = hidden("hidden_mid")


def attention_dims(spec: ModelSpec) -> dict[str, int]:
    """Sizes of the fixed dims of the block."""
    if spec.mla is not None:
        return latent_dims(spec, spec.mla)
    return {
        "hidden": spec.hidden,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "v_head_dim": spec.head_dim,
    }


def attention_block(spec: ModelSpec, window: int | None) -> tuple[Operator, ...]:
    """Operators from ``hidden_in`` to ``hidden_mid``."""
    source, normed = hidden("hidden_in"), hidden("attn_normed")
    projections = latent_projections(spec, spec.mla, normed) if spec.mla is not None else _projections(spec, normed)
    return (
        norm(spec, "input_norm", source, normed),
        *projections,
        _core(spec, window),
        _out_proj(spec),
        residual(spec, "attn_residual", hidden("attn_projected"), source, MID),
    )


def _projections(spec: ModelSpec, normed: TensorSpec) -> tuple[Operator, ...]:
    normalised, rotated = spec.qk_norm == "head", spec.positions == "rope"
    stages = {0: ("",), 1: ("_raw", ""), 2: ("_raw", "_normed", "")}[normalised + rotated]
    pairs = [(activation(f"query{s}", "heads", "head_dim"), activation(f"key{s}", "kv_heads", "head_dim")) for s in stages]
    operators = [_qkv(spec, normed, *pairs[0])]
    if normalised:
        operators.append(_qk_norm(pairs[0], pairs[1]))
    if rotated:
        operators.append(_rope(pairs[-2], pairs[-1]))
    return tuple(operators)


def _qkv(spec: ModelSpec, normed: TensorSpec, query: TensorSpec, key: TensorSpec) -> Operator:
    parts = (("heads", "head_dim"), ("kv_heads", "head_dim"), ("kv_heads", "v_head_dim"))
    names = ("query", "key", "value")
    weights = tuple(parameter(f"{name}_weight", "hidden", *part) for name, part in zip(names, parts, strict=True))
    biases = tuple(parameter(f"{name}_bias", *part) for name, part in zip(names, parts, strict=True))
    return Operator(
        name="qkv",
        kind=OperatorKind.GEMM,
        module="attn",
        inputs=(normed,),
        outputs=(query, key, activation("value", "kv_heads", "v_head_dim")),
        parameters=weights + optional(spec.qkv_bias, *biases),
        saved=(normed,),
        gemm=GemmShape(m=TOKENS, n=parts, k=("hidden",)),
    )


def _qk_norm(source: tuple[TensorSpec, TensorSpec], target: tuple[TensorSpec, TensorSpec]) -> Operator:
    stats = tuple(TensorSpec(name=f"{spec.name}_stats", dims=spec.dims[:-1], bytes_per_element=FP32) for spec in source)
    return Operator(
        name="qk_norm",
        kind=OperatorKind.ELEMENTWISE,
        module="attn",
        inputs=source,
        outputs=target,
        parameters=(parameter("query_norm_weight", "head_dim"), parameter("key_norm_weight", "head_dim")),
        saved=source + stats,
    )


def _rope(source: tuple[TensorSpec, TensorSpec], target: tuple[TensorSpec, TensorSpec]) -> Operator:
    return Operator(
        name="rope",
        kind=OperatorKind.ELEMENTWISE,
        module="attn",
        inputs=source,
        outputs=target,
    )


def _core(spec: ModelSpec, window: int | None) -> Operator:
    latent = spec.mla is not None
    kv_heads, qk_dim = ("heads", "qk_head_dim") if latent else ("kv_heads", "head_dim")
    query, key = activation("query", "heads", qk_dim), activation("key", kv_heads, qk_dim)
    value, target = activation("value", kv_heads, "v_head_dim"), activation("attn_out", "heads", "v_head_dim")
    stats = TensorSpec(name="attn_stats", dims=(*TOKENS, "heads"), bytes_per_element=FP32)
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        module="core_attn",
        inputs=(query, key, value),
        outputs=(target,),
        parameters=optional(spec.sinks, parameter("sinks", "heads")),
        saved=(query, key, value, target, stats),
        attention=AttentionShape(kv_heads=kv_heads, qk_dim=qk_dim, v_dim="v_head_dim", window=window),
        recompute_drops=(stats.name,),
    )


def _out_proj(spec: ModelSpec) -> Operator:
    source = activation("attn_out", "heads", "v_head_dim")
    return Operator(
        name="out_proj",
        kind=OperatorKind.GEMM,
        module="attn",
        inputs=(source,),
        outputs=(hidden("attn_projected"),),
        parameters=(
            parameter("out_proj_weight", "heads", "v_head_dim", "hidden"),
            *optional(spec.out_bias, parameter("out_proj_bias", "hidden")),
        ),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=(("hidden",),), k=("heads", "v_head_dim")),
    )
