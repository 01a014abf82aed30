"""The families of ``config.json`` that are understood: which keys each reads and what they mean.

One function a family turns `Fields` into the keyword arguments of a `ModelSpec`; `FAMILIES` lists them with
the values of ``model_type`` and ``architectures`` that they answer to. Defaults are those of the modelling
code of transformers 5.24, except that sizes are never assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.errors import ConflictError
from shardwright.models.hf_fields import WITH_GATE, WITHOUT_GATE, Fields
from shardwright.models.spec import MlaSpec, MoeSpec

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOPK = ("num_experts_per_tok", "experts_per_token")
HIDDEN = ("hidden_size", "n_embd")
HEADS = ("num_attention_heads", "n_head")
LAYERS = ("num_hidden_layers", "n_layer")

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of configurations.

    Attributes:
        types: values of ``model_type``.
        architectures: values of ``architectures`` (causal language models only).
        read: from the fields to the arguments of a spec, name and notes apart.
    """

    types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Fields], Arguments]


def _sizes(fields: Fields, *, tied: bool = False) -> Arguments:
    """What all families share; the dense width is read by each."""
    return {
        "layers": fields.required("layers", *LAYERS),
        "hidden": fields.required("hidden", *HIDDEN),
        "heads": fields.required("heads", *HEADS),
        "vocab": fields.required("vocab", "vocab_size"),
        "max_positions": fields.optional("max_positions", "max_position_embeddings", "n_positions"),
        "tied_embeddings": fields.flag(tied, "tie_word_embeddings"),
    }


def _grouped(fields: Fields) -> Arguments:
    """Sizes of a model with grouped key-value heads and a gated feed-forward block."""
    return {
        **_sizes(fields),
        "kv_heads": fields.optional("kv_heads", "num_key_value_heads"),
        "head_dim": fields.optional("head_dim", "head_dim"),
        "activation": fields.activation("silu", WITH_GATE, "hidden_act"),
    }


def _dense(fields: Fields) -> Arguments:
    return {**_grouped(fields), "ffn": fields.required("ffn", "intermediate_size")}


def _all_biases(fields: Fields, default: bool = False) -> Arguments:
    bias = fields.flag(default, "attention_bias")
    return {"qkv_bias": bias, "out_bias": bias}


def _llama(fields: Fields) -> Arguments:
    return {**_dense(fields), **_all_biases(fields), "mlp_bias": fields.flag(False, "mlp_bias")}


def _mistral(fields: Fields) -> Arguments:
    made = _dense(fields)
    return {**made, "windows": _windows(fields, made["layers"], everywhere=True)}


def _mixtral(fields: Fields) -> Arguments:
    made = _grouped(fields)
    moe = MoeSpec(
        experts=fields.required("experts", *EXPERTS),
        topk=fields.required("topk", *TOPK),
        expert_ffn=fields.required("expert_ffn", "intermediate_size"),
    )
    return {**made, "moe": moe, "windows": _windows(fields, made["layers"], everywhere=True)}


def _qwen2(fields: Fields) -> Arguments:
    made = _dense(fields)
    return {**made, "qkv_bias": True, "windows": _qwen_windows(fields, made["layers"])}


def _qwen3(fields: Fields) -> Arguments:
    made = _dense(fields)
    return {**made, **_all_biases(fields), "qk_norm": "head", "windows": _qwen_windows(fields, made["layers"])}


def _qwen2_moe(fields: Fields) -> Arguments:
    made = _qwen_moe(fields, shared_ffn=fields.required("shared_ffn", "shared_expert_intermediate_size"))
    return {**made, "qkv_bias": fields.flag(True, "qkv_bias")}


def _qwen3_moe(fields: Fields) -> Arguments:
    return {**_qwen_moe(fields, shared_ffn=0), **_all_biases(fields), "qk_norm": "head"}


def _qwen_moe(fields: Fields, shared_ffn: int) -> Arguments:
    made = _grouped(fields)
    layers = made["layers"]
    step, dense = fields.count(1, 1, layers, "decoder_sparse_step"), set(fields.numbers("mlp_only_layers", layers - 1))
    moe = MoeSpec(
        experts=fields.required("experts", *EXPERTS),
        topk=fields.required("topk", *TOPK),
        expert_ffn=fields.required("expert_ffn", "moe_intermediate_size"),
        shared_ffn=shared_ffn,
        shared_gate=shared_ffn > 0,
        dense_layers=tuple(i for i in range(layers) if i in dense or (i + 1) % step),
    )
    windows = _qwen_windows(fields, layers)
    return {**made, "ffn": _dense_width(fields, moe), "moe": moe, "windows": windows}


def _deepseek_v2(fields: Fields) -> Arguments:
    return {**_latent(fields, correction=False), "mlp_bias": fields.flag(False, "mlp_bias")}


def _deepseek_v3(fields: Fields) -> Arguments:
    return _latent(fields, correction=True)


