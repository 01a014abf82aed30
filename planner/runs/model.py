"""The architecture of a measured run: its shape columns, laid over the preset of that name or over its family.

    spec = preset of the normalised name, where layers and hidden agree, with the row's cells laid over it
         | family of the name, with the row's cells, blanks filled in

Parameters of a decoder of width h, L layers, heads a of size d, k key-value heads, width f, vocabulary V:

    P = L (h d (2 a + 2 k) + g h f) + (1 or 2) V h + p h,     g = 3 with a gate, else 2    `dense_parameters`

with p the rows of a table of learned positions.

`spec_of` decides for the gate whose P is nearer to the stated parameters, derives blank layers from P and
finds a blank hidden size on the family's ladder. Every value it fills in is named in `defaults`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from shardwright.errors import ShardwrightError, UnsupportedError
from shardwright.models.catalog import load_model, model_from_dict, model_ids
from shardwright.models.graph import ModelGraph
from shardwright.models.spec import ModelSpec, MoeSpec
from shardwright.planner.runs.families import GPT, HEAD_SIZES, LLAMA, Family, Rung, family_of, is_hybrid, is_lora, lora_rank
from shardwright.planner.runs.table import RunRow

SIZE_TOLERANCE = 0.02
"""A published size whose parameters are this near to the stated ones is taken as it is."""

LORA_RANK, LORA_TARGETS = 16, "attention"
"""Adapters of runs that do not describe theirs: those of the MLPerf Training benchmark (llama2_70b_lora)."""

FUSED_LORA_TARGETS = "qkv+out_proj"
"""The same in stacks that keep the three projections as one product: one adapter for it (Megatron-Core's linear_qkv and
linear_proj; `target_modules` attention of NeMo, mlcommons/training_results_v5.1)."""

LAYER_TOLERANCE = 0.04
"""A layer count is rounded to the pipeline's multiple if that moves it by no more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder while they are being collected."""

    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool
    tied: bool
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """The model of a run.

    Attributes:
        graph: its layer graph.
        defaults: what the row does not say and how it was filled in.
        lora: adapters, where only they are trained.
    """

    graph: ModelGraph
    defaults: tuple[str, ...] = ()
    lora: str | None = None


def model_of(row: RunRow, *, vocab: int | None = None, fused_qkv: bool = False) -> RunModel:
    """The model of a row.

    Args:
        row: the run.
        vocab: vocabulary where the row states none (None: the family's).
        fused_qkv: whether the stack keeps the projections of attention as one product, which then gets one adapter.

    Raises:
        UnsupportedError: adapters on quantised weights, a hybrid, or a shape that cannot be known.
        ShardwrightError: columns that cannot both hold.
    """
    lora, adapters = _lora(row, FUSED_LORA_TARGETS if fused_qkv else LORA_TARGETS)
    spec, defaults = _preset_spec(row) or _family_spec(row, vocab)
    return RunModel(graph=_graph(spec), defaults=defaults + adapters, lora=lora)


def _lora(row: RunRow, targets: str) -> tuple[str | None, tuple[str, ...]]:
    """Adapters of a row whose model says that only they are trained: on attention, of the rank its notes state."""
    if not is_lora(row.model):
        return None, ()
    if "qlora" in row.model.lower() or "peft" in row.model.lower():
        raise UnsupportedError("adapters of an unknown kind, or on quantised weights (QLoRA), are not modelled")
    rank = lora_rank(row.notes)
    made = f"rank={rank or LORA_RANK},targets={targets}"
    return made, (f"lora.targets={targets}", *(() if rank else (f"lora.rank={LORA_RANK}",)))


