"""What readers of several families share: sizes, biases, windows by layer, experts of the DeepSeek kind.

Defaults are those of the modelling code of transformers 5.24, except that sizes are never assumed; only heads follow the
defaults of their class, with a remark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.errors import ConflictError
from shardwright.models.hf_fields import WITH_GATE, Fields
from shardwright.models.spec import MoeSpec

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOPK = ("num_experts_per_tok", "experts_per_token")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
CLASSIC_BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}

Arguments = dict[str, Any]


KV_HEADS_DEFAULTS: Mapping[str, int] = {
    "mistral": 8,
    "mixtral": 8,
    "qwen2": 32,
    "qwen2_moe": 16,
    "qwen3": 32,
    "qwen3_moe": 4,
    "glm4": 2,
    "glm4_moe": 8,
    "gemma": 16,
    "gemma2": 4,
    "gpt_oss": 8,
    "seed_oss": 8,
    "smollm3": 4,
    "starcoder2": 2,
    "phimoe": 8,
    "minimax_m2": 8,
}
"""Key-value heads of families whose class does not default to one a head (transformers 5.24, configuration classes)."""

HEAD_DIM_DEFAULTS: Mapping[str, int] = {
    "qwen3": 128,
    "glm4": 128,
    "gemma": 256,
    "gemma2": 256,
    "gpt_oss": 64,
    "seed_oss": 128,
    "minimax_m2": 128,
}
"""Head sizes of families whose class does not default to hidden / heads (transformers 5.24, configuration classes)."""


def sizes(fields: Fields, *, tied: bool = False) -> Arguments:
    """What all families share; the dense width is read by each."""
    return {
        "layers": fields.required("layers", *LAYERS),
        "hidden": fields.required("hidden", *HIDDEN),
        "heads": fields.required("heads", *HEADS),
        "vocab": fields.required("vocab", "vocab_size"),
        "max_positions": fields.first("max_positions", *POSITIONS),
        "tied_embeddings": fields.flag(tied, "tie_word_embeddings"),
    }


def or_class_default(fields: Fields, limits: str, name: str, defaults: Mapping[str, int]) -> int | None:
    """A key's value; where the key is absent (not null) the default of the family's class in transformers, with a remark."""
    default = defaults.get(str(fields.data.get("model_type")))
    if name in fields.data or default is None:
        return fields.optional(limits, name)
    fields.seen.add(name)
    fields.remarks.append(f"{name} is not in the configuration; {default}, the default of its class, is taken")
    return default


def grouped(fields: Fields, *, tied: bool = False) -> Arguments:
    """Sizes of a model with grouped key-value heads and a gated feed-forward block."""
    return {
        **sizes(fields, tied=tied),
        "kv_heads": or_class_default(fields, "kv_heads", "num_key_value_heads", KV_HEADS_DEFAULTS),
        "head_dim": or_class_default(fields, "head_dim", "head_dim", HEAD_DIM_DEFAULTS),
        "activation": fields.activation("silu", WITH_GATE, "hidden_act"),
    }


def dense(fields: Fields, *, tied: bool = False) -> Arguments:
    """The same with the width of its dense block."""
    return {**grouped(fields, tied=tied), "ffn": fields.required("ffn", "intermediate_size")}


def attention_biases(fields: Fields, default: bool = False) -> Arguments:
    """One switch for the biases of all four projections of attention."""
    bias = fields.flag(default, "attention_bias")
    return {"qkv_bias": bias, "out_bias": bias}


def dropout(fields: Fields, *names: str) -> bool:
    """Whether any of these rates is above 0."""
    rates = [fields.rate(name) for name in names]  # all of them, so that each is checked
    return any(rates)


def experts(fields: Fields, width: str, **further: Any) -> MoeSpec:
    """Experts in every layer, of the width under that key."""
    return MoeSpec(
        experts=fields.required("experts", *EXPERTS),
        topk=fields.required("topk", *TOPK),
        expert_ffn=fields.required("expert_ffn", width),
        **further,
    )


def deepseek_experts(fields: Fields, layers: int, *, correction: bool) -> MoeSpec | None:
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


def dense_width(fields: Fields, moe: MoeSpec | None) -> int | None:
    """The width of dense layers; read but not kept where every layer has experts."""
    width = fields.optional("ffn", "intermediate_size")
    dense = moe is None or bool(moe.dense_layers)
    return fields.required("ffn", "intermediate_size") if dense else width and None


def windows(fields: Fields, layers: int, *, everywhere: bool) -> tuple[int | None, ...]:
    """The window of each layer: by ``layer_types``, else in all layers or in every second from the first."""
    window = fields.optional("window", "sliding_window")
    types = layer_types(fields, layers, ("full_attention", "sliding_attention"))
    if types is not None:
        return _typed(fields, types, window)
    return (window,) if everywhere else (window, None)[:layers]


def qwen_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The window of each layer; without ``use_sliding_window`` there is none, with it from ``max_window_layers`` on."""
    first, types = (
        fields.count(28, 0, 1_000_000, "max_window_layers"),
        layer_types(fields, layers, ("full_attention", "sliding_attention")),
    )
    used = fields.flag(False, "use_sliding_window")
    fields.seen.add("sliding_window")
    window = fields.optional("window", "sliding_window") if used else None
    if types is not None:
        return _typed(fields, types, window)
    return tuple(window if layer >= first else None for layer in range(layers))


def periodic_windows(fields: Fields, layers: int, period: int) -> tuple[int | None, ...]:
    """The window of each layer: by ``layer_types``, else in all but every `period`-th layer."""
    window = fields.optional("window", "sliding_window")
    types = layer_types(fields, layers, ("full_attention", "sliding_attention"))
    if types is not None:
        return _typed(fields, types, window)
    return tuple(window if (layer + 1) % period else None for layer in range(layers))


def layer_types(fields: Fields, layers: int, known: tuple[str, ...], *names: str) -> tuple[str, ...] | None:
    """The word of each layer; None where they are not given.

    Raises:
        ConflictError: not one a layer.
        UnsupportedError: a word that is not known.
    """
    key = (names or ("layer_types",))[0]
    types = fields.words(*(names or ("layer_types",)))
    if types is None:
        return None
    if len(types) != layers:
        raise ConflictError(
            f"{key} has {len(types)} entries for {layers} layers", where=fields.prefix + key, hint="one a layer"
        )
    unknown = sorted(set(types) - set(known))
    if unknown:
        raise fields.unsupported(key, f"the layer type {unknown[0][:60]!r} is not modelled")
    return types


def _typed(fields: Fields, types: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
    if window is None and "sliding_attention" in types:
        raise ConflictError(
            "layer_types names sliding_attention, but there is no window",
            where=f"{fields.prefix}layer_types",
            hint="give sliding_window",
        )
    return tuple(window if word == "sliding_attention" else None for word in types)
