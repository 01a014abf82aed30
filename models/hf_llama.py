"""Readers of families with grouped key-value heads and a gated block: Llama and what followed it.

One function a family turns `Fields` into the keyword arguments of a `ModelSpec`; `hf_families.py` lists them.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.errors import ConflictError
from shardwright.models.hf_common import (
    EXPERTS,
    TOPK,
    Arguments,
    attention_biases,
    deepseek_experts,
    dense,
    dense_width,
    dropout,
    experts,
    grouped,
    layer_types,
    periodic_windows,
    qwen_windows,
    sizes,
    windows,
)
from shardwright.models.hf_fields import WITH_GATE, WITHOUT_GATE, Fields
from shardwright.models.spec import MoeSpec

GEMMA3_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}


def llama(fields: Fields) -> Arguments:
    """Llama 1 to 3."""
    return {**dense(fields), **attention_biases(fields), "mlp_bias": fields.flag(False, "mlp_bias")}


def llama4(fields: Fields) -> Arguments:
    """Llama 4: experts in some layers, chunked attention in those that rotate."""
    made = grouped(fields)
    layers = made["layers"]
    width = fields.required("expert_ffn", "intermediate_size")
    moe = MoeSpec(
        experts=fields.required("experts", *EXPERTS),
        topk=fields.required("topk", *TOPK),
        expert_ffn=width,
        shared_ffn=width,
        dense_layers=_llama4_dense(fields, layers),
    )
    rotary = rotary_layers(fields, layers)
    chunk, types = (
        fields.optional("window", "attention_chunk_size"),
        layer_types(fields, layers, ("full_attention", "chunked_attention")),
    )
    chunks = tuple(turns if types is None else types[i] == "chunked_attention" for i, turns in enumerate(rotary))
    return {
        **made,
        **attention_biases(fields),
        "ffn": fields.required("ffn", "intermediate_size_mlp") if moe.dense_layers else None,
        "moe": moe,
        "qk_norm": "unit" if fields.flag(True, "use_qk_norm") else "none",
        "rotary_layers": rotary,
        "windows": tuple(chunk if chunked else None for chunked in chunks),
        "chunked": chunk is not None and any(chunks),
    }


def _llama4_dense(fields: Fields, layers: int) -> tuple[int, ...]:
    fields.seen.add("intermediate_size_mlp")
    step, given = fields.count(1, 1, layers, "interleave_moe_layer_step"), fields.find("moe_layers")[1]
    routed = fields.numbers("moe_layers", layers - 1) if given is not None else range(step - 1, layers, step)
    return tuple(layer for layer in range(layers) if layer not in routed)


def rotary_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Whether each layer rotates: by ``no_rope_layers`` (1 for rotating ones), else all but every n-th."""
    interval, marks = fields.count(4, 1, 10_000, "no_rope_layer_interval"), fields.numbers("no_rope_layers", 1)
    if marks and len(marks) != layers:
        raise ConflictError(
            f"no_rope_layers has {len(marks)} entries for {layers} layers",
            where=f"{fields.prefix}no_rope_layers",
            hint="one a layer",
        )
    return tuple(bool(marks[i]) if marks else (i + 1) % interval != 0 for i in range(layers))


def smollm3(fields: Fields) -> Arguments:
    """SmolLM 3: every fourth layer does not rotate."""
    made = dense(fields, tied=True)
    layers = made["layers"]
    return {
        **made,
        **attention_biases(fields),
        "mlp_bias": fields.flag(False, "mlp_bias"),
        "rotary_layers": rotary_layers(fields, layers),
        "windows": qwen_windows(fields, layers),
    }


def mistral(fields: Fields) -> Arguments:
    """Mistral: one window for all layers."""
    made = dense(fields)
    return {**made, "windows": windows(fields, made["layers"], everywhere=True)}


def mixtral(fields: Fields) -> Arguments:
    """Mixtral: experts in every layer."""
    made = grouped(fields)
    moe = experts(fields, "intermediate_size")
    return {**made, "moe": moe, "windows": windows(fields, made["layers"], everywhere=True)}


def qwen2(fields: Fields) -> Arguments:
    """Qwen 2 and 2.5."""
    made = dense(fields)
    return {**made, "qkv_bias": True, "windows": qwen_windows(fields, made["layers"])}


def mimo(fields: Fields) -> Arguments:
    """MiMo: Qwen 2 with blocks for multi-token prediction."""
    made = {**qwen2(fields), "qkv_bias": fields.flag(True, "attention_bias")}
    fields.only("use_mrope", False)
    return {**made, "mtp_layers": fields.count(0, 0, 64, "num_nextn_predict_layers")}


def qwen3(fields: Fields) -> Arguments:
    """Qwen 3."""
    made = dense(fields)
    return {**made, **attention_biases(fields), "qk_norm": "head", "windows": qwen_windows(fields, made["layers"])}


