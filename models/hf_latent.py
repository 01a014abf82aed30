"""Readers of families with latent attention: DeepSeek V2, V3, V3.2 and Kimi K2."""

from __future__ import annotations

from dataclasses import replace

from shardwright.errors import ConflictError
from shardwright.models.hf_common import Arguments, attention_biases, deepseek_experts, dense_width, layer_types, sizes
from shardwright.models.hf_fields import WITH_GATE, Fields
from shardwright.models.spec import MlaSpec


def deepseek_v2(fields: Fields) -> Arguments:
    """DeepSeek-V2."""
    return {**_latent(fields, correction=False), "mlp_bias": fields.flag(False, "mlp_bias")}


def deepseek_v3(fields: Fields) -> Arguments:
    """DeepSeek-V3, Kimi K2."""
    return _latent(fields, correction=True)


def deepseek_v32(fields: Fields) -> Arguments:
    """DeepSeek-V3.2: an indexer chooses the tokens that a query attends to."""
    made = _latent(fields, correction=True)
    layers = made["layers"]
    layer_types(fields, layers, ("indexed_attention",))
    kinds = layer_types(fields, layers, ("dense", "sparse"), "mlp_layer_types")
    if kinds is not None and made["moe"] is not None:
        made["moe"] = replace(made["moe"], dense_layers=tuple(i for i in range(layers) if kinds[i] == "dense"))
    mla = replace(
        made["mla"],
        index_heads=fields.required("index_heads", "index_n_heads"),
        index_dim=fields.required("index_dim", "index_head_dim"),
        index_topk=fields.required("index_topk", "index_topk"),
    )
    return {**made, "mla": mla, "mlp_bias": fields.flag(False, "mlp_bias")}


def _latent(fields: Fields, *, correction: bool) -> Arguments:
    made = sizes(fields)
    _same_heads(fields, made["heads"])
    moe = deepseek_experts(fields, made["layers"], correction=correction)
    return {
        **made,
        **attention_biases(fields),
        "activation": fields.activation("silu", WITH_GATE, "hidden_act"),
        "ffn": dense_width(fields, moe),
        "mla": _mla(fields),
        "moe": moe,
        "mtp_layers": fields.count(0, 0, 64, "num_nextn_predict_layers"),
    }


def _mla(fields: Fields) -> MlaSpec:
    fields.seen.update(("head_dim", "qk_head_dim"))
    return MlaSpec(
        q_rank=fields.optional("q_rank", "q_lora_rank"),
        kv_rank=fields.required("kv_rank", "kv_lora_rank"),
        nope_dim=fields.required("nope_dim", "qk_nope_head_dim"),
        rope_dim=fields.required("rope_dim", "qk_rope_head_dim"),
        v_dim=fields.required("v_dim", "v_head_dim"),
    )


def _same_heads(fields: Fields, heads: int) -> None:
    """With latent attention every head has its own key."""
    kv_heads = fields.optional("kv_heads", "num_key_value_heads")
    if kv_heads not in (None, heads):
        raise ConflictError(
            f"num_key_value_heads is {kv_heads}, but latent attention has one a head ({heads})",
            where=f"{fields.prefix}num_key_value_heads",
        )
