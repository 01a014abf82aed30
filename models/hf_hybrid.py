"""Readers of families with scans or with layers of their own: Mamba, Jamba, Nemotron-H, Qwen3-Next, MiniMax, searched models.

mamba, mamba2     every layer one scan, nothing else
jamba             attention and experts in layers i % period = offset
nemotron_h        one letter a layer: M scan, * attention, - feed-forward, E experts
qwen3_next        gated delta rule, attention in every fourth layer
minimax           lightning attention, attention by ``layer_types`` or ``attn_type_list``
nemotron-nas      ``block_configs``: key-value groups and width of each layer, or none at all
deci              ``num_key_value_heads_per_layer``
"""

from __future__ import annotations

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.models.checks import mapping, sequence
from shardwright.models.hf_common import Arguments, attention_biases, dense, experts, grouped, layer_types, sizes
from shardwright.models.hf_fields import WITH_GATE, WITHOUT_GATE, Fields
from shardwright.models.hf_llama import llama, minimax_scales, qwen_moe
from shardwright.models.records import MAX_LAYERS, RANGES
from shardwright.models.spec import MoeSpec, ScanSpec

HYBRID_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
HYBRID_WORDS = {"linear_attention": "mamba", "full_attention": "attention", **{w: w for w in HYBRID_LETTERS.values()}}
STEP_KEYS = ("time_step_rank", "time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme")
UNREAD_STEPS = ("time_step_floor", "time_step_limit", "rescale_prenorm_residual", "residual_in_fp32", "use_mamba_kernels")
NAS_MULTIPLE = 256


def mamba(fields: Fields) -> Arguments:
    """Mamba 1 and Falcon Mamba: a selective scan in every layer."""
    made = _scan_sizes(fields, tied=True)
    inner = _inner_width(fields, made["hidden"], "intermediate_size", "d_inner")
    scan = ScanSpec(
        kind="mamba1",
        heads=inner,
        head_dim=1,
        state=fields.required("state", "state_size"),
        conv=fields.count(4, 1, 1024, "conv_kernel"),
        conv_bias=fields.flag(True, "use_conv_bias"),
        bias=fields.flag(False, "use_bias"),
        dt_rank=_step_rank(fields, made["hidden"], "time_step_rank"),
    )
    fields.seen.update(("ssm_cfg", "mixer_rms_eps", "use_mambapy", "use_associative_scan"))
    return {**made, "heads": inner, "head_dim": 1, "scan": scan}


def mamba2(fields: Fields) -> Arguments:
    """Mamba 2: a state-space dual in every layer."""
    made = _scan_sizes(fields, tied=False)
    heads, depth = fields.required("heads", "num_heads"), fields.required("head_dim", "head_dim")
    inner = _inner_width(fields, made["hidden"], "intermediate_size", "d_inner")
    if inner != heads * depth:
        raise ConflictError(
            f"num_heads {heads} times head_dim {depth} is not the inner width {inner}",
            where=f"{fields.prefix}num_heads",
            hint="expand * hidden_size = num_heads * head_dim",
        )
    groups = _groups(fields, heads, "n_groups")
    scan = ScanSpec(
        kind="mamba2",
        heads=heads,
        head_dim=depth,
        state=fields.required("state", "state_size"),
        groups=groups,
        conv=fields.count(4, 1, 1024, "conv_kernel"),
        conv_bias=fields.flag(True, "use_conv_bias"),
        bias=fields.flag(False, "use_bias"),
        chunk=fields.count(256, *RANGES["chunk"], "chunk_size"),
    )
    return {**made, "heads": heads, "kv_heads": groups, "head_dim": depth, "scan": scan}


_MAMBA_FILE = ("rms_norm", "fused_add_norm", "norm_before_gate")


def _scan_sizes(fields: Fields, *, tied: bool) -> Arguments:
    """Sizes of a model without attention and without feed-forward blocks."""
    fields.seen.update((*STEP_KEYS, *UNREAD_STEPS, *_MAMBA_FILE, "hidden_act"))
    return {
        "layers": fields.required("layers", "num_hidden_layers", "n_layer"),
        "hidden": fields.required("hidden", "hidden_size", "d_model"),
        "vocab": fields.required("vocab", "vocab_size"),
        "max_positions": fields.optional("max_positions", "max_position_embeddings"),
        "tied_embeddings": fields.flag(tied, "tie_word_embeddings"),
        "positions": "none",
        "mixers": ("scan",),
        "mlps": ("none",),
    }


def _inner_width(fields: Fields, hidden: int, *names: str) -> int:
    """The width inside a scan: given, or the expansion of the hidden size."""
    given = fields.optional("ffn", *names)
    expand = fields.count(2, 1, 64, "expand")
    return expand * hidden if given is None else given