def qwen2_moe(fields: Fields) -> Arguments:
    """Qwen 2 with experts."""
    made = qwen_moe(fields, shared_ffn=fields.required("shared_ffn", "shared_expert_intermediate_size"))
    return {**made, "qkv_bias": fields.flag(True, "qkv_bias"), "windows": qwen_windows(fields, made["layers"])}


def qwen3_moe(fields: Fields) -> Arguments:
    """Qwen 3 with experts."""
    made = {**qwen_moe(fields, shared_ffn=0), **attention_biases(fields), "qk_norm": "head"}
    return {**made, "windows": qwen_windows(fields, made["layers"])}


def qwen_moe(fields: Fields, shared_ffn: int) -> Arguments:
    """What all Qwen models with experts share."""
    made = grouped(fields)
    layers = made["layers"]
    step, plain = fields.count(1, 1, layers, "decoder_sparse_step"), set(fields.numbers("mlp_only_layers", layers - 1))
    moe = experts(
        fields,
        "moe_intermediate_size",
        shared_ffn=shared_ffn,
        shared_gate=shared_ffn > 0,
        dense_layers=tuple(i for i in range(layers) if i in plain or (i + 1) % step),
    )
    return {**made, "ffn": dense_width(fields, moe), "moe": moe}


def gemma(fields: Fields) -> Arguments:
    """Gemma 1: gated GELU, tied embeddings."""
    made = _gemma_sizes(fields)
    return {**made, **attention_biases(fields), "ffn": fields.required("ffn", "intermediate_size")}


def _gemma_sizes(fields: Fields) -> Arguments:
    """Sizes; the newer key of the activation counts where both are given."""
    made = sizes(fields, tied=True)
    fields.seen.add("hidden_act")
    key = "hidden_activation" if fields.given("hidden_activation") else "hidden_act"
    return {
        **made,
        "kv_heads": fields.optional("kv_heads", "num_key_value_heads"),
        "head_dim": fields.required("head_dim", "head_dim"),
        "activation": fields.activation("gelu_pytorch_tanh", WITH_GATE, key),
    }


def gemma2(fields: Fields) -> Arguments:
    """Gemma 2: norms on both sides of a block, alternating windows, soft caps."""
    made = gemma(fields)
    fields.seen.add("sliding_window_size")  # the same under an older name
    return {
        **made,
        "norm_at": "both",
        "windows": windows(fields, made["layers"], everywhere=False),
        "attention_softcap": fields.number(50.0, "attn_logit_softcapping") is not None,
        "logits_softcap": fields.number(30.0, "final_logit_softcapping") is not None,
    }


def gemma3(fields: Fields) -> Arguments:
    """Gemma 3: normalised heads, five layers of six with a window."""
    fields = _with_defaults(fields, GEMMA3_DEFAULTS)
    period = fields.count(6, 1, 10_000, "sliding_window_pattern", "_sliding_window_pattern")
    made = gemma(fields)
    return {
        **made,
        "norm_at": "both",
        "qk_norm": "head",
        "windows": periodic_windows(fields, made["layers"], period),
        "attention_softcap": fields.number(None, "attn_logit_softcapping") is not None,
        "logits_softcap": fields.number(None, "final_logit_softcapping") is not None,
    }


def _with_defaults(fields: Fields, defaults: dict[str, int]) -> Fields:
    """Published files of some families leave out sizes that equal the defaults of the modelling code; said in the notes."""
    absent = {key: value for key, value in defaults.items() if fields.data.get(key) is None}
    if absent:
        said = ", ".join(f"{key} {value}" for key, value in absent.items())
        fields.remarks.append(f"taken from the defaults of the family, as its published files do: {said}")
    return replace(fields, data={**fields.data, **absent})


def phi3(fields: Fields) -> Arguments:
    """Phi 3 and 4."""
    made = dense(fields)
    fields.only("lm_head_bias", False)
    fields.only("mlp_bias", False)
    fields.seen.update(("full_attn_mod", "interpolate_factor"))
    return {
        **made,
        **attention_biases(fields),
        "windows": windows(fields, made["layers"], everywhere=True),
        "dropout": dropout(fields, "resid_pdrop", "embd_pdrop"),
    }


def phimoe(fields: Fields) -> Arguments:
    """Phi 3.5 with experts: LayerNorm, biases on attention and head."""
    made = {**grouped(fields), **attention_biases(fields), "norm": "layernorm", "head_bias": fields.flag(False, "lm_head_bias")}
    moe = experts(fields, "intermediate_size")
    return {**made, "moe": moe, "windows": windows(fields, made["layers"], everywhere=True)}


def olmo(fields: Fields) -> Arguments:
    """OLMo 1: LayerNorm without parameters."""
    fields.seen.add("clip_qkv")
    return {**dense(fields), **attention_biases(fields), "norm": "layernorm-plain"}


