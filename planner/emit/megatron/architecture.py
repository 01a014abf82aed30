"""The model as Megatron arguments, and what of a model they cannot say.

    architecture_words(request)      --num-layers … of the decoder
    architecture_refusals(request)   fields of the model without an argument in that release

Patterns over layers: `--moe-layer-freq` and `--no-rope-freq` take a Python list of 0 and 1, one a layer;
`--window-attn-skip-freq` a list with 1 where the window holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwright.models.spec import ModelSpec
from shardwright.planner.emit.base import Refusal, Request, Word
from shardwright.planner.emit.megatron.arguments import flag, option
from shardwright.planner.emit.megatron.versions import SINCE, has, null_tokenizer_adds_one

_ACTIVATIONS = {"swiglu": "swiglu", "relu2": "squared-relu", "gelu": ""}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
_QK_NORMS = {"none": "", "head": "qk-layernorm", "unit": "qk-l2-norm"}
VOCABULARY_MULTIPLE = 128


def architecture_words(request: Request) -> tuple[Word, ...]:
    """The arguments of the model."""
    spec = request.spec
    return (
        *_size_words(spec),
        *_vocabulary_words(request),
        *_block_words(spec),
        *_attention_words(spec),
        *(_mla_words(spec) if spec.mla else ()),
        *_moe_words(request),
        *(option("mtp-num-layers", spec.mtp_layers) if spec.mtp_layers else ()),
    )


def _size_words(spec: ModelSpec) -> tuple[Word, ...]:
    width = spec.ffn or (spec.moe.expert_ffn if spec.moe else 0)
    return (
        *option("num-layers", spec.layers),
        *option("hidden-size", spec.hidden),
        *option("ffn-hidden-size", width),
        *option("num-attention-heads", spec.heads),
    )


def _vocabulary_words(request: Request) -> tuple[Word, ...]:
    vocab = request.spec.vocab - null_tokenizer_adds_one(request.version)
    return (
        *option("tokenizer-type", "NullTokenizer"),
        *option("vocab-size", vocab),
        *option("make-vocab-size-divisible-by", VOCABULARY_MULTIPLE),
        *flag("untie-embeddings-and-output-weights", not request.spec.tied_embeddings),
    )


def _block_words(spec: ModelSpec) -> tuple[Word, ...]:
    dropout = 0.1 if spec.dropout else 0.0
    activation = _ACTIVATIONS[spec.activation]
    return (
        *option("normalization", _NORMS[spec.norm]),
        *flag(activation, bool(activation)),
        *flag("disable-bias-linear", not _biased(spec)),
        *flag("add-qkv-bias", spec.qkv_bias and not _biased(spec)),
        *option("hidden-dropout", dropout),
        *option("attention-dropout", dropout),
        *option("position-embedding-type", _POSITIONS[spec.positions]),
    )


def _block_biases(spec: ModelSpec) -> frozenset[bool]:
    """Whether there are biases on the projections of feed-forward blocks and experts: one value where all agree."""
    dense = any(not spec.is_moe(layer) for layer in range(spec.layers)) or bool(spec.moe and spec.moe.shared_ffn)
    return frozenset(([spec.mlp_bias] if dense else []) + ([spec.moe.expert_bias] if spec.moe else []))


def _biased(spec: ModelSpec) -> bool:
    """Whether all linear layers have biases."""
    return _block_biases(spec) == {True}


def _said_biases(spec: ModelSpec) -> bool:
    """Whether the biases are on all projections, on queries, keys and values alone, or on none."""
    blocks = _block_biases(spec)
    return len(blocks) == 1 and spec.out_bias == _biased(spec) and (spec.qkv_bias or not _biased(spec))


def _attention_words(spec: ModelSpec) -> tuple[Word, ...]:
    grouped = spec.kv_heads != spec.heads and spec.mla is None
    return (
        *((*flag("group-query-attention", True), *option("num-query-groups", spec.kv_heads)) if grouped else ()),
        *(option("kv-channels", spec.head_dim) if spec.mla is None else ()),
        *flag(_QK_NORMS[spec.qk_norm], spec.qk_norm != "none"),
        *flag("attention-output-gate", spec.attention_gate),
        *(option("softmax-type", "learnable") if spec.sinks else ()),
        *_window_words(spec),
        *_rotary_words(spec),
    )


def _window_words(spec: ModelSpec) -> tuple[Word, ...]:
    windows = [spec.window_of(layer) for layer in range(spec.layers)]
    width = next((window for window in windows if window is not None), None)
    if width is None:
        return ()
    pattern = _bits([window is not None for window in windows])
    return (*option("window-size", f"({width - 1},0)"), *(() if all(windows) else option("window-attn-skip-freq", pattern)))


def _rotary_words(spec: ModelSpec) -> tuple[Word, ...]:
    if spec.positions != "rope" or all(spec.rotary_layers):
        return ()
    return option("no-rope-freq", _bits([not shape.rotary for shape in spec.shapes()]))


def _mla_words(spec: ModelSpec) -> tuple[Word, ...]:
    mla = spec.mla
    if mla is None:
        return ()
    return (
        *flag("multi-latent-attention", True),
        *(option("q-lora-rank", mla.q_rank) if mla.q_rank else ()),
        *option("kv-lora-rank", mla.kv_rank),
        *option("qk-head-dim", mla.nope_dim),
        *option("qk-pos-emb-head-dim", mla.rope_dim),
        *option("v-head-dim", mla.v_dim),
        *flag("qk-layernorm", spec.qk_norm == "none"),
    )


def _moe_words(request: Request) -> tuple[Word, ...]:
    spec, moe = request.spec, request.spec.moe
    if moe is None:
        return ()
    dense = [not spec.is_moe(layer) for layer in range(spec.layers)]
    return (
        *option("num-experts", moe.experts),
        *option("moe-router-topk", moe.topk),
        *option("moe-ffn-hidden-size", moe.expert_ffn),
        *flag("moe-grouped-gemm", _grouped(request)),
        *(option("moe-layer-freq", _bits([not d for d in dense])) if any(dense) else ()),
        *(option("moe-shared-expert-intermediate-size", moe.shared_ffn) if moe.shared_ffn else ()),
        *flag("moe-shared-expert-gate", moe.shared_gate),
        *option("moe-router-load-balancing-type", "none" if moe.correction_bias else "aux_loss"),
        *(() if moe.correction_bias else option("moe-aux-loss-coeff", 0.001)),
        *(_correction_words() if moe.correction_bias else ()),
        *(_group_words(moe.groups, moe.topk_groups) if moe.groups > 1 else ()),
        *option("moe-router-dtype", "fp32"),
    )


def _grouped(request: Request) -> bool:
    """Whether the products of all experts are one: in older releases only where weights are bf16."""
    return request.training["precision"] not in ("fp16", "fp32") or has(request.version, "grouped-gemm-in-fp16")


def _correction_words() -> tuple[Word, ...]:
    return (*option("moe-router-score-function", "sigmoid"), *flag("moe-router-enable-expert-bias", True))


def _group_words(groups: int, topk_groups: int) -> tuple[Word, ...]:
    return (*option("moe-router-num-groups", groups), *option("moe-router-group-topk", topk_groups))


def _bits(values: Sequence[bool]) -> str:
    """A list of 0 and 1 as the arguments write it, runs shortened: `([0]*3+[1]*58)`."""
    runs: list[tuple[int, int]] = []
    for value in map(int, values):
        runs = [*runs[:-1], (value, runs[-1][1] + 1)] if runs and runs[-1][0] == value else [*runs, (value, 1)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"


_Test = Callable[[ModelSpec], bool]

_UNSAID: tuple[tuple[str, _Test, str, str], ...] = (
    ("positions", lambda s: s.positions not in _POSITIONS, "no argument for ALiBi positions", "use the target torchrun"),
    ("position_offset", lambda s: s.position_offset > 0, "no rows before the first position", "use the target torchrun"),
    ("norm", lambda s: s.norm not in _NORMS, "norms are RMSNorm or LayerNorm with bias", "use the target torchrun"),
    ("norm_at", lambda s: s.norm_at != "before", "norms stand before each block", "use the target torchrun"),
    ("block", lambda s: s.block != "sequential", "blocks run one after the other", "use the target torchrun"),
    ("embedding_norm", lambda s: s.embedding_norm, "no norm after the embedding", "use the target torchrun"),
    (
        "activation",
        lambda s: s.activation not in _ACTIVATIONS,
        "activations are SwiGLU, GELU, squared ReLU",
        "use the target torchrun",
    ),
    (
        "out_bias",
        lambda s: not _said_biases(s),
        "biases are on all projections, on QKV alone, or on none",
        "use the target torchrun",
    ),
    ("head_bias", lambda s: s.head_bias, "no bias on the output head", "use the target torchrun"),
    (
        "qk_norm",
        lambda s: s.qk_norm not in _QK_NORMS,
        "queries and keys are normalised head by head",
        "use the target torchrun",
    ),
    (
        "windows",
        lambda s: len({w for w in s.windows if w}) > 1,
        "one window for all layers that have one",
        "use the target torchrun",
    ),
    ("chunked", lambda s: s.chunked, "no chunked attention", "use the target torchrun"),
    (
        "mixers",
        lambda s: set(s.mixers) != {"attention"},
        "pretrain_gpt.py has attention in every layer; hybrids run pretrain_mamba.py",
        "use the target torchrun",
    ),
    ("mlps", lambda s: set(s.mlps) != {"ffn"}, "every layer has a feed-forward block or experts", "use the target torchrun"),
    (
        "layer_kv_heads",
        lambda s: any(k is not None for k in s.layer_kv_heads),
        "all layers have the same heads",
        "use the target torchrun",
    ),
    (
        "layer_ffn",
        lambda s: any(f is not None for f in s.layer_ffn),
        "all dense layers have one width",
        "use the target torchrun",
    ),
    ("attention_softcap", lambda s: s.attention_softcap, "attention scores are not capped", "use the target torchrun"),
    ("logits_softcap", lambda s: s.logits_softcap, "logits are not capped", "use the target torchrun"),
    (
        "mla.index_heads",
        lambda s: s.mla is not None and s.mla.index_heads is not None,
        "no indexer of sparse attention",
        "use the target torchrun",
    ),
    (
        "moe.router_bias",
        lambda s: s.moe is not None and s.moe.router_bias and not _biased(s),
        "the router has a bias only where all projections have",
        "use the target torchrun",
    ),
)

_NEW: tuple[tuple[str, _Test, str], ...] = (
    ("sinks", lambda s: s.sinks, "softmax-type"),
    ("windows", lambda s: any(s.windows), "window-size"),
    ("rotary_layers", lambda s: s.positions == "rope" and not all(s.rotary_layers), "no-rope-freq"),
    ("qk_norm", lambda s: s.qk_norm == "unit", "qk-l2-norm"),
    ("attention_gate", lambda s: s.attention_gate, "attention-output-gate"),
    ("moe.shared_gate", lambda s: s.moe is not None and s.moe.shared_gate, "moe-shared-expert-gate"),
    ("moe.router_bias", lambda s: s.moe is not None and s.moe.router_bias, "router-bias"),
)


def architecture_refusals(request: Request) -> tuple[Refusal, ...]:
    """Fields of the model without an argument in the release asked for."""
    spec, version = request.spec, request.version
    never = tuple(
        Refusal(field=f"model.{field}", message=said, remedy=remedy) for field, test, said, remedy in _UNSAID if test(spec)
    )
    later = tuple(
        Refusal(field=f"model.{field}", message=f"Megatron {version} has no --{feature}", remedy="write for a later release")
        for field, test, feature in _NEW
        if test(spec) and not has(version, feature)
    )
    return never + later


UNSAID_OF_MODELS = {f"model.{field}": said for field, _, said, _ in _UNSAID} | {
    f"model.{field}": f"before {SINCE[feature]}: no --{feature}" for field, _, feature in _NEW
}
"""Fields of a model -> what of them has no argument."""
