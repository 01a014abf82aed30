"""Projections of multi-head latent attention: queries, keys and values through narrow ranks.

With ranks r_q and r_kv, heads a, head parts d_n (without) and d_r (with rotary positions), values d_v:

    q_down    n = r_q,             k = h         (left out, with q_norm and q_up, where r_q is null: q_proj)
    q_up      n = a (d_n + d_r),   k = r_q
    kv_down   n = r_kv + d_r,      k = h
    kv_up     n = a (d_n + d_v),   k = r_kv
    rope      rotates the d_r parts, joins keys of both parts

Saved per token beside norm and attention: 2 (2 r_q) + 2 (2 r_kv): each compressed vector before and after its
norm. What is saved of queries, keys and values comes back from the up-projections (module mla_up_proj).

Where an indexer of a_i heads of size d_i chooses the k tokens that a query attends to (arXiv 2512.02556 section 2.1):

    index_query   n = a_i d_i,  k = r_q         index_key   n = d_i,  k = h         index_weight   n = a_i,  k = h
    index_scores  sum over its heads of weight * relu(query . key) for every pair: 2 b a_i (d_i + 1) P, P as in attention

and the attention core counts min(k, s) keys a query. `latent_projections` lists the operators. Source: arXiv 2405.04434
section 2.1 and appendix C.
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import AttentionShape, GemmShape, Normalised, Operator, OperatorKind, TensorSpec
from shardwright.models.parts import FP32, activation, norm, optional, parameter
from shardwright.models.spec import MlaSpec, ModelSpec

UP = "mla_up_proj"
INT32 = 4.0


def latent_dims(spec: ModelSpec, mla: MlaSpec) -> dict[str, int]:
    """Sizes of the fixed dims of the attention block."""
    ranks = {"q_rank": mla.q_rank} if mla.q_rank is not None else {}
    index = {"index_heads": mla.index_heads, "index_dim": mla.index_dim, "index_topk": mla.index_topk}
    ranks |= {name: size for name, size in index.items() if size is not None}
    ranks |= {"index_keys": 1, "index_values": 1} if mla.index_topk is not None else {}
    return {
        "hidden": spec.hidden,
        "heads": spec.heads,
        "qk_head_dim": mla.nope_dim + mla.rope_dim,
        "nope_dim": mla.nope_dim,
        "rope_dim": mla.rope_dim,
        "v_head_dim": mla.v_dim,
        "kv_rank": mla.kv_rank,
        **ranks,
    }


def latent_projections(spec: ModelSpec, mla: MlaSpec, normed: TensorSpec) -> tuple[Operator, ...]:
    """Operators from the normed residual stream to ``query``, ``key`` and ``value``."""
    index = _indexer(normed) if mla.index_topk is not None else ()
    return (*_queries(spec, mla, normed), *_keys_and_values(spec, normed), _rope(), *index)


def chosen_tokens() -> TensorSpec:
    """Places of the tokens that each query attends to."""
    return TensorSpec(name="index_chosen", dims=(*TOKENS, "index_topk"), bytes_per_element=INT32)


def _queries(spec: ModelSpec, mla: MlaSpec, normed: TensorSpec) -> tuple[Operator, ...]:
    raw = activation("query_raw", "heads", "qk_head_dim")
    if mla.q_rank is None:
        return (_gemm("q_proj", normed, (raw,), (("heads", "qk_head_dim"),), module="attn"),)
    compressed, narrow = activation("q_compressed", "q_rank"), activation("q_compressed_normed", "q_rank")
    return (
        _gemm("q_down", normed, (compressed,), (("q_rank",),), module="attn", bias=spec.qkv_bias),
        norm(spec, "q_norm", compressed, narrow, module="attn"),
        _gemm("q_up", narrow, (raw,), (("heads", "qk_head_dim"),), module=UP),
    )


def _keys_and_values(spec: ModelSpec, normed: TensorSpec) -> tuple[Operator, ...]:
    compressed, narrow = activation("kv_compressed", "kv_rank"), activation("kv_compressed_normed", "kv_rank")
    outputs = (activation("key_nope", "heads", "nope_dim"), activation("value", "heads", "v_head_dim"))
    up = (("heads", "nope_dim"), ("heads", "v_head_dim"))
    shared = activation("key_rope", "rope_dim")
    return (
        _gemm("kv_down", normed, (compressed, shared), (("kv_rank",), ("rope_dim",)), module="attn", bias=spec.qkv_bias),
        norm(spec, "kv_norm", compressed, narrow, module="attn"),
        _gemm("kv_up", narrow, outputs, up, module=UP, drops=("value",)),
    )


def _indexer(normed: TensorSpec) -> tuple[Operator, ...]:
    """Operators that choose the tokens each query attends to."""
    query, weight = activation("index_query", "index_heads", "index_dim"), activation("index_weight", "index_heads")
    raw, key = activation("index_key_raw", "index_dim"), activation("index_key", "index_keys", "index_dim")
    stats = TensorSpec(name="index_key_stats", dims=TOKENS, bytes_per_element=2 * FP32)
    narrow = activation("q_compressed_normed", "q_rank")
    key_norm = Operator(
        name="index_key_norm",
        kind=OperatorKind.ELEMENTWISE,
        module="attn",
        inputs=(raw,),
        outputs=(key,),
        parameters=(parameter("index_key_norm_weight", "index_dim"), parameter("index_key_norm_bias", "index_dim")),
        saved=(raw, stats),
        normalised=Normalised(dims=("index_dim",)),
    )
    scores = Operator(
        name="index_scores",
        kind=OperatorKind.ATTENTION,
        module="attn",
        inputs=(query, key, weight),
        outputs=(chosen_tokens(),),
        saved=(query, key, weight),
        attention=AttentionShape(heads="index_heads", kv_heads="index_keys", qk_dim="index_dim", v_dim="index_values"),
        whole=("index_dim", "index_topk", "index_heads"),
        read_whole=((key.name, "seq"),),
    )
    return (
        _gemm("index_query", narrow, (query,), (("index_heads", "index_dim"),), module="attn"),
        _gemm("index_key", normed, (raw,), (("index_dim",),), module="attn"),
        key_norm,
        _gemm("index_weight", normed, (weight,), (("index_heads",),), module="attn"),
        scores,
    )


def _rope() -> Operator:
    return Operator(
        name="rope",
        kind=OperatorKind.ELEMENTWISE,
        module=UP,
        inputs=(
            activation("query_raw", "heads", "qk_head_dim"),
            activation("key_nope", "heads", "nope_dim"),
            activation("key_rope", "rope_dim"),
        ),
        outputs=(activation("query", "heads", "qk_head_dim"), activation("key", "heads", "qk_head_dim")),
        recompute_drops=("query", "key"),
        whole=("qk_head_dim", "nope_dim", "rope_dim"),
    )


def _gemm(
    name: str,
    source: TensorSpec,
    outputs: tuple[TensorSpec, ...],
    parts: tuple[tuple[str, ...], ...],
    *,
    module: str,
    bias: bool = False,
    drops: tuple[str, ...] = (),
) -> Operator:
    """A projection of the last dim of `source` to the sum of `parts`, one weight a part."""
    width = source.dims[-1]
    suffixes = [""] if len(parts) == 1 else [f"_{part[-1].removesuffix('_dim')}" for part in parts]
    weights = tuple(parameter(f"{name}{end}_weight", width, *part) for end, part in zip(suffixes, parts, strict=True))
    biases = tuple(parameter(f"{name}{end}_bias", *part) for end, part in zip(suffixes, parts, strict=True))
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        module=module,
        inputs=(source,),
        outputs=outputs,
        parameters=weights + optional(bias, *biases),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=parts, k=(width,)),
        recompute_drops=drops,
    )