def _groups(fields: Fields, most: int, *names: str) -> int:
    """Heads of B and C; eight where they are not given."""
    fields.places["scan.groups"] = fields.find(*names)[0]
    return fields.count(8, 1, most, *names)


def _step_rank(fields: Fields, hidden: int, name: str) -> int:
    """The rank of the step sizes; ``auto`` is a sixteenth of the hidden size, rounded up."""
    if fields.find(name)[1] in (None, "auto"):
        return -(-hidden // 16)
    return fields.required("dt_rank", name)


def jamba(fields: Fields) -> Arguments:
    """Jamba: selective scans, attention and experts at periods of their own, no positions."""
    made = {**dense(fields), "positions": "none"}
    layers = made["layers"]
    attends = _periodic(fields, layers, "attn_layer", (8, 4))
    routed = _periodic(fields, layers, "expert_layer", (2, 1))
    count = fields.count(16, 1, RANGES["experts"][1], "num_experts", "num_local_experts", "n_routed_experts")
    kinds = layer_types(fields, layers, ("mamba", "attention", *HYBRID_WORDS), "layers_block_type", "layer_types")
    if kinds is not None:
        attends = tuple(HYBRID_WORDS[kind] == "attention" for kind in kinds)
    scan = ScanSpec(
        kind="mamba1",
        heads=fields.count(2, 1, 64, "mamba_expand") * made["hidden"],
        head_dim=1,
        state=fields.required("state", "mamba_d_state"),
        conv=fields.count(4, 1, 1024, "mamba_d_conv"),
        conv_bias=fields.flag(True, "mamba_conv_bias"),
        bias=fields.flag(False, "mamba_proj_bias"),
        dt_rank=_step_rank(fields, made["hidden"], "mamba_dt_rank"),
        inner_norms=True,
    )
    fields.only("mamba_inner_layernorms", True)
    fields.seen.update(("use_mamba_kernels", "calc_logits_for_entire_prompt", "layers_num_experts", *_UNUSED))
    plain = tuple(i for i in range(layers) if not routed[i])
    moe = experts(fields, "intermediate_size", dense_layers=plain) if count > 1 and any(routed) else None
    fields.seen.update(("num_experts_per_tok",))
    mixers = tuple("attention" if attend else "scan" for attend in attends)
    return {**made, "mixers": mixers, "moe": moe, "scan": scan if "scan" in mixers else None}


_UNUSED = ("use_mambapy", "use_associative_scan")


def _periodic(fields: Fields, layers: int, name: str, default: tuple[int, int]) -> tuple[bool, ...]:
    """Whether i % period = offset for each layer."""
    period, offset = (
        fields.count(value, low, MAX_LAYERS, f"{name}_{word}")
        for value, low, word in zip(default, (1, 0), ("period", "offset"), strict=True)
    )
    return tuple(layer % period == offset for layer in range(layers))


def nemotron_h(fields: Fields) -> Arguments:
    """Nemotron-H: every layer is one mixer or one feed-forward block; no positions."""
    kinds = _hybrid_kinds(fields)
    made = sizes(_laid_over(fields, {"num_hidden_layers": len(kinds)}))
    scan = ScanSpec(
        kind="mamba2",
        heads=fields.required("heads", "mamba_num_heads"),
        head_dim=fields.required("head_dim", "mamba_head_dim"),
        state=fields.required("state", "ssm_state_size"),
        groups=_groups(fields, 65_536, "n_groups", "mamba_n_groups"),
        conv=fields.count(4, 1, 1024, "conv_kernel", "mamba_d_conv"),
        conv_bias=fields.flag(True, "use_conv_bias", "mamba_conv_bias"),
        bias=fields.flag(False, "use_bias"),
        chunk=fields.count(128, *RANGES["chunk"], "chunk_size", "mamba_chunk_size"),
    )
    fields.seen.update(
        (
            *STEP_KEYS,
            *UNREAD_STEPS,
            "intermediate_size",
            "expand",
            "mamba_hidden_act",
            "mamba_ssm_cache_dtype",
            "mamba_proj_bias",
        )
    )
    return {
        **made,
        **attention_biases(fields),
        "kv_heads": fields.optional("kv_heads", "num_key_value_heads"),
        "head_dim": fields.optional("head_dim", "head_dim", "attention_head_dim"),
        "positions": "none",
        "ffn": fields.required("ffn", "intermediate_size") if "mlp" in kinds else None,
        "activation": fields.activation("relu2", WITHOUT_GATE, "mlp_hidden_act"),
        "mlp_bias": fields.flag(False, "mlp_bias"),
        "mixers": tuple({"mamba": "scan", "attention": "attention"}.get(kind, "none") for kind in kinds),
        "mlps": tuple("ffn" if kind in {"mlp", "moe"} else "none" for kind in kinds),
        "moe": _hybrid_experts(fields, kinds),
        "scan": scan if "mamba" in kinds else None,
    }


def _hybrid_kinds(fields: Fields) -> tuple[str, ...]:
    """What each layer is, from the pattern string or the list."""
    layers = fields.optional("layers", "num_hidden_layers")
    name, pattern = fields.find("hybrid_override_pattern")
    words = fields.words("layers_block_type", "layer_types")
    if pattern is not None:
        words = tuple(HYBRID_LETTERS.get(letter, letter) for letter in fields.word("", name))
    if not words:
        raise InvalidValueError(f"{name} is missing", where=fields.prefix + name, hint="give one letter a layer: M, *, - or E")
    key = name if pattern is not None else "layers_block_type"
    if len(words) > MAX_LAYERS or layers not in (None, len(words)):
        raise ConflictError(f"{key} has {len(words)} entries for {layers} layers", where=fields.prefix + key)
    unknown = sorted({word for word in words if word not in HYBRID_WORDS})
    if unknown:
        raise fields.unsupported(key, f"the layer type {unknown[0][:60]!r} is not modelled")
    return tuple(HYBRID_WORDS[word] for word in words)


def _hybrid_experts(fields: Fields, kinds: tuple[str, ...]) -> MoeSpec | None:
    routing = ("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size")
    fields.seen.update((*routing, "num_experts_per_tok", "n_group", "topk_group", "moe_shared_expert_overlap"))
    fields.seen.update(("mtp_layers_block_type", "mtp_hybrid_override_pattern"))
    if "moe" not in kinds:
        fields.seen.add("moe_latent_size")
        return None
    return experts(
        fields,
        "moe_intermediate_size",
        shared_ffn=fields.required("shared_ffn", "moe_shared_expert_intermediate_size"),
        dense_layers=tuple(i for i, kind in enumerate(kinds) if kind == "mlp"),
        correction_bias=True,
        groups=fields.count(1, 1, 65_536, "n_group"),
        topk_groups=fields.count(1, 1, 65_536, "topk_group"),
    )


def _laid_over(fields: Fields, changes: dict[str, object]) -> Fields:
    return Fields(data={**fields.data, **changes}, prefix=fields.prefix, seen=fields.seen, remarks=fields.remarks)


def qwen3_next(fields: Fields) -> Arguments:
    """Qwen3-Next: gated delta rule in three layers of four, gated attention in the fourth, experts and a shared one."""
    made = {**qwen_moe(fields, fields.required("shared_ffn", "shared_expert_intermediate_size")), **attention_biases(fields)}
    layers = made["layers"]
    interval = fields.count(4, 1, MAX_LAYERS, "full_attention_interval")
    types = layer_types(fields, layers, ("linear_attention", "full_attention"))
    attends = [types[i] == "full_attention" if types else (i + 1) % interval == 0 for i in range(layers)]
    fields.places["scan.groups"] = "linear_num_key_heads"
    scan = ScanSpec(
        kind="gated-delta",
        heads=fields.required("heads", "linear_num_value_heads"),
        head_dim=fields.required("head_dim", "linear_value_head_dim"),
        groups=fields.required("heads", "linear_num_key_heads"),
        state=fields.required("state", "linear_key_head_dim"),
        conv=fields.count(4, 1, 1024, "linear_conv_kernel_dim"),
        chunk=64,
    )
    mixers = tuple("attention" if attend else "scan" for attend in attends)
    scanned = scan if "scan" in mixers else None
    return {**made, "qk_norm": "head", "attention_gate": True, "mixers": mixers, "scan": scanned}


def minimax(fields: Fields) -> Arguments:
    """MiniMax-Text-01 and M1: lightning attention, attention in some layers, experts in all."""
    made = grouped(fields)
    layers = made["layers"]
    types = layer_types(fields, layers, ("linear_attention", "full_attention"))
    marks = fields.numbers("attn_type_list", 1)
    if marks and len(marks) != layers:
        raise ConflictError(
            f"attn_type_list has {len(marks)} entries for {layers} layers", where=f"{fields.prefix}attn_type_list"
        )
    chosen = [word == "full_attention" for word in types] if types else [bool(mark) for mark in marks]
    attends = chosen or [bool((layer + 1) % 2) for layer in range(layers)]
    fields.only("shared_intermediate_size", 0)
    fields.seen.update(("postnorm", "shared_moe_mode", "rotary_dim", *minimax_scales(fields)))
    depth = made["head_dim"] or made["hidden"] // made["heads"]
    scan = ScanSpec(
        kind="lightning",
        heads=made["heads"],
        groups=made["heads"],
        head_dim=depth,
        state=depth,
        chunk=fields.count(256, *RANGES["chunk"], "block_size"),
    )
    mixers = tuple("attention" if attend else "scan" for attend in attends)
    moe = experts(fields, "intermediate_size")
    return {**made, "moe": moe, "mixers": mixers, "scan": scan if "scan" in mixers else None}


def searched(fields: Fields) -> Arguments:
    """Searched Llama variants: DeciLM with key-value heads by layer, or whole blocks by layer."""
    return _by_heads(fields) if fields.given("num_key_value_heads_per_layer") else _by_blocks(fields)


def _by_heads(fields: Fields) -> Arguments:
    """DeciLM: key-value heads of each layer."""
    heads = fields.numbers("num_key_value_heads_per_layer", 65_536)
    if not heads or not all(heads):
        raise InvalidValueError(
            "num_key_value_heads_per_layer is empty or holds 0", where=f"{fields.prefix}num_key_value_heads_per_layer"
        )
    return {**llama(fields), "kv_heads": min(heads), "layer_kv_heads": heads}


def _by_blocks(fields: Fields) -> Arguments:
    """Nemotron Super and Ultra (Puzzle): each layer's key-value groups and width, or neither (arXiv 2411.19146)."""
    made = {**sizes(fields), **attention_biases(fields)}
    blocks = sequence(fields.find("block_configs")[1], f"{fields.prefix}block_configs", MAX_LAYERS)
    if len(blocks) != made["layers"]:
        raise ConflictError(
            f"block_configs has {len(blocks)} entries for {made['layers']} layers", where=f"{fields.prefix}block_configs"
        )
    fields.seen.update(("intermediate_size", "num_key_value_heads"))
    each = [_nas_block(fields, index, block, made) for index, block in enumerate(blocks)]
    mixers, heads, mlps, widths = zip(*each, strict=True)
    return {
        **made,
        "head_dim": fields.optional("head_dim", "head_dim"),
        "activation": fields.activation("silu", WITH_GATE, "hidden_act"),
        "mlp_bias": fields.flag(False, "mlp_bias"),
        "kv_heads": min((count for count in heads if count is not None), default=made["heads"]),
        "mixers": mixers,
        "layer_kv_heads": heads,
        "mlps": mlps,
        "layer_ffn": widths,
    }


def _nas_block(fields: Fields, index: int, block: object, made: Arguments) -> tuple[str, int | None, str, int | None]:
    """(mixer, its key-value heads, feed-forward block, its width) of one layer."""
    at = f"{fields.prefix}block_configs.{index}."
    parts = Fields(data=mapping(block, at[:-1]), prefix=at)
    attention, mlp = parts.inner("attention"), parts.inner("ffn")
    mixer, feed = _nas_kind(attention, "attention"), _nas_kind(mlp, "ffn")
    return (
        mixer,
        _nas_kv_heads(attention, made["heads"]) if mixer == "attention" else None,
        feed,
        _nas_width(mlp, made["hidden"]) if feed == "ffn" else None,
    )


def _nas_kind(part: Fields, plain: str) -> str:
    part.only("gated", True)
    part.only("hidden_act", "silu")
    part.seen.update(("no_op", "replace_with_linear", "n_heads_in_group", "ffn_mult", "intermediate_size"))
    for key, value in part.data.items():
        if key not in part.seen and value:
            raise part.unsupported(key, "this kind of block is not modelled")
    if part.flag(False, "no_op"):
        return "none"
    return "linear" if part.flag(False, "replace_with_linear") else plain


def _nas_kv_heads(part: Fields, heads: int) -> int:
    group = part.required("heads", "n_heads_in_group")
    if heads % group:
        raise ConflictError(f"groups of {group} heads do not divide {heads}", where=f"{part.prefix}n_heads_in_group")
    return heads // group


def _nas_width(part: Fields, hidden: int) -> int:
    """The width given, or 2/3 of the multiple of the hidden size, rounded up to a multiple of 256."""
    width = part.optional("ffn", "intermediate_size")
    if width is not None:
        return width
    ratio = part.number(None, "ffn_mult")
    if ratio is None or not 0 < ratio < 1000:
        raise InvalidValueError(f"ffn_mult is {ratio}", where=f"{part.prefix}ffn_mult", hint="give a number above 0")
    return -(-int(2 * ratio * hidden / 3) // NAS_MULTIPLE) * NAS_MULTIPLE
