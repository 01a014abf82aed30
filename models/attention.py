"""The attention block with grouped key-value heads: operators from the residual stream to what is added to it.

With a query heads, g key-value heads of size d (values d_v), h hidden, s tokens, b sequences:

    qkv         m = b s, n = a d + g d + g d_v, k = h     (+ a d where a projected gate scales the output)
    attention   FLOPs as in `operators.AttentionShape`
    out_proj    m = b s, n = h, k = a d_v

Saved per token (16-bit activations, fused attention): 2 h (norm input) + 2 h (norm output) + 2 (a d + g d +
g d_v) (queries, keys, values after rotation) + 2 a d_v (attention output) + 4 a (log-sum-exp). A block with
normalised heads also keeps queries and keys before the norm; a gate itself and the output before it.

`attention_block` lists the operators; `latent.py` replaces the projections for latent attention. Sources:
arXiv 2305.13245 (grouped heads), arXiv 2307.08691 (what a fused kernel keeps), arXiv 2508.10925 (sinks).
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import SCALE, AttentionShape, GemmShape, Normalised, Operator, OperatorKind, TensorSpec
from shardwright.models.latent import chosen_tokens, latent_dims, latent_projections
from shardwright.models.parts import FP32, activation, hidden, optional, parameter
from shardwright.models.spec import LayerShape, ModelSpec

MIXED = hidden("attn_projected")


def attention_dims(spec: ModelSpec, shape: LayerShape) -> dict[str, int]:
    """Sizes of the fixed dims of the block."""
    if spec.mla is not None:
        return latent_dims(spec, spec.mla)
    return {
        "hidden": spec.hidden,
        "heads": spec.heads,
        "kv_heads": shape.kv_heads or spec.kv_heads,
        "head_dim": spec.head_dim,
        "v_head_dim": spec.head_dim,
    }


def attention_block(spec: ModelSpec, shape: LayerShape, source: TensorSpec) -> tuple[Operator, ...]:
    """Operators from what the block reads to ``attn_projected``."""
    latent = spec.mla is not None
    projections = latent_projections(spec, spec.mla, source) if spec.mla else _projections(spec, shape, source)
    out = activation("attn_out", "heads", "v_head_dim")
    core = activation("attn_core_out", "heads", "v_head_dim") if spec.attention_gate else out
    return (
        *projections,
        _core(spec, shape, core, latent=latent),
        *((_output_gate(core, out),) if spec.attention_gate else ()),
        _out_proj(spec, out),
    )


def _projections(spec: ModelSpec, shape: LayerShape, source: TensorSpec) -> tuple[Operator, ...]:
    rotated = shape.rotary
    normalised = spec.qk_norm in {"head", "full"} or (spec.qk_norm == "unit" and rotated)
    stages = {0: ("",), 1: ("_raw", ""), 2: ("_raw", "_normed", "")}[normalised + rotated]
    pairs = [(activation(f"query{s}", "heads", "head_dim"), activation(f"key{s}", "kv_heads", "head_dim")) for s in stages]
    operators = [_qkv(spec, source, *pairs[0])]
    if normalised:
        operators.append(_qk_norm(spec, pairs[0], pairs[1]))
    if rotated:
        operators.append(_rope(spec, pairs[-2], pairs[-1]))
    return tuple(operators)


def _qkv(spec: ModelSpec, source: TensorSpec, query: TensorSpec, key: TensorSpec) -> Operator:
    gated = optional(spec.attention_gate, ("heads", "v_head_dim"))
    parts = (("heads", "head_dim"), ("kv_heads", "head_dim"), ("kv_heads", "v_head_dim"), *gated)
    names = ("query", "key", "value", "attn_gate")[: len(parts)]
    weights = tuple(parameter(f"{name}_weight", "hidden", *part) for name, part in zip(names, parts, strict=True))
    biases = tuple(parameter(f"{name}_bias", *part) for name, part in zip(names, parts, strict=True))
    gate = optional(spec.attention_gate, activation("attn_gate", "heads", "v_head_dim"))
    return Operator(
        name="qkv",
        kind=OperatorKind.GEMM,
        module="attn",
        inputs=(source,),
        outputs=(query, key, activation("value", "kv_heads", "v_head_dim"), *gate),
        parameters=weights + optional(spec.qkv_bias, *biases),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=parts, k=("hidden",)),
    )


def _qk_norm(spec: ModelSpec, source: tuple[TensorSpec, TensorSpec], target: tuple[TensorSpec, TensorSpec]) -> Operator:
    """Root-mean-square norm of queries and keys, over each head or over all heads together."""
    over = 2 if spec.qk_norm == "full" else 1
    stats = tuple(TensorSpec(name=f"{spec.name}_stats", dims=spec.dims[:-over], bytes_per_element=FP32) for spec in source)
    weights = tuple(
        parameter(f"{name}_norm_weight", *tensor.dims[-over:]) for name, tensor in zip(("query", "key"), source, strict=True)
    )
    return Operator(
        name="qk_norm",
        kind=OperatorKind.ELEMENTWISE,
        module="attn",
        inputs=source,
        outputs=target,
        parameters=optional(spec.qk_norm != "unit", *weights),
        saved=source + stats,
        normalised=Normalised(dims=tuple(dict.fromkeys(dim for spec in source for dim in spec.dims[-over:]))),
    )


def _rope(spec: ModelSpec, source: tuple[TensorSpec, TensorSpec], target: tuple[TensorSpec, TensorSpec]) -> Operator:
    return Operator(
        name="rope",
        kind=OperatorKind.ELEMENTWISE,
        module="attn",
        inputs=source,
        outputs=target,
        whole=("head_dim",),
        beside=(SCALE,) if spec.rotary_scale else (),
    )


def _core(spec: ModelSpec, shape: LayerShape, target: TensorSpec, *, latent: bool) -> Operator:
    kv_heads, qk_dim = ("heads", "qk_head_dim") if latent else ("kv_heads", "head_dim")
    query, key = activation("query", "heads", qk_dim), activation("key", kv_heads, qk_dim)
    value = activation("value", kv_heads, "v_head_dim")
    stats = TensorSpec(name="attn_stats", dims=(*TOKENS, "heads"), bytes_per_element=FP32)
    sparse = spec.mla.index_topk if spec.mla else None
    chosen = optional(sparse is not None, chosen_tokens())
    window = sparse if sparse is not None else shape.window
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        module="core_attn",
        inputs=(query, key, value, *chosen),
        outputs=(target,),
        parameters=optional(spec.sinks, parameter("sinks", "heads")),
        saved=(query, key, value, *chosen, target, stats),
        attention=AttentionShape(kv_heads=kv_heads, qk_dim=qk_dim, v_dim="v_head_dim", window=window, chunked=spec.chunked),
        recompute_drops=(stats.name,),
        whole=(qk_dim, "v_head_dim", "index_topk"),
        read_whole=((key.name, "seq"), (value.name, "seq")),
    )


def _output_gate(core: TensorSpec, target: TensorSpec) -> Operator:
    """``target = core * sigmoid(gate)``."""
    gate = activation("attn_gate", "heads", "v_head_dim")
    return Operator(
        name="attn_output_gate",
        kind=OperatorKind.ELEMENTWISE,
        module="attn",
        inputs=(core, gate),
        outputs=(target,),
        saved=(core, gate),
    )


def _out_proj(spec: ModelSpec, source: TensorSpec) -> Operator:
    return Operator(
        name="out_proj",
        kind=OperatorKind.GEMM,
        module="attn",
        inputs=(source,),
        outputs=(MIXED,),
        parameters=(
            parameter("out_proj_weight", "heads", "v_head_dim", "hidden"),
            *optional(spec.out_bias, parameter("out_proj_bias", "hidden")),
        ),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=(("hidden",),), k=("heads", "v_head_dim")),
    )