def _latent(fields: Fields, *, correction: bool) -> Arguments:
    made = _sizes(fields)
    _same_heads(fields, made["heads"])
    moe = _deepseek_experts(fields, made["layers"], correction=correction)
    return {
        **made,
        **_all_biases(fields),
        "activation": fields.activation("silu", WITH_GATE, "hidden_act"),
        "ffn": _dense_width(fields, moe),
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


def _deepseek_experts(fields: Fields, layers: int, *, correction: bool) -> MoeSpec | None:
    """Routed and shared experts after the first dense layers; None where there are no experts."""
    experts = fields.optional("experts", *EXPERTS)
    if experts is None:
        return None
    first = fields.count(0, 0, layers, "first_k_dense_replace")
    every = fields.count(1, 1, layers, "moe_layer_freq")
    width = fields.required("expert_ffn", "moe_intermediate_size")
    method = fields.word("noaux_tc" if correction else "greedy", "topk_method")
    return MoeSpec(
        experts=experts,
        topk=fields.required("topk", *TOPK),
        expert_ffn=width,
        shared_ffn=width * fields.count(0, 0, 1024, "n_shared_experts"),
        dense_layers=tuple(i for i in range(layers) if i < first or i % every),
        correction_bias=method == "noaux_tc",
        groups=fields.count(1, 1, experts, "n_group"),
        topk_groups=fields.count(1, 1, experts, "topk_group"),
    )


def _glm4_moe(fields: Fields) -> Arguments:
    made = _grouped(fields)
    moe = _deepseek_experts(fields, made["layers"], correction=True)
    return {
        **made,
        "ffn": _dense_width(fields, moe),
        "moe": moe,
        "qkv_bias": fields.flag(False, "attention_bias"),
        "qk_norm": "head" if fields.flag(False, "use_qk_norm") else "none",
        "mtp_layers": fields.count(0, 0, 64, "num_nextn_predict_layers"),
    }


def _gpt_oss(fields: Fields) -> Arguments:
    made = _grouped(fields)
    moe = MoeSpec(
        experts=fields.required("experts", *EXPERTS),
        topk=fields.required("topk", *TOPK),
        expert_ffn=fields.required("expert_ffn", "intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    windows = _windows(fields, made["layers"], everywhere=False)
    return {**made, **_all_biases(fields, True), "moe": moe, "sinks": True, "windows": windows}


def _gpt2(fields: Fields) -> Arguments:
    made = _sizes(fields, tied=True)
    wide = fields.optional("ffn", "n_inner", "intermediate_size")
    rates = [fields.rate(name) for name in ("resid_pdrop", "embd_pdrop")]
    fields.seen.add("n_ctx")
    return {
        **made,
        "max_positions": fields.required("max_positions", "n_positions", "max_position_embeddings"),
        "ffn": 4 * made["hidden"] if wide is None else wide,
        "activation": fields.activation("gelu_new", WITHOUT_GATE, "activation_function"),
        "positions": "learned",
        "norm": "layernorm",
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "dropout": any(rates),
    }


def _dense_width(fields: Fields, moe: MoeSpec | None) -> int | None:
    """The width of dense layers; read but not kept where every layer has experts."""
    width = fields.optional("ffn", "intermediate_size")
    dense = moe is None or bool(moe.dense_layers)
    return fields.required("ffn", "intermediate_size") if dense else width and None


def _windows(fields: Fields, layers: int, *, everywhere: bool) -> tuple[int | None, ...]:
    """The window of each layer: by ``layer_types``, else in all layers or in every second from the first."""
    window, types = fields.optional("window", "sliding_window"), fields.words("layer_types")
    if types is not None:
        return _typed_windows(fields, types, layers, window)
    return (window,) if everywhere else (window, None)[:layers]


def _qwen_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The window of each layer; without ``use_sliding_window`` there is none, with it from ``max_window_layers`` on."""
    first, types = fields.count(28, 0, 1_000_000, "max_window_layers"), fields.words("layer_types")
    used = fields.flag(False, "use_sliding_window")
    fields.seen.add("sliding_window")
    window = fields.optional("window", "sliding_window") if used else None
    if types is not None:
        return _typed_windows(fields, types, layers, window)
    return tuple(window if layer >= first else None for layer in range(layers))


def _typed_windows(fields: Fields, types: tuple[str, ...], layers: int, window: int | None) -> tuple[int | None, ...]:
    if len(types) != layers:
        raise ConflictError(
            f"layer_types has {len(types)} entries for {layers} layers", where=f"{fields.prefix}layer_types", hint="one a layer"
        )
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise fields.unsupported("layer_types", f"the layer type {unknown[0][:60]!r} is not modelled")
    if window is None and "sliding_attention" in types:
        raise ConflictError(
            "layer_types names sliding_attention, but there is no window",
            where=f"{fields.prefix}layer_types",
            hint="give sliding_window",
        )
    return tuple(window if word == "sliding_attention" else None for word in types)


FAMILIES: tuple[Family, ...] = (
    Family(types=("llama",), architectures=("LlamaForCausalLM", "LLaMAForCausalLM"), read=_llama),
    Family(types=("mistral",), architectures=("MistralForCausalLM",), read=_mistral),
    Family(types=("mixtral",), architectures=("MixtralForCausalLM",), read=_mixtral),
    Family(types=("qwen2",), architectures=("Qwen2ForCausalLM",), read=_qwen2),
    Family(types=("qwen3", "qwen3_vl_text"), architectures=("Qwen3ForCausalLM",), read=_qwen3),
    Family(types=("qwen2_moe",), architectures=("Qwen2MoeForCausalLM",), read=_qwen2_moe),
    Family(types=("qwen3_moe", "qwen3_vl_moe_text"), architectures=("Qwen3MoeForCausalLM",), read=_qwen3_moe),
    Family(types=("deepseek_v2",), architectures=("DeepseekV2ForCausalLM",), read=_deepseek_v2),
    Family(types=("deepseek_v3", "kimi_k2"), architectures=("DeepseekV3ForCausalLM",), read=_deepseek_v3),
    Family(types=("gpt_oss",), architectures=("GptOssForCausalLM",), read=_gpt_oss),
    Family(types=("glm4_moe",), architectures=("Glm4MoeForCausalLM",), read=_glm4_moe),
    Family(types=("gpt2",), architectures=("GPT2LMHeadModel",), read=_gpt2),
)
BY_TYPE: Mapping[str, Family] = {name: family for family in FAMILIES for name in family.types}
BY_ARCHITECTURE: Mapping[str, Family] = {name: family for family in FAMILIES for name in family.architectures}
