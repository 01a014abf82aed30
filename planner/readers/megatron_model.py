"""The architecture that Megatron-LM arguments describe, as the mapping a `ModelSpec` is made of.

    ffn      ffn_hidden_size, else 4·hidden; with swiglu the next multiple of 64 below 8/3·hidden
    heads    num_attention_heads, num_query_groups with group_query_attention, kv_channels or hidden / heads
    experts  num_experts, moe_router_topk, moe_ffn_hidden_size; layers without them by moe_layer_freq
    latent   multi_latent_attention with q_lora_rank, kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim, v_head_dim
    vocab    vocab_size, else the one of the tokenizer that is named

Defaults are those of the argument parser. What is not modelled (hybrid and encoder-decoder models) is refused.

Source: Megatron-LM `megatron/training/arguments.py` (branches core_r0.12.0 to main of August 2026), `validate_args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.errors import InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.models.catalog import find_preset, load_preset
from shardwright.models.spec import MAX_LAYERS
from shardwright.planner.readers.arithmetic import numbers
from shardwright.planner.readers.stated import StatedSettings

NOT_MODELLED = (
    "hybrid_override_pattern", "hybrid_layer_pattern", "hybrid_attention_ratio", "heterogeneous_layers_config_path",
    "decoder_num_layers", "encoder_seq_length", "experimental_attention_variant", "retro_add_retriever",
)  # fmt: skip
TOKENIZERS: Mapping[str, int] = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "Llama3Tokenizer": 128256}
"""Words of tokenizers that come in one size: GPT-2's byte pairs, Llama 2's SentencePiece model, Llama 3's tiktoken."""

_POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "none": "none",
    "relative": "none",
}
_NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
_SHAPES = "give it in the file, or name MODEL on the command line"


def describes_model(settings: StatedSettings) -> bool:
    """Whether a file holds an architecture at all."""
    return "num_layers" in settings or "hidden_size" in settings


def model_mapping(settings: StatedSettings, name: str, *, null_tokenizer_counts_end: bool = False) -> dict[str, Any]:
    """The architecture as `ModelSpec.from_dict` takes it.

    Args:
        settings: what the file states.
        name: as the model is to be shown.
        null_tokenizer_counts_end: whether NullTokenizer has a token more than --vocab-size says (until 0.16).

    Raises:
        InvalidValueError: a size is missing, or is none.
        UnsupportedError: an architecture that is not modelled.
    """
    for key in NOT_MODELLED:
        if settings.known(key) not in (None, False):
            raise UnsupportedError(f"{key} is not read", where=settings.where(key), hint="name the MODEL on the command line")
    layers = settings.required("num_layers", _SHAPES)
    hidden = settings.required("hidden_size", _SHAPES)
    made: dict[str, Any] = {"name": name, "layers": layers, "hidden": hidden, "source": settings.source}
    made |= _attention(settings, hidden)
    made |= _feedforward(settings, hidden, layers)
    made |= _ends(settings)
    if null_tokenizer_counts_end and "vocab_size" in settings and settings.text("tokenizer_type") == "NullTokenizer":
        made["vocab"] += 1
    bias = settings.on("add_bias_linear", True)
    made |= {"qkv_bias": bias or settings.on("add_qkv_bias"), "out_bias": bias, "mlp_bias": bias}
    made["norm"] = _NORMS[settings.word("normalization", tuple(_NORMS), "LayerNorm") or ""]
    made["dropout"] = settings.number("hidden_dropout", 0.1) > 0
    return made