def dense_parameters(shape: Shape) -> float:
    """Parameters of a dense decoder, norms and biases left out."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    block = (3 if shape.gated else 2) * shape.hidden * shape.ffn
    return shape.layers * (attention + block) + ((1 if shape.tied else 2) * shape.vocab + shape.positions) * shape.hidden


@lru_cache(maxsize=512)
def _graph(spec: ModelSpec) -> ModelGraph:
    return model_from_dict(spec.to_dict())


def _preset_spec(row: RunRow) -> tuple[ModelSpec, tuple[str, ...]] | None:
    name = preset_name(row.model)
    if name is None:
        return None
    spec = load_model(name).spec
    if row.layers not in (None, spec.layers) or row.hidden not in (None, spec.hidden):
        return None
    try:
        return _laid_over(spec, row), (f"architecture={name}",)
    except ShardwrightError:
        return None


@lru_cache(maxsize=512)
def preset_name(model: str) -> str | None:
    """Id of the model preset whose name equals `model` up to case, hyphens and a mark in brackets."""
    wanted = _normal(re.sub(r"\[.*?\]|\(.*?\)", "", model))
    return next((name for name in model_ids() if _normal(name) == wanted), None)


def _normal(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.lower())


def _laid_over(spec: ModelSpec, row: RunRow) -> ModelSpec:
    changes: dict[str, object] = {"name": row.model}
    if row.vocab:
        changes["vocab"] = row.vocab
    if spec.mla is None:
        given = {"heads": row.heads, "kv_heads": row.kv_heads, "head_dim": row.head_dim}
        changes |= {key: value for key, value in given.items() if value}
    if spec.moe is not None:
        changes["moe"] = _moe_laid_over(spec, spec.moe, row)
    elif row.ffn:
        changes["ffn"] = row.ffn
    return replace(spec, **changes)  # type: ignore[arg-type]


def _moe_laid_over(spec: ModelSpec, moe: MoeSpec, row: RunRow) -> MoeSpec:
    width = row.ffn if row.ffn and row.ffn != spec.ffn else moe.expert_ffn
    return replace(moe, experts=row.experts or moe.experts, topk=row.topk or moe.topk, expert_ffn=width)


def _family_spec(row: RunRow, vocab: int | None) -> tuple[ModelSpec, tuple[str, ...]]:
    family = family_of(row.model)
    if row.layers is None or row.hidden is None or row.ffn is None:
        family = _with_ladder(row, family)
    shape, defaults = _shape(row, family, vocab)
    if family is None:
        family = LLAMA if shape.gated else GPT
    activation = family.activation if shape.gated == family.gated else ("swiglu" if shape.gated else "gelu")
    moe, ffn = _moe(row, shape)
    spec = ModelSpec(
        name=row.model, layers=shape.layers, hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads,
        head_dim=shape.head_dim, vocab=shape.vocab, ffn=ffn, max_positions=row.seq_len, positions=family.positions,
        norm=family.norm, activation=activation, qkv_bias=family.biases, out_bias=family.biases, mlp_bias=family.biases,
        dropout=family.dropout, embedding_norm=family.embedding_norm, tied_embeddings=shape.tied, moe=moe,
    )  # fmt: skip
    return spec, defaults


def _with_ladder(row: RunRow, family: Family | None) -> Family:
    if is_hybrid(row.model):
        raise UnsupportedError("the model mixes attention with recurrent layers and the row states no full shape")
    if row.params_b is None or family is None or not family.ladder:
        raise UnsupportedError("the row states no full shape (layers, hidden, ffn), and nothing it could be derived from")
    return family


def _shape(row: RunRow, family: Family | None, vocab: int | None) -> tuple[Shape, tuple[str, ...]]:
    size = row.vocab or vocab or (family or LLAMA).vocab
    candidates = list(_candidates(row, family, size))
    stated = row.params_b * 1e9 if row.params_b else None
    best = candidates[0] if stated is None else min(candidates, key=lambda c: abs(dense_parameters(c) - stated))
    if row.layers is None and stated is not None and abs(dense_parameters(best) / stated - 1) > SIZE_TOLERANCE:
        best = replace(best, layers=_layers(best, stated, row.pp or 1))
    names = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")
    return best, tuple(f"{name}={getattr(best, name)}" for name in names if getattr(row, name) is None)


def _candidates(row: RunRow, family: Family | None, vocab: int) -> Iterable[Shape]:
    """Every reading of the row; the first is the family's own."""
    rungs = _rungs(row, family)
    gates = _gates(row, family)
    free = row.hidden is None  # a whole size is looked for: heads and tying are looked for with it
    tied = (False, True) if free and family is not None and family.gated else ((family or LLAMA).tied,)
    positions = row.seq_len or 0 if family is not None and family.positions == "learned" else 0
    for rung, gated, is_tied in product(rungs, gates, tied):
        heads, head_dim = _heads(row, rung.hidden, family)
        for kv_heads in [row.kv_heads] if row.kv_heads else [heads, 8] if free and gated and heads % 8 == 0 else [heads]:
            yield Shape(
                hidden=rung.hidden, layers=rung.layers, ffn=rung.ffn, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                vocab=vocab, gated=gated, tied=is_tied, positions=positions,
            )  # fmt: skip


