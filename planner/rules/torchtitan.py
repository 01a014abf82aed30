"""Rules of torchtitan, by version: 0.2 (TOML), 0.3 and main (Python configurations).

    dp_replicate · dp_shard · cp · tp · pp = world         ep divides dp_shard · cp · tp
    stages = ceil((layers + less on the first + less on the last stage) / layers a stage)

Checked by `ParallelDims`, `Trainer`, `pipeline_parallel` and the models' parallelize functions. Schedules and the switches of
`rules.targets` are not repeated here.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.planner.plans import BoolArray, IntArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule, closest, divisors
from shardwright.planner.rules.declaring import degree_rule, setting_rule
from shardwright.planner.rules.settings import Settings
from shardwright.planner.schedules.registry import SCHEDULE_IDS

TITAN = ("torchtitan",)
TORCH = ("torchtitan", "torchrun")

_degree = partial(degree_rule, targets=TITAN)
_setting = partial(setting_rule, targets=TITAN)

_SHARD = "parallelism.data_parallel_shard_degree"
_REPLICATE = "parallelism.data_parallel_replicate_degree"
_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
_LESS = ("parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_last_stage_less_layers")
_PARTS = ("parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_split_points")
_LOCAL, _GLOBAL = "training.local_batch_size", "training.global_batch_size"
_PP_MICRO = "parallelism.pipeline_parallel_microbatch_size"
_GRAPHS = "training.disable_cuda_graphs"
_ASYNC = ("parallelism.enable_async_tensor_parallel", "compile.enable_async_tensor_parallel")
_TOKENS, _STEP_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank", "training.num_tokens_per_train_step"
_SEVERAL = np.array([name not in {"1f1b", "gpipe"} for name in SCHEDULE_IDS])
"""Schedules that give a rank several stages."""


def _sharded(c: Columns) -> IntArray:
    """Ranks that share the states: dp_shard · cp · tp."""
    shard = np.where(c["zero"] == 0, 1, c["dp"] // np.maximum(c["dp_replicate"], 1))
    return np.asarray(shard * c["cp"] * c["tp"])


def _divisor(c: Columns | Candidate) -> IntArray:
    """What divides the tokens of a sequence."""
    return np.asarray(np.where(c["sp"], c["tp"], 1) * np.where(np.asarray(c["cp"]) > 1, 2 * c["cp"], 1))


def _ep_mend(c: Candidate, f: Facts) -> Changes:
    shard = 1 if c["zero"] == 0 else c["dp"] // max(c["dp_replicate"], 1)
    experts = f.graph.spec.moe.experts if f.graph.spec.moe else 1
    return {"ep": closest(c["ep"], divisors(int(np.gcd(shard * c["cp"] * c["tp"], experts))))}


def _world(s: Settings, c: Columns, f: Facts) -> BoolArray:
    shard, replicate = s.number(_SHARD), max(s.number(_REPLICATE), 1)
    stage = c["cp"] * c["tp"] * c["pp"]
    rest = np.asarray(f.gpus % (replicate * stage) != 0)
    return rest if shard == -1 else np.asarray(replicate * shard * stage != f.gpus)


def _stages(s: Settings, f: Facts) -> int:
    units = f.graph.spec.layers + sum(s.number(name) for name in _LESS)
    return -(-units // max(s.number(_PER_STAGE), 1))


def _stages_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    return np.asarray((s.number(_PER_STAGE) > 0) & (c["pp"] > 1) & (_stages(s, f) % c["pp"] != 0))


def _stages_many(s: Settings, c: Columns, f: Facts) -> BoolArray:
    by_rank = _stages(s, f) // c["pp"]
    looped = _SEVERAL[c["schedule"]]
    off = np.where(looped, by_rank < 2, by_rank != 1)
    return np.asarray((s.number(_PER_STAGE) > 0) & (c["pp"] > 1) & (_stages(s, f) % c["pp"] == 0) & off)


def _stages_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    """Layers a stage that make as many stages as the plan has chunks, or the nearest that a rank can hold."""
    units = f.graph.spec.layers + sum(s.number(name) for name in _LESS)
    chunks = c["pp"] * (max(c["vpp"], 2) if _SEVERAL[c["schedule"]] else 1)
    legal = tuple(size for size in range(1, units + 1) if -(-units // size) == chunks)
    return {_PER_STAGE: closest(s.number(_PER_STAGE), legal)} if legal else {_PER_STAGE: None}


def _weights_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    chunks = c["pp"] * c["vpp"]
    by_stage = (f.graph.spec.layers + sum(s.number(name) for name in _LESS)) // chunks
    heaviest = max(s.number(name) for name in _LESS)
    free = all(s[name] is None for name in _PARTS)
    return np.asarray(free & (c["pp"] > 1) & ((by_stage < 1) | (heaviest > by_stage)))


def _batch_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    local, whole = s.number(_LOCAL), s.number(_GLOBAL)
    return np.asarray((s[_LOCAL] is not None) & (whole > 0) & (whole % (max(local, 1) * c["dp"]) != 0))


def _tokens_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    tokens, whole = s.number(_TOKENS), s.number(_STEP_TOKENS)
    return np.asarray((tokens > 0) & (whole > 0) & (whole % (max(tokens, 1) * c["dp"]) != 0))


#: key -> (first version that has it, first that does not)
KEYS: dict[str, tuple[str | None, str | None]] = {
    "parallelism.expert_tensor_parallel_degree": (None, "0.3"),
    "job.config_file": (None, "0.3"),
    "parallelism.enable_async_tensor_parallel": (None, "0.3"),
    "parallelism.expert_parallel_comm_backend": (None, "0.3"),
    "parallelism.enable_sequence_parallel": ("0.3", None),
    "compile.enable_async_tensor_parallel": ("0.3", None),
    _LOCAL: (None, "main"),
    _GLOBAL: (None, "main"),
    "training.seq_len": (None, "main"),
    _PP_MICRO: (None, "main"),
    _GRAPHS: ("0.3", None),
    "parallelism.num_pp_microbatches": ("main", None),
    "training.max_context_length": ("main", None),
    _TOKENS: ("main", None),
    _STEP_TOKENS: ("main", None),
}


def _key_rule(key: str, since: str | None, until: str | None) -> Rule:
    when = f"came with torchtitan {until}" if until else f"went with torchtitan {since}"
    return _setting(
        "torchtitan-key",
        f"{key} {when}",
        settings=(key,),
        breaks=lambda s, c, f: s.given.get(key) is not None,
        message=lambda s, c, f: f"{key} = {s[key]} {when}",
        mend={key: None},
        source="torchtitan configuration",
        since=since,
        until=until,
    )


def _key_rules() -> tuple[Rule, ...]:
    before = [_key_rule(key, None, first) for key, (first, _) in KEYS.items() if first is not None]
    after = [_key_rule(key, last, None) for key, (_, last) in KEYS.items() if last is not None]
    return (*before, *after)


TITAN_RULES: tuple[Rule, ...] = (
    _degree(
        "torch-kv-heads",
        "tp divides the key/value heads (torch's attention does not replicate them)",
        reads=("tp",),
        breaks=lambda c, f: f.graph.spec.kv_heads % c["tp"] != 0,
        message="{kv_heads} key/value heads cannot be divided by tp {tp}",
        mend=lambda c, f: {"tp": closest(c["tp"], divisors(f.graph.spec.kv_heads))},
        targets=TORCH,
        source="torchtitan model configurations; torch.distributed.tensor.parallel ColwiseParallel",
    ),
    _degree(
        "torch-vocabulary",
        "tp that does not divide the vocabulary leaves shards of unequal size",
        reads=("tp",),
        breaks=lambda c, f: f.graph.spec.vocab % c["tp"] != 0,
        message="a vocabulary of {vocab} on tp {tp} is not padded by torch",
        mend=lambda c, f: {"tp": closest(c["tp"], divisors(f.graph.spec.vocab))},
        targets=TORCH,
        severity="warning",
        source="torch.distributed.tensor.parallel (uneven sharding)",
    ),
    _degree(
        "torchtitan-ep",
        "ep divides dp_shard · cp · tp: neither the pipeline nor replicas take part",
        reads=("zero", "dp", "dp_replicate", "ep"),
        breaks=lambda c, f: _sharded(c) % c["ep"] != 0,
        message="ep {ep} does not divide dp_shard·cp·tp of dp {dp}, {dp_replicate} replicas, cp {cp}, tp {tp}",
        mend=_ep_mend,
        source="torchtitan ParallelDims (main; 0.3 fails later)",
    ),
    _degree(
        "torchtitan-etp-none",
        "since 0.3 torchtitan has no expert tensor parallelism: etp is 1 with expert parallelism",
        reads=("ep", "etp"),
        breaks=lambda c, f: (c["etp"] > 1) & (c["ep"] > 1),
        message="etp {etp} with ep {ep}",
        mend={"etp": 1},
        since="0.3",
        source="torchtitan ParallelDims",
    ),
    _degree(
        "torchtitan-sequence",
        "tp (with sequence parallelism) times 2 · cp (where cp is above 1) divides the sequence",
        reads=("tp", "cp", "sp"),
        breaks=lambda c, f: f.seq_len % _divisor(c) != 0,
        message=lambda c, f: f"a sequence of {f.seq_len} cannot be divided by {_divisor(c)} (tp {c['tp']}, cp {c['cp']})",
        mend={"tp": 1, "cp": 1},
        until="main",
        source="torchtitan parallelize functions",
    ),
    _degree(
        "torchtitan-tokens",
        "tp (with sequence parallelism) times 2 · cp (where cp is above 1) divides the tokens of a micro-batch",
        reads=("tp", "cp", "sp", "micro_batch"),
        breaks=lambda c, f: (c["micro_batch"] * f.seq_len) % _divisor(c) != 0,
        message=lambda c, f: f"{c['micro_batch']} · {f.seq_len} tokens cannot be divided by {_divisor(c)}",
        mend={"tp": 1, "cp": 1},
        since="main",
        source="torchtitan Trainer",
    ),
    _degree(
        "torchtitan-ddp",
        "before 0.3 torchtitan replicates (ZeRO 0) without any other parallelism",
        reads=("tp", "pp", "zero", "dp"),
        breaks=lambda c, f: (c["zero"] == 0) & (c["dp"] > 1) & ((c["tp"] > 1) | (c["pp"] > 1)),
        message="ZeRO 0 with dp {dp}, tp {tp}, pp {pp}",
        mend={"zero": 3, "dp_replicate": 1},
        until="0.3",
        source="torchtitan 0.2 parallelize_llama (DDP)",
    ),
    _degree(
        "torchtitan-tied",
        "tied embeddings exclude a pipeline",
        reads=("pp",),
        breaks=lambda c, f: (c["pp"] > 1) & f.graph.spec.tied_embeddings,
        message="tied embeddings with pp {pp}",
        mend={"pp": 1},
        source="torchtitan model configurations (weight tying)",
    ),
    _degree(
        "torch-bubble",
        "fewer micro-batches than stages leave most of the pipeline idle",
        reads=("pp", "vpp", "micro_batches"),
        breaks=lambda c, f: (c["pp"] > 1) & (c["micro_batches"] < c["pp"] * c["vpp"]),
        message="{micro_batches} micro-batches for pp {pp} · vpp {vpp} stages leave a large bubble",
        mend=lambda c, f: {"micro_batches": c["pp"] * c["vpp"]},
        targets=TORCH,
        severity="warning",
        source="torchtitan pipeline_parallel (a warning)",
    ),
    _setting(
        "torchtitan-world",
        "dp_replicate · dp_shard · cp · tp · pp is the number of GPUs (dp_shard -1: the rest)",
        settings=(_SHARD, _REPLICATE),
        reads=("tp", "cp", "pp"),
        breaks=_world,
        message=lambda s, c, f: (
            f"dp_replicate {max(s.number(_REPLICATE), 1)}, dp_shard {s.number(_SHARD)}, cp {c['cp']}, tp {c['tp']}, "
            f"pp {c['pp']} do not make {f.gpus} GPUs"
        ),
        mend={_SHARD: -1, _REPLICATE: 1},
        source="torchtitan ParallelDims",
    ),
    _setting(
        "torchtitan-batch",
        "local batch times dp divides the global batch",
        settings=(_GLOBAL, _LOCAL),
        reads=("dp",),
        breaks=_batch_off,
        message=lambda s, c, f: f"a global batch of {s.number(_GLOBAL)} is no multiple of {s.number(_LOCAL)} · dp {c['dp']}",
        mend=lambda s, c, f: {_GLOBAL: _multiple(s.number(_GLOBAL), s.number(_LOCAL) * c["dp"])},
        until="main",
        source="torchtitan Trainer",
    ),
    _setting(
        "torchtitan-step-tokens",
        "tokens a micro-batch times dp divide the tokens of a step",
        settings=(_TOKENS, _STEP_TOKENS),
        reads=("dp",),
        breaks=_tokens_off,
        message=lambda s, c, f: f"{s.number(_STEP_TOKENS)} tokens a step are no multiple of {s.number(_TOKENS)} · dp {c['dp']}",
        mend=lambda s, c, f: {_STEP_TOKENS: _multiple(s.number(_STEP_TOKENS), s.number(_TOKENS) * c["dp"])},
        since="main",
        source="torchtitan Trainer",
    ),
    _setting(
        "torchtitan-pp-batch",
        "the pipeline's micro-batch divides the local batch",
        settings=(_LOCAL, _PP_MICRO),
        reads=("pp",),
        breaks=lambda s, c, f: (c["pp"] > 1) & (s.number(_LOCAL) % max(s.number(_PP_MICRO), 1) != 0),
        message=lambda s, c, f: f"a local batch of {s.number(_LOCAL)} in micro-batches of {s.number(_PP_MICRO)} (pp {c['pp']})",
        mend=lambda s, c, f: {_PP_MICRO: closest(s.number(_PP_MICRO), divisors(max(s.number(_LOCAL), 1)))},
        until="main",
        source="torchtitan pipeline_parallel",
    ),
    _setting(
        "torchtitan-graphs",
        "CUDA graphs, on by default since 0.3, exclude a pipeline",
        settings=(_GRAPHS,),
        reads=("pp",),
        breaks=lambda s, c, f: (c["pp"] > 1) & (not s.on(_GRAPHS)),
        message="CUDA graphs with pp {pp}",
        mend={_GRAPHS: True},
        since="0.3",
        source="torchtitan Trainer.Config",
    ),
    _setting(
        "torchtitan-graphs-experts",
        "CUDA graphs exclude expert parallelism, unless its dispatch never waits for the host",
        settings=(_GRAPHS,),
        reads=("ep",),
        breaks=lambda s, c, f: (c["ep"] > 1) & (not s.on(_GRAPHS)),
        message="CUDA graphs with ep {ep}",
        mend={_GRAPHS: True},
        since="0.3",
        source="torchtitan Trainer.Config",
    ),
    _setting(
        "torchtitan-stages",
        "layers a stage make a multiple of pp stages",
        settings=(_PER_STAGE, *_LESS),
        reads=("pp", "vpp", "schedule"),
        breaks=_stages_off,
        message=lambda s, c, f: f"{s.number(_PER_STAGE)} layers a stage make {_stages(s, f)} stages over pp {c['pp']}",
        mend=_stages_mend,
        source="torchtitan pipeline_parallel",
    ),
    _setting(
        "torchtitan-stages-rank",
        "single-stage schedules have one stage a rank, others two or more",
        settings=(_PER_STAGE, *_LESS),
        reads=("pp", "vpp", "schedule"),
        breaks=_stages_many,
        message=lambda s, c, f: f"{_stages(s, f)} stages over pp {c['pp']} with {SCHEDULE_IDS[c['schedule']]}",
        mend=_stages_mend,
        source="torchtitan pipeline_parallel",
    ),
    _setting(
        "torchtitan-weights",
        "layers taken off the first or last stage are no more than a stage has",
        settings=(*_LESS, *_PARTS),
        reads=("pp", "vpp"),
        breaks=_weights_off,
        message=lambda s, c, f: (
            f"{' and '.join(str(s.number(name)) for name in _LESS)} layers less on the ends of "
            f"{f.graph.spec.layers} layers in {c['pp'] * c['vpp']} stages"
        ),
        mend=lambda s, c, f: dict.fromkeys(_LESS, 0),
        source="torchtitan pipeline_parallel",
    ),
    _setting(
        "torchtitan-async-tp",
        "asynchronous tensor parallelism needs the model compiled",
        settings=(*_ASYNC, "compile.enable"),
        breaks=lambda s, c, f: any(s.on(name) for name in _ASYNC) and not s.on("compile.enable"),
        message=lambda s, c, f: f"{next(name for name in _ASYNC if s.on(name))} without compile.enable",
        mend={"compile.enable": True},
        source="torchtitan maybe_enable_async_tp, CompileConfig",
    ),
    _setting(
        "torchtitan-memory-budget",
        "checkpointing by a memory budget needs the model compiled",
        settings=("activation_checkpoint.mode", "compile.enable"),
        breaks=lambda s, c, f: (s.text("activation_checkpoint.mode") == "memory_budget") & (not s.on("compile.enable")),
        message="activation_checkpoint.mode memory_budget without compile.enable",
        mend={"compile.enable": True},
        source="torchtitan apply_ac",
    ),
    *_key_rules(),
)


def _multiple(wanted: int, step: int) -> int:
    """The multiple of a step nearest to a wanted number, at least one step."""
    return max(round(wanted / max(step, 1)), 1) * max(step, 1)