def _attention(settings: StatedSettings, hidden: int) -> dict[str, Any]:
    heads = settings.required("num_attention_heads", _SHAPES)
    made: dict[str, Any] = {"heads": heads}
    if settings.on("multi_latent_attention"):
        made["mla"] = {
            "q_rank": settings.whole("q_lora_rank"),
            "kv_rank": settings.whole("kv_lora_rank", 32),
            "nope_dim": settings.whole("qk_head_dim", 128),
            "rope_dim": settings.whole("qk_pos_emb_head_dim", 64),
            "v_dim": settings.whole("v_head_dim", 128),
        }
        return made | {"positions": "rope"}
    if settings.on("group_query_attention"):
        made["kv_heads"] = settings.whole("num_query_groups", 1)
    if hidden % heads and "kv_channels" not in settings:
        hint = "give --kv-channels, or a hidden size that the heads divide"
        raise InvalidValueError(
            f"{heads} heads do not divide a hidden size of {hidden}", where=settings.where("hidden_size"), hint=hint
        )
    made["head_dim"] = settings.whole("kv_channels", hidden // heads)
    made["qk_norm"] = "head" if settings.on("qk_layernorm") else "none"
    made["sinks"] = settings.text("softmax_type") in {"learnable", "off-by-one"}
    made["attention_gate"] = settings.on("attention_output_gate")
    rotary = settings.on("use_rotary_position_embeddings")
    kind = settings.word("position_embedding_type", tuple(_POSITIONS), "rope" if rotary else "learned_absolute")
    made["positions"] = _POSITIONS["rope" if rotary else kind or "rope"]
    made["rotary_scale"] = kind == "yarn" and not rotary
    return made | _windows(settings)


def _windows(settings: StatedSettings) -> dict[str, Any]:
    """Attention windows: `127,0` looks back 127 tokens; every n-th layer (or the layers a list names 0) sees all."""
    text = settings.text("window_size")
    if text is None:
        return {}
    try:
        back = int(text.strip("()[] ").split(",")[0])
        skip = settings.text("window_attn_skip_freq")
        pattern = numbers(skip) if skip is not None else []
    except (ValueError, ShardwrightError) as error:
        raise InvalidValueError(
            f"the window {text!r}", where=settings.where("window_size"), hint="write it as 127,0"
        ) from error
    if back < 0:
        return {}
    if len(pattern) > 1:
        return {"windows": [back + 1 if one else None for one in pattern]}
    every = pattern[0] if pattern else 0
    return {"windows": [*[back + 1] * (every - 1), None] if every > 0 else [back + 1]}


def _feedforward(settings: StatedSettings, hidden: int, layers: int) -> dict[str, Any]:
    gated = settings.on("swiglu")
    width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    ffn = settings.whole("ffn_hidden_size", width)
    activation = (
        "swiglu" if gated else "geglu" if settings.on("quick_geglu") else "relu2" if settings.on("squared_relu") else "gelu"
    )
    made: dict[str, Any] = {"ffn": ffn, "activation": activation, "mtp_layers": settings.whole("mtp_num_layers", 0, least=0)}
    experts = settings.whole("num_experts", least=0)
    if experts:
        made["moe"] = _experts(settings, experts, ffn or 0, layers)
    return made


def _experts(settings: StatedSettings, experts: int, ffn: int, layers: int) -> dict[str, Any]:
    return {
        "experts": experts,
        "topk": settings.whole("moe_router_topk", 2),
        "expert_ffn": settings.whole("moe_ffn_hidden_size", ffn),
        "shared_ffn": settings.whole("moe_shared_expert_intermediate_size", 0, least=0),
        "shared_gate": settings.on("moe_shared_expert_gate"),
        "dense_layers": _dense_layers(settings, layers),
        "correction_bias": settings.on("moe_router_enable_expert_bias"),
        "router_bias": settings.on("add_bias_linear", True),
        "expert_bias": settings.on("add_bias_linear", True),
        "expert_clamp": settings.text("activation_func_clamp_value") is not None,
        "groups": settings.whole("moe_router_num_groups", 1),
        "topk_groups": settings.whole("moe_router_group_topk", 1),
    }


def _dense_layers(settings: StatedSettings, layers: int) -> list[int]:
    """Layers without experts: all but every n-th, or those that a list of 0 and 1 names 0."""
    text = settings.text("moe_layer_freq")
    if text is None or layers > MAX_LAYERS:
        return []
    where = settings.where("moe_layer_freq")
    try:
        pattern = numbers(text)
    except ShardwrightError as error:
        raise InvalidValueError(error.message, where=where, hint=error.hint) from error
    if "[" not in text:
        every = max(pattern[0], 1)
        return [layer for layer in range(layers) if layer % every]
    if len(pattern) != layers:
        hint = f"give {layers} numbers"
        raise InvalidValueError(f"moe_layer_freq has {len(pattern)} entries for {layers} layers", where=where, hint=hint)
    return [layer for layer, routed in enumerate(pattern) if not routed]


def _ends(settings: StatedSettings) -> dict[str, Any]:
    return {
        "vocab": vocabulary(settings),
        "max_positions": settings.whole("max_position_embeddings"),
        "tied_embeddings": not settings.on("untie_embeddings_and_output_weights"),
    }


def vocabulary(settings: StatedSettings) -> int:
    """The words of the vocabulary, before padding.

    Raises:
        InvalidValueError: the file neither gives their number nor names a tokenizer that is known.
    """
    given = settings.whole("vocab_size") or settings.whole("padded_vocab_size")
    if given:
        return given
    kind = settings.text("tokenizer_type") if not _untold(settings, "tokenizer_type") else None
    if kind in TOKENIZERS or "merge_file" in settings:
        return TOKENIZERS.get(kind or "", TOKENIZERS["GPT2BPETokenizer"])
    named = settings.text("tokenizer_model") if not _untold(settings, "tokenizer_model") else None
    preset = find_preset(named) if named else None
    if preset is not None:
        return load_preset(preset).vocab
    hint = "add --vocab-size to the file, or name MODEL on the command line"
    raise InvalidValueError("the file does not say how many words the vocabulary has", where=settings.source, hint=hint)


def _untold(settings: StatedSettings, name: str) -> bool:
    return name in settings.stated and bool(settings.stated[name].unknowns)