def _gates(row: RunRow, family: Family | None) -> tuple[bool, ...]:
    """Gated or not, the likelier first; both where the parameters can decide."""
    first = family.gated if family else (row.kv_heads or 0) != (row.heads or 0)
    decidable = row.params_b is not None and row.ffn is not None and row.experts is None and row.layers is not None
    return (first, not first) if decidable else (first,)


def _rungs(row: RunRow, family: Family | None) -> tuple[Rung, ...]:
    if row.hidden is None:
        return family.ladder if family else ()
    ffn = row.ffn or (4 * row.hidden if not (family and family.gated) else _gated_width(row.hidden))
    return (Rung(hidden=row.hidden, layers=row.layers or 1, ffn=ffn),)


def _gated_width(hidden: int) -> int:
    return -(-8 * hidden // 3 // 256) * 256


def _heads(row: RunRow, hidden: int, family: Family | None) -> tuple[int, int]:
    if row.heads:
        return row.heads, row.head_dim or max(hidden // row.heads, 1)
    tp = row.tp or 1
    published = family.head_sizes.get(hidden) if family is not None else None
    for size in (row.head_dim,) if row.head_dim else (published, *HEAD_SIZES) if published else HEAD_SIZES:
        if hidden % size == 0 and hidden // size % tp == 0:
            return hidden // size, size
    return tp, max(hidden // tp, 1)


def _layers(shape: Shape, stated: float, pp: int) -> int:
    """Layers that make up the stated parameters, a multiple of the pipeline's stages where that is near."""
    ends = dense_parameters(replace(shape, layers=0))
    exact = max((stated - ends) / (dense_parameters(replace(shape, layers=1)) - ends), 1.0)
    multiple = max(round(exact / pp), 1) * pp
    return multiple if abs(multiple / exact - 1) <= LAYER_TOLERANCE else max(round(exact), 1)


def _moe(row: RunRow, shape: Shape) -> tuple[MoeSpec | None, int | None]:
    """Experts of a row without a preset: `ffn` is a routed expert's width unless the parameters say otherwise."""
    if row.experts is None:
        return None, shape.ffn
    if row.topk is None:
        raise UnsupportedError("the row states experts and no top-k")
    return MoeSpec(experts=row.experts, topk=row.topk, expert_ffn=_expert_width(row, shape)), None


def _expert_width(row: RunRow, shape: Shape) -> int:
    if row.params_b is None or row.experts is None:
        return shape.ffn
    rest = dense_parameters(replace(shape, ffn=0))
    a_column = shape.layers * row.experts * (3 if shape.gated else 2) * shape.hidden
    fitting = (row.params_b * 1e9 - rest) / a_column
    return shape.ffn if 0.5 < fitting / shape.ffn < 2 else max(round(fitting / 128), 1) * 128