def olmo2(fields: Fields) -> Arguments:
    """OLMo 2: norms after the blocks, queries and keys normalised over all heads."""
    return {**dense(fields), **attention_biases(fields), "norm_at": "after", "qk_norm": "full"}


def olmo3(fields: Fields) -> Arguments:
    """OLMo 3: OLMo 2 with a window in three layers of four."""
    made = olmo2(fields)
    return {**made, "windows": periodic_windows(fields, made["layers"], 4)}


def olmoe(fields: Fields) -> Arguments:
    """OLMoE: experts in every layer."""
    fields.seen.add("clip_qkv")
    made = {**grouped(fields), **attention_biases(fields), "qk_norm": "full"}
    return {**made, "moe": experts(fields, "intermediate_size")}


def glm(fields: Fields) -> Arguments:
    """GLM 4 of 2024."""
    return {**dense(fields), "qkv_bias": fields.flag(True, "attention_bias")}


def glm4(fields: Fields) -> Arguments:
    """GLM 4 of 2025: norms on both sides of a block."""
    return {**glm(fields), "norm_at": "both"}


def glm4_moe(fields: Fields) -> Arguments:
    """GLM 4.5: experts as in DeepSeek-V3, grouped heads."""
    made = grouped(fields)
    moe = deepseek_experts(fields, made["layers"], correction=True)
    return {
        **made,
        "ffn": dense_width(fields, moe),
        "moe": moe,
        "qkv_bias": fields.flag(False, "attention_bias"),
        "qk_norm": "head" if fields.flag(False, "use_qk_norm") else "none",
        "mtp_layers": fields.count(0, 0, 64, "num_nextn_predict_layers"),
    }


def gpt_oss(fields: Fields) -> Arguments:
    """gpt-oss: sinks, a rotation that scales, biased experts that clamp, a window in every second layer."""
    made = grouped(fields)
    moe = experts(fields, "intermediate_size", router_bias=True, expert_bias=True, expert_clamp=True)
    alternating = windows(fields, made["layers"], everywhere=False)
    return {**made, **attention_biases(fields, True), "moe": moe, "sinks": True, "rotary_scale": True, "windows": alternating}


def nemotron(fields: Fields) -> Arguments:
    """Nemotron 3 and 4, Minitron: LayerNorm, squared ReLU without a gate."""
    return {
        **sizes(fields),
        **attention_biases(fields),
        "kv_heads": fields.optional("kv_heads", "num_key_value_heads"),
        "head_dim": fields.optional("head_dim", "head_dim"),
        "ffn": fields.required("ffn", "intermediate_size"),
        "activation": fields.activation("relu2", WITHOUT_GATE, "hidden_act"),
        "mlp_bias": fields.flag(False, "mlp_bias"),
        "norm": "layernorm",
    }


def cohere(fields: Fields) -> Arguments:
    """Command R: attention and feed-forward block beside each other."""
    return {
        **dense(fields, tied=True),
        **attention_biases(fields),
        "norm": "layernorm-no-bias",
        "block": "parallel-one-norm",
        "qk_norm": "full" if fields.flag(False, "use_qk_norm") else "none",
    }


def granite(fields: Fields) -> Arguments:
    """Granite 3: a Llama whose branches are scaled."""
    fields.seen.update(("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"))
    return llama(fields)


def seed_oss(fields: Fields) -> Arguments:
    """Seed-OSS."""
    return {
        **dense(fields),
        "qkv_bias": fields.flag(True, "attention_bias"),
        "out_bias": fields.flag(False, "attention_out_bias"),
        "mlp_bias": fields.flag(False, "mlp_bias"),
        "dropout": dropout(fields, "residual_dropout"),
    }


def minimax_scales(fields: Fields) -> list[str]:
    """Keys of factors on branches and stream."""
    return [key for key in fields.data if key.endswith(("_alpha", "_beta", "_alpha_factor", "_beta_factor"))]


def minimax_m2(fields: Fields) -> Arguments:
    """MiniMax-M2: grouped heads and experts in every layer."""
    made = grouped(fields)
    layers = made["layers"]
    if set(fields.numbers("attn_type_list", 1)) - {1}:
        raise fields.unsupported("attn_type_list", "layers of other types than 1 are not modelled in this family")
    if fields.flag(False, "use_mtp"):
        fields.remarks.append("its modules for multi-token prediction are not planned")
        fields.seen.update(("num_mtp_modules", "mtp_transformer_layers"))
    fields.only("shared_intermediate_size", 0)
    fields.seen.update(("qk_norm_type", "rotary_dim", "shared_moe_mode", "mlp_intermediate_size", *minimax_scales(fields)))
    moe = experts(fields, "intermediate_size", correction_bias=fields.flag(True, "use_routing_bias"))
    normed = fields.flag(True, "use_qk_norm")
    return {**made, "moe": moe, "qk_norm": "full" if normed else "none", "windows": windows(fields, layers, everywhere=True)}
