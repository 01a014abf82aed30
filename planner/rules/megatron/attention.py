"""Megatron: heads, vocabulary, sequence and context parallelism.

Checked by `TransformerConfig.__post_init__`, `validate_args` and, for all-to-all context parallelism, Transformer Engine's
attention. Widths that tensor parallelism divides are in `rules.elementary`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule, closest, divisors
from shardwright.planner.rules.declaring import MEGATRON, degree_rule, setting_rule
from shardwright.planner.rules.settings import Settings

_args = partial(setting_rule, source="Megatron-LM validate_args")
_config = partial(setting_rule, source="Megatron-Core TransformerConfig")
_HYBRID = ("hybrid_context_parallel",)


def _linear_heads(f: Facts) -> tuple[int, int]:
    """Value and key heads of a gated delta net; (0, 0) for other models."""
    scan = f.graph.spec.scan
    return (scan.heads, scan.groups) if scan is not None and scan.kind == "gated-delta" else (0, 0)


def _linear_off(divisor: np.ndarray, f: Facts) -> BoolArray:
    value, key = _linear_heads(f)
    return np.asarray((value > 0) & ((value % divisor != 0) | (key % divisor != 0)))


def _linear_tp(c: Candidate, f: Facts) -> Changes:
    value, key = _linear_heads(f)
    return {"tp": closest(c["tp"], divisors(int(np.gcd(value, key)))), "cp": 1}


def _joint_width(f: Facts) -> int:
    """Width of the projection to queries, keys and values; 0 for latent attention, which has none."""
    spec = f.graph.spec
    return 0 if spec.mla is not None else (spec.heads + 2 * spec.kv_heads) * spec.head_dim


def _a2a_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    over_heads = "a2a" in s.words("cp_comm_type")
    degree = c["tp"] * c["cp"]
    spec = f.graph.spec
    return np.asarray(over_heads & (c["cp"] > 1) & ((spec.heads % degree != 0) | (spec.kv_heads % degree != 0)))


def _sizes_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    sizes = s["hierarchical_context_parallel_sizes"]
    product = int(np.prod([int(size) for size in sizes])) if sizes else 0
    return np.asarray((product > 0) & (product != c["cp"]))


def _padded_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    return np.asarray(s.number("padded_vocab_size") % c["tp"] != 0)


ATTENTION_RULES: tuple[Rule, ...] = (
    degree_rule(
        "megatron-kv-heads",
        "before megatron-core 0.16, tp divides the key/value heads (later versions replicate them)",
        reads=("tp",),
        breaks=lambda c, f: f.graph.spec.kv_heads % c["tp"] != 0,
        message="{kv_heads} key/value heads cannot be divided by tp {tp}",
        mend=lambda c, f: {"tp": closest(c["tp"], divisors(f.graph.spec.kv_heads))},
        targets=MEGATRON,
        until="0.16",
        source="Megatron-Core TransformerConfig before 0.16",
    ),
    degree_rule(
        "megatron-qkv-width",
        "tp divides the joint width of queries, keys and values, (heads + 2 · kv_heads) · head_dim",
        reads=("tp",),
        breaks=lambda c, f: _joint_width(f) % c["tp"] != 0,
        message=lambda c, f: f"queries, keys and values of joint width {_joint_width(f)} cannot be divided by tp {c['tp']}",
        mend=lambda c, f: {"tp": closest(c["tp"], divisors(int(np.gcd(_joint_width(f), f.graph.spec.heads))))},
        targets=MEGATRON,
        since="0.16",
        source="Megatron-Core SelfAttention (ColumnParallelLinear)",
    ),
    degree_rule(
        "megatron-linear-heads",
        "tp divides the key and value heads of a gated delta net",
        reads=("tp",),
        breaks=lambda c, f: _linear_off(c["tp"], f),
        message=lambda c, f: f"{_linear_heads(f)[0]} value and {_linear_heads(f)[1]} key heads of the scan on tp {c['tp']}",
        mend=_linear_tp,
        targets=MEGATRON,
        since="0.16",
        source="Megatron-Core TransformerConfig",
    ),
    degree_rule(
        "megatron-linear-cp",
        "before megatron-core 0.18 a gated delta net has no context parallelism",
        reads=("cp",),
        breaks=lambda c, f: (c["cp"] > 1) & (_linear_heads(f)[0] > 0),
        message="a gated delta net with cp {cp}",
        mend={"cp": 1},
        targets=MEGATRON,
        until="0.18",
        source="Megatron-Core TransformerConfig 0.16 and 0.17",
    ),
    degree_rule(
        "megatron-linear-heads-cp",
        "tp · cp divides the key and value heads of a gated delta net",
        reads=("tp", "cp"),
        breaks=lambda c, f: (c["cp"] > 1) & _linear_off(c["tp"] * c["cp"], f),
        message=lambda c, f: f"{_linear_heads(f)[1]} key heads of the scan on tp·cp {c['tp'] * c['cp']}",
        mend=_linear_tp,
        targets=MEGATRON,
        since="0.18",
        source="Megatron-Core TransformerConfig",
    ),
    _args(
        "megatron-head-size",
        "heads divide the hidden size unless --kv-channels is given",
        settings=("kv_channels",),
        breaks=lambda s, c, f: (s["kv_channels"] is None) & (f.graph.spec.hidden % f.graph.spec.heads != 0),
        message="hidden size {hidden} over {heads} heads without --kv-channels",
        mend=lambda s, c, f: {"kv_channels": f.graph.spec.head_dim},
    ),
    _args(
        "megatron-positions",
        "--max-position-embeddings reaches the sequence length",
        settings=("max_position_embeddings",),
        breaks=lambda s, c, f: (s["max_position_embeddings"] is not None) & (s.number("max_position_embeddings") < f.seq_len),
        message="--max-position-embeddings {max_position_embeddings} for sequences of {seq_len}",
        mend=lambda s, c, f: {"max_position_embeddings": f.seq_len},
    ),
    _args(
        "megatron-vocabulary",
        "tp divides the padded vocabulary",
        settings=("padded_vocab_size",),
        reads=("tp",),
        breaks=_padded_off,
        message="a vocabulary of {padded_vocab_size} rows on tp {tp}",
        mend=lambda s, c, f: {"padded_vocab_size": padded_vocabulary(f.graph.spec.vocab, c["tp"], 128)},
    ),
    _args(
        "megatron-cp-sizes",
        "the product of --hierarchical-context-parallel-sizes is cp",
        settings=("hierarchical_context_parallel_sizes",),
        reads=("cp",),
        breaks=_sizes_off,
        message="--hierarchical-context-parallel-sizes {hierarchical_context_parallel_sizes} with cp {cp}",
        mend=lambda s, c, f: {"hierarchical_context_parallel_sizes": _two_levels(c["cp"])},
    ),
    _args(
        "megatron-cp-hierarchy",
        "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes",
        settings=("cp_comm_type", "hierarchical_context_parallel_sizes"),
        reads=("cp",),
        breaks=lambda s, c, f: (
            ("a2a+p2p" in s.words("cp_comm_type")) & (s["hierarchical_context_parallel_sizes"] is None) & (c["cp"] > 0)
        ),
        message="--cp-comm-type a2a+p2p without --hierarchical-context-parallel-sizes (cp {cp})",
        mend=lambda s, c, f: {"hierarchical_context_parallel_sizes": _two_levels(c["cp"])},
    ),
    _config(
        "megatron-cp-kinds",
        "a list of --cp-comm-type names a kind for each layer",
        settings=("cp_comm_type",),
        reads=("cp",),
        breaks=lambda s, c, f: (c["cp"] > 1) & (len(s.words("cp_comm_type")) not in {1, f.graph.spec.layers}),
        message=lambda s, c, f: f"{len(s.words('cp_comm_type'))} kinds of --cp-comm-type for {f.graph.spec.layers} layers",
        mend=lambda s, c, f: {"cp_comm_type": s.words("cp_comm_type")[:1]},
    ),
    setting_rule(
        "megatron-cp-heads",
        "all-to-all context parallelism divides heads and key/value heads by tp · cp",
        settings=("cp_comm_type",),
        reads=("tp", "cp"),
        breaks=_a2a_off,
        message="{heads} heads and {kv_heads} key/value heads over tp {tp} · cp {cp}",
        mend={"cp_comm_type": ("p2p",)},
        source="Transformer Engine context_parallel (a2a)",
    ),
    _args(
        "megatron-hybrid-cp",
        "hybrid context parallelism runs without pipeline",
        settings=_HYBRID,
        reads=("pp",),
        breaks=lambda s, c, f: s.on("hybrid_context_parallel") & (c["pp"] > 1),
        message="--hybrid-context-parallel with pp {pp}",
        mend={"pp": 1},
        since="0.16",
    ),
    _args(
        "megatron-hybrid-cp-loss",
        "hybrid context parallelism needs --calculate-per-token-loss, the single dataloader, and no Megatron-FSDP",
        settings=(*_HYBRID, "calculate_per_token_loss", "dataloader_type", "use_megatron_fsdp"),
        breaks=lambda s, c, f: (
            s.on("hybrid_context_parallel")
            & (
                (not s.on("calculate_per_token_loss"))
                | (s.text("dataloader_type") not in {"", "single"})
                | s.on("use_megatron_fsdp")
            )
        ),
        message=(
            "--hybrid-context-parallel with per-token loss {calculate_per_token_loss}, dataloader {dataloader_type}, "
            "Megatron-FSDP {use_megatron_fsdp}"
        ),
        mend={"calculate_per_token_loss": True, "dataloader_type": "single", "use_megatron_fsdp": None},
        since="0.16",
    ),
    _args(
        "megatron-hybrid-cp-even",
        "hybrid context parallelism needs an even dp · cp",
        settings=_HYBRID,
        reads=("dp", "cp"),
        breaks=lambda s, c, f: s.on("hybrid_context_parallel") & (c["dp"] * c["cp"] % 2 != 0),
        message="--hybrid-context-parallel with dp·cp of {dp}·{cp}",
        mend={"hybrid_context_parallel": None},
        since="0.16",
    ),
    _args(
        "megatron-mla-groups",
        "latent attention has no query groups",
        settings=("multi_latent_attention", "group_query_attention"),
        breaks=lambda s, c, f: s.on("multi_latent_attention") & s.on("group_query_attention"),
        message="--group-query-attention with --multi-latent-attention",
        mend={"group_query_attention": None},
        since="0.16",
    ),
    _config(
        "megatron-mla-rope",
        "latent attention fuses rotary positions with yarn alone, does not interleave them, and has no output gate",
        settings=(
            "multi_latent_attention",
            "apply_rope_fusion",
            "rope_type",
            "rotary_interleaved",
            "attention_output_gate",
            "position_embedding_type",
        ),
        breaks=lambda s, c, f: (
            s.on("multi_latent_attention")
            & (
                (s.on("apply_rope_fusion") & (s.text("rope_type") == "rope") & (s.text("position_embedding_type") == "rope"))
                | s.on("rotary_interleaved")
                | s.on("attention_output_gate")
            )
        ),
        message="--multi-latent-attention with --rope-type {rope_type}, interleaved {rotary_interleaved}",
        mend={"apply_rope_fusion": False, "rotary_interleaved": None, "attention_output_gate": None},
    ),
    _args(
        "megatron-mla-fusion",
        "--mla-down-proj-fusion needs latent attention",
        settings=("mla_down_proj_fusion", "multi_latent_attention"),
        breaks=lambda s, c, f: s.on("mla_down_proj_fusion") & (not s.on("multi_latent_attention")),
        message="--mla-down-proj-fusion without --multi-latent-attention",
        mend={"mla_down_proj_fusion": None},
        since="0.17",
    ),
)


def padded_vocabulary(rows: int, tp: int, multiple: int) -> int:
    """Rows of the embedding as Megatron pads it: up to a multiple of `multiple` · tp."""
    step = multiple * tp
    return -(-rows // step) * step


def _two_levels(cp: int) -> tuple[int, int]:
    """The most even two levels of a context-parallel group."""
    inner = max(d for d in divisors(cp) if d * d <= cp)
    return cp // inner, inner
