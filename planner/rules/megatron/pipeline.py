"""Megatron: how layers are split over pipeline stages, virtual stages, micro-batch groups.

    units    = layers + [embedding counted] + [loss counted]
    plain    units % pp = 0, and with vpp (units / pp) % vpp = 0
    uneven   first and last stage by number, the rest divides over the stages between

Layout strings are read by `planner.layouts`. Checked by `validate_args`, `TransformerConfig.__post_init__`,
`get_num_layers_to_build` and the interleaved schedule. Versions that did not check built fewer layers without a word.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.planner.layouts import Layout, check_layout, layout_of, parse_layout
from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule, closest, divisors, nearest
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings
from shardwright.planner.rules.versions import holds_in

_args = partial(setting_rule, source="Megatron-LM validate_args")
_config = partial(setting_rule, source="Megatron-Core TransformerConfig")

FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
PER_STAGE, PER_RANK = "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"
LAYOUT, HYBRID = "pipeline_model_parallel_layout", "hybrid_layer_pattern"
_GROUP = "microbatch_group_size_per_vp_stage"
_WAYS = (PER_STAGE, PER_RANK, LAYOUT)
_SPLIT = (FIRST, LAST, EMBEDDING, LOSS, LAYOUT, HYBRID)


def layers_of(f: Facts) -> int:
    """Decoder layers of the model."""
    return f.graph.spec.layers


def uneven(s: Settings) -> bool:
    """Whether the first or last stage is given by number."""
    return s[FIRST] is not None or s[LAST] is not None


def counted(s: Settings) -> int:
    """Embedding and loss counted as layers: 0, 1 or 2."""
    return int(s.on(EMBEDDING)) + int(s.on(LOSS))


def _plain(s: Settings) -> bool:
    return not uneven(s) and s[LAYOUT] is None and s[HYBRID] is None


def _indivisible(s: Settings, c: Columns, f: Facts) -> BoolArray:
    return np.asarray(_plain(s) & ((layers_of(f) + counted(s)) % c["pp"] != 0))


def _even_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    """A layout that holds all layers; before 0.13, which has no layouts, first and last counts; else a pp that divides."""
    layers, pp, vpp = layers_of(f), c["pp"], c["vpp"]
    others = dict.fromkeys((EMBEDDING, LOSS, PER_STAGE, PER_RANK))
    if holds_in("megatron", s.version, "0.13", None) and layers >= pp * vpp:
        return {**others, LAYOUT: written_layout(layers, pp, vpp, f.graph.spec.mtp_layers)}
    ends = end_counts(layers, pp, vpp)
    if ends is not None:
        return {EMBEDDING: None, LOSS: None, FIRST: ends[0], LAST: ends[1], **_by_rank(s, c)}
    return {"pp": closest(pp, divisors(layers + counted(s)))}


def _left_over(s: Settings, c: Candidate, f: Facts) -> str:
    """What does not divide, and how much of it."""
    words = f" and {counted(s)} counted as layers" if counted(s) else ""
    rest = (layers_of(f) + counted(s)) % c["pp"]
    return f"{layers_of(f)} layers{words} do not divide over pp {c['pp']} ({rest} would be left over)"


def _by_rank(s: Settings, c: Candidate) -> Changes:
    return {PER_STAGE: None, PER_RANK: c["vpp"]} if s[PER_STAGE] is not None else {}


def end_counts(layers: int, pp: int, vpp: int) -> tuple[int, int] | None:
    """Layers of first and last stage that leave equal, divisible stages between them, nearest to an even split.

    None where no two counts do, as with more stages than layers.
    """
    if pp < 2:
        return None
    even, found = layers / pp, []
    for middle in range(vpp, layers // (pp - 2) + 1, vpp) if pp > 2 else (0,):
        left = layers - middle * (pp - 2)
        first = -(-left // (2 * vpp)) * vpp
        last = left - first
        if last >= vpp and last % vpp == 0:
            found.append((max(abs(first - even), abs(last - even), abs(middle - even) * (pp > 2)), first, last))
    best = min(found, default=None)
    return None if best is None else best[1:]


def _end_numbers(s: Settings) -> list[int]:
    return [s.number(name) for name in (FIRST, LAST) if s[name] is not None]


def _middle(s: Settings, c: Columns, f: Facts) -> tuple[int, np.ndarray]:
    """Layers and stages between the ends."""
    ends = _end_numbers(s)
    return layers_of(f) - sum(ends), np.asarray(c["pp"] - len(ends))


def _ends_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    if not uneven(s):
        return np.zeros(len(c["pp"]), dtype=bool)
    left, stages = _middle(s, c, f)
    mismatch = (left != 0) != (stages != 0)
    return np.asarray(
        (c["pp"] > 1) & (min(_end_numbers(s)) > 0) & (mismatch | (left < 0) | (left % np.maximum(stages, 1) != 0))
    )


def _ends_vpp_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    if not uneven(s):
        return np.zeros(len(c["pp"]), dtype=bool)
    left, stages = _middle(s, c, f)
    broken = np.zeros(len(c["pp"]), dtype=bool)
    for count in _end_numbers(s):
        broken |= count % c["vpp"] != 0
    return np.asarray((c["vpp"] > 1) & (broken | ((stages > 0) & (left // np.maximum(stages, 1) % c["vpp"] != 0))))


def _ends_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    """The one end that is given, by the nearest legal number; both where both are."""
    layers, pp, vpp = layers_of(f), c["pp"], c["vpp"]
    given = [name for name in (FIRST, LAST) if s[name] is not None]
    if len(given) == 1:
        held = [n for n in range(vpp, layers, vpp) if (layers - n) % ((pp - 1) * vpp) == 0] if pp > 1 else []
        return {given[0]: closest(s.number(given[0]), tuple(held))} if held else {given[0]: None}
    ends = end_counts(layers, pp, vpp)
    return {FIRST: None, LAST: None} if ends is None else {FIRST: ends[0], LAST: ends[1]}


def _chunk_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    """Layers of a rank (counted ones among them) that virtual stages do not divide."""
    by_rank = (layers_of(f) + counted(s)) // c["pp"]
    size = s.number(PER_STAGE)
    off = by_rank % size != 0 if size > 0 else by_rank % c["vpp"] != 0
    return np.asarray(_plain(s) & ((size > 0) | (c["vpp"] > 1)) & off)


def _chunk_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    by_rank = max((layers_of(f) + counted(s)) // c["pp"], 1)
    if s[PER_STAGE] is not None:
        return {PER_STAGE: closest(s.number(PER_STAGE), divisors(by_rank))}
    count = closest(c["vpp"], divisors(by_rank))
    return {"vpp": count, PER_RANK: count}


def _layout_fault(s: Settings, c: Candidate, f: Facts) -> ShardwrightError | None:
    """What is wrong with the layout string."""
    if s[LAYOUT] is None:
        return None
    try:
        layout: Layout = parse_layout(s.text(LAYOUT))
        check_layout(layout, layers=layers_of(f), mtp_layers=f.graph.spec.mtp_layers, pp=int(c["pp"]))
    except ShardwrightError as error:
        return error
    return None


def _layout_said(s: Settings, c: Candidate, f: Facts) -> str:
    fault = _layout_fault(s, c, f)
    return f"--pipeline-model-parallel-layout {s.text(LAYOUT)}: {fault.message if fault else ''} (pp {c['pp']})"


def _layout_hint(s: Settings, c: Candidate, f: Facts) -> str:
    fault = _layout_fault(s, c, f)
    return fault.hint if fault else ""


def _layout_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    if s[LAYOUT] is None:
        return np.zeros(len(c["pp"]), dtype=bool)
    stages, inverse = np.unique(c["pp"], return_inverse=True)
    return np.array([_layout_fault(s, {"pp": int(pp)}, f) is not None for pp in stages])[inverse]


def written_layout(layers: int, pp: int, vpp: int, mtp_layers: int) -> str:
    """A layout that holds all layers over pp · vpp chunks, the first and last among the smaller ones."""
    chunks = pp * vpp
    base, larger = divmod(layers, chunks)
    start = (chunks - larger) // 2
    return str(layout_of(tuple(base + (start <= k < start + larger) for k in range(chunks)), mtp_layers=mtp_layers))


def _layout_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    return {LAYOUT: written_layout(layers_of(f), c["pp"], c["vpp"], f.graph.spec.mtp_layers)}


def _group_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    size, count = s.number(_GROUP), c["micro_batches"]
    rest = count % max(size, 1)
    out = (size < c["pp"]) | (size > count) | ((rest > 0) & (rest < c["pp"]))
    return np.asarray((size > 0) & (c["vpp"] > 1) & out)


def _group_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    pp, count = c["pp"], c["micro_batches"]
    legal = tuple(size for size in range(pp, count + 1) if not 0 < count % size < pp)
    return {_GROUP: closest(s.number(_GROUP), legal)} if legal else {"vpp": 1, PER_RANK: None, _GROUP: None}


def _segments(s: Settings) -> int:
    return s.text(HYBRID).split("/")[0].count("|") + 1


PIPELINE_RULES: tuple[Rule, ...] = (
    _args(
        "megatron-split-ways",
        "virtual stages are given one way: layers a stage, stages a rank, or a layout",
        settings=_WAYS,
        breaks=lambda s, c, f: sum(s[name] is not None for name in _WAYS) > 1,
        message=lambda s, c, f: " and ".join(f"{n} {s[n]}" for n in _WAYS if s[n] is not None) + " exclude each other",
        mend=lambda s, c, f: dict.fromkeys([n for n in _WAYS if s[n] is not None][:-1]),
    ),
    _args(
        "megatron-layers-even",
        "pp divides the layers (with embedding and loss where they are counted), unless a layout or uneven ends are given",
        settings=_SPLIT,
        reads=("pp", "vpp"),
        breaks=_indivisible,
        message=_left_over,
        remedy=lambda s, c, f: f"use pp {nearest(c['pp'], divisors(layers_of(f) + counted(s)))}",
        mend=_even_mend,
    ),
    _args(
        "megatron-layers-virtual",
        "virtual stages divide the layers of a rank",
        settings=(PER_STAGE, PER_RANK, *_SPLIT),
        reads=("pp", "vpp"),
        breaks=_chunk_off,
        message=lambda s, c, f: (
            f"{(layers_of(f) + counted(s)) // c['pp']} layers of a rank in virtual stages "
            + (f"of {s[PER_STAGE]} layers" if s[PER_STAGE] is not None else f"numbering {c['vpp']}")
        ),
        mend=_chunk_mend,
    ),
    _args(
        "megatron-ends-virtual-size",
        "with uneven ends virtual stages are given by number, not by layers",
        settings=(PER_STAGE, FIRST, LAST),
        reads=("vpp",),
        breaks=lambda s, c, f: uneven(s) & (s[PER_STAGE] is not None),
        message="{num_layers_per_virtual_pipeline_stage} layers a virtual stage with uneven ends",
        mend=lambda s, c, f: {PER_STAGE: None, PER_RANK: c["vpp"]},
    ),
    _config(
        "megatron-ends-alone",
        "uneven ends need a pipeline of two stages or more",
        settings=(FIRST, LAST),
        reads=("pp",),
        breaks=lambda s, c, f: uneven(s) & (c["pp"] == 1),
        message=lambda s, c, f: f"layers of the first or last stage ({_end_numbers(s)}) with pp {c['pp']}",
        mend={FIRST: None, LAST: None},
    ),
    _config(
        "megatron-ends-positive",
        "first and last stage hold at least one layer",
        settings=(FIRST, LAST),
        reads=("pp", "vpp"),
        breaks=lambda s, c, f: uneven(s) and min(_end_numbers(s)) <= 0,
        message=lambda s, c, f: f"{min(_end_numbers(s))} layers on the first or last stage",
        mend=_ends_mend,
    ),
    _config(
        "megatron-ends",
        "what uneven ends leave divides over the stages between, and leaves none where there are none",
        settings=(FIRST, LAST),
        reads=("pp", "vpp"),
        breaks=_ends_off,
        message=lambda s, c, f: (
            f"{layers_of(f) - sum(_end_numbers(s))} of {layers_of(f)} layers are left for "
            f"{c['pp'] - len(_end_numbers(s))} of {c['pp']} stages"
        ),
        mend=_ends_mend,
    ),
    _config(
        "megatron-ends-virtual",
        "virtual stages divide the layers of first, last and middle stages",
        settings=(FIRST, LAST),
        reads=("pp", "vpp"),
        breaks=_ends_vpp_off,
        message=lambda s, c, f: f"stages of {_end_numbers(s)} and {layers_of(f) - sum(_end_numbers(s))} layers, vpp {c['vpp']}",
        mend=_ends_mend,
    ),
    _config(
        "megatron-ends-counted",
        "uneven ends exclude counting embedding or loss as layers",
        settings=(FIRST, LAST, EMBEDDING, LOSS),
        breaks=lambda s, c, f: uneven(s) & (counted(s) > 0),
        message=lambda s, c, f: f"uneven ends {_end_numbers(s)} and {counted(s)} counted as layers",
        mend={EMBEDDING: None, LOSS: None},
    ),
    _config(
        "megatron-layout-alone",
        "a layout excludes uneven ends and counting embedding or loss",
        settings=(LAYOUT, FIRST, LAST, EMBEDDING, LOSS),
        breaks=lambda s, c, f: (s[LAYOUT] is not None) & (uneven(s) | (counted(s) > 0)),
        message="--pipeline-model-parallel-layout {pipeline_model_parallel_layout} with other ways to split layers",
        mend={FIRST: None, LAST: None, EMBEDDING: None, LOSS: None},
        since="0.13",
    ),
    _config(
        "megatron-layout",
        "a layout holds embedding, every layer, MTP and loss, each once and in order, over a multiple of pp chunks",
        settings=(LAYOUT,),
        reads=("pp", "vpp"),
        breaks=_layout_off,
        message=_layout_said,
        remedy=_layout_hint,
        mend=_layout_mend,
        since="0.13",
    ),
    _args(
        "megatron-virtual-alone",
        "virtual stages need a pipeline",
        settings=(PER_STAGE, PER_RANK),
        reads=("pp", "vpp"),
        breaks=lambda s, c, f: ((s.number(PER_RANK) > 1) | (c["vpp"] > 1)) & (c["pp"] == 1),
        message="virtual stages with pp {pp}",
        mend={PER_STAGE: None, PER_RANK: None, "vpp": 1},
    ),
    _args(
        "megatron-virtual-sends",
        "interleaving over two stages needs sends that overlap (with more stages it may do without)",
        settings=("overlap_p2p_comm",),
        reads=("pp", "vpp"),
        breaks=lambda s, c, f: (not s.on("overlap_p2p_comm")) & (c["vpp"] > 1) & (c["pp"] == 2),
        message="vpp {vpp} over pp {pp} with --no-overlap-p2p-communication",
        mend={"overlap_p2p_comm": True},
    ),
    _args(
        "megatron-sends-alone",
        "without virtual stages overlapping of sends and aligned gathers are switched off",
        settings=("align_param_gather",),
        reads=("pp", "vpp"),
        breaks=lambda s, c, f: s.on("align_param_gather") & (c["vpp"] == 1),
        message="--align-param-gather without virtual stages (pp {pp}) is switched off",
        mend={"align_param_gather": None},
        severity="changed",
    ),
    setting_rule(
        "megatron-group",
        "the micro-batch group of a virtual stage lies between pp and the micro-batches, and leaves none or at least pp",
        settings=(_GROUP,),
        reads=("pp", "vpp", "micro_batches"),
        breaks=_group_off,
        message="groups of {microbatch_group_size_per_vp_stage} of {micro_batches} micro-batches over pp {pp}",
        mend=_group_mend,
        source="Megatron-Core forward_backward_pipelining_with_interleaving",
    ),
    setting_rule(
        "megatron-defer-embedding",
        "deferring the embedding's weight gradient needs a pipeline and fused gradient accumulation",
        settings=("defer_embedding_wgrad_compute", "gradient_accumulation_fusion", "wgrad_deferral_limit"),
        reads=("pp",),
        breaks=lambda s, c, f: (
            s.on("defer_embedding_wgrad_compute")
            & ((c["pp"] == 1) | (not s.on("gradient_accumulation_fusion")) | (s.number("wgrad_deferral_limit") < 0))
        ),
        message="--defer-embedding-wgrad-compute with pp {pp}, fused accumulation {gradient_accumulation_fusion}",
        mend={"defer_embedding_wgrad_compute": None},
        source="Megatron-Core ModelParallelConfig",
    ),
    _args(
        "megatron-hybrid-pattern",
        "a hybrid layer pattern is a multiple of pp segments",
        settings=(HYBRID,),
        reads=("pp",),
        breaks=lambda s, c, f: (s[HYBRID] is not None) & (_segments(s) > 1) & (_segments(s) % c["pp"] != 0),
        message=lambda s, c, f: f"{_segments(s)} segments of --hybrid-layer-pattern over pp {c['pp']}",
        mend=lambda s, c, f: {"pp": closest(c["pp"], divisors(_segments(s)))},
        since="0.17",
    ),
    _args(
        "megatron-hybrid-alone",
        "a hybrid layer pattern excludes every other way to split layers",
        settings=(HYBRID, *_WAYS, FIRST, LAST, EMBEDDING, LOSS),
        breaks=lambda s, c, f: (
            (s[HYBRID] is not None) & (uneven(s) | (counted(s) > 0) | any(s[name] is not None for name in _WAYS))
        ),
        message="--hybrid-layer-pattern {hybrid_layer_pattern} with other ways to split layers",
        mend=dict.fromkeys((*_WAYS, FIRST, LAST, EMBEDDING, LOSS)),
        since="0.17",
    ),
    _args(
        "megatron-mtp-positions",
        "multi-token prediction takes rotary positions or none",
        settings=("mtp_num_layers", "position_embedding_type"),
        breaks=lambda s, c, f: (s.number("mtp_num_layers") > 0) & (s.text("position_embedding_type") not in {"rope", "none"}),
        message="{mtp_num_layers} MTP layers with --position-embedding-type {position_embedding_type}",
        mend={"position_embedding_type": "rope"},
    ),
    _args(
        "megatron-mtp-context",
        "before 0.14, multi-token prediction excludes context parallelism",
        settings=("mtp_num_layers",),
        reads=("cp",),
        breaks=lambda s, c, f: (s.number("mtp_num_layers") > 0) & (c["cp"] > 1),
        message="{mtp_num_layers} MTP layers with cp {cp}",
        mend={"cp": 1},
        until="0.14",
    ),
    _config(
        "megatron-mtp-mixing",
        "mixing of hidden states needs two MTP layers",
        settings=("mtp_hsm", "mtp_num_layers"),
        breaks=lambda s, c, f: s.on("mtp_hsm") & (s.number("mtp_num_layers") < 2),
        message="--mtp-hsm with {mtp_num_layers} MTP layers is switched off",
        mend={"mtp_hsm": None},
        severity="changed",
        since="0.20",
    ),
    _config(
        "megatron-hyper-connections",
        "hyper-connections run without pipeline, MTP, full recomputing and fp32 residuals",
        settings=("enable_mhc_connections", "mtp_num_layers", "recompute_granularity", "fp32_residual_connection"),
        reads=("pp",),
        breaks=lambda s, c, f: (
            s.on("enable_mhc_connections")
            & (
                (c["pp"] > 1)
                | (s.number("mtp_num_layers") > 0)
                | (s.text("recompute_granularity") == "full")
                | s.on("fp32_residual_connection")
            )
        ),
        message="hyper-connections with pp {pp}, {mtp_num_layers} MTP layers, recompute {recompute_granularity}",
        mend={"pp": 1, "mtp_num_layers": None, "recompute_granularity": None, "fp32_residual_connection": None},
        since="0.20",
    ),
)
