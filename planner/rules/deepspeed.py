"""Rules of DeepSpeed's JSON: the batch identity, precision, offloading, and keys it does not know.

    train_batch_size = train_micro_batch_size_per_gpu · gradient_accumulation_steps · dp

Checked by `DeepSpeedConfig`, except that DeepSpeed lets unknown keys of the top level pass: a misspelt `zero_optimization`
trains without ZeRO. What its pipeline engine cannot do is in `rules.targets`.
"""

from __future__ import annotations

import difflib
from functools import partial

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule, closest, divisors
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings

_setting = partial(setting_rule, targets=("deepspeed",), source="DeepSpeedConfig")

_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_STAGE = "zero_optimization.stage"
_OFFLOADS = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")
_SEQUENCE = "sequence_parallel_size"
_MASTERS = ("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads")

TOP_LEVEL = frozenset({
    "activation_checkpointing", "aio", "amp", "autotuning", "bf16", "bfloat16", "checkpoint", "comms_logger",
    "communication_data_type", "comet", "compile", "compression_training", "csv_monitor", "curriculum_learning",
    "data_efficiency", "data_types", "dataloader_drop_last", "disable_allgather", "dump_state", "eigenvalue", "elasticity",
    "expert_parallel", "flops_profiler", "fp16", "gradient_accumulation_steps", "gradient_allreduce_op",
    "gradient_clipping", "gradient_predivide_factor", "graph_harvesting", "hybrid_engine", "load_universal",
    "managed_gradient_accumulation", "memory_breakdown", "monitor_config", "nebula", "optimizer", "pipeline",
    "prescale_gradients", "progressive_layer_drop", "quantize_training", "scheduler",
    "seq_parallel_communication_data_type", "sequence_parallel_size", "sparse_attention", "sparse_gradients",
    "steps_per_print", "tensor_parallel", "tensorboard", "timers", "torch_autocast", "train_batch_size",
    "train_micro_batch_size_per_gpu", "use_data_before_expert_parallelism", "use_node_local_storage",
    "wall_clock_breakdown", "wandb", "weight_quantization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "zero_optimization",
})  # fmt: skip
"""Keys DeepSpeed reads (deepspeed/runtime/constants.py and the sections of `DeepSpeedConfig`, 0.19)."""


def _unknown(s: Settings) -> list[str]:
    """Top-level keys that DeepSpeed would pass over."""
    heads = dict.fromkeys(key.split(".")[0] for key in s.given)
    return [key for key in heads if key not in TOP_LEVEL and key not in {"env", "launch"}]


def _near(key: str) -> str | None:
    """The known key a misspelt one stands for."""
    return next(iter(difflib.get_close_matches(key, TOP_LEVEL, n=1, cutoff=0.6)), None)


def _meant(s: Settings) -> Changes:
    """Unknown keys left out, and their values under the key that was meant."""
    changes: dict[str, object] = {}
    for key, value in s.given.items():
        head, dot, rest = key.partition(".")
        if head in _unknown(s):
            near = _near(head)
            changes[key] = None
            changes |= {f"{near}{dot}{rest}": value} if near else {}
    return changes


def _suspects(s: Settings) -> str:
    return ", ".join(f"{key} (did you mean {_near(key)}?)" if _near(key) else key for key in _unknown(s))


def _automatic(s: Settings) -> list[str]:
    return [key for key, value in s.given.items() if value == "auto"]


def _accumulation(s: Settings, dp: int) -> int:
    """Accumulation steps as given, or as they follow from the other two."""
    if s.given.get(_STEPS) is not None:
        return s.number(_STEPS)
    if s[_BATCH] is None or s[_MICRO] is None:
        return 1
    return s.number(_BATCH) // max(s.number(_MICRO) * dp, 1)


def _identity_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    if s[_BATCH] is None:
        return np.zeros(len(c["dp"]), dtype=bool)
    batch, micro = s.number(_BATCH), s.number(_MICRO)
    if s[_MICRO] is None:
        return np.asarray(batch % (max(s.number(_STEPS), 1) * c["dp"]) != 0)
    if s.given.get(_STEPS) is None:
        return np.asarray(batch % (max(micro, 1) * c["dp"]) != 0)
    return np.asarray(micro * s.number(_STEPS) * c["dp"] != batch)


def _identity_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    micro, steps = max(s.number(_MICRO), 1), max(_accumulation(s, c["dp"]), 1)
    return {_BATCH: micro * steps * c["dp"], _MICRO: micro, _STEPS: steps}


def _partial(s: Settings) -> list[str]:
    """Offloading of a part of the states, which only stage 3 does."""
    ratios = {f"{name}.ratio": s[f"{name}.ratio"] for name in _OFFLOADS}
    return [key for key, ratio in ratios.items() if ratio is not None and float(ratio) < 1]


def _devices(s: Settings) -> list[str]:
    return [f"{name}.device" for name in _OFFLOADS if s.text(f"{name}.device") not in {"", "none", "cpu", "nvme"}]


DEEPSPEED_RULES: tuple[Rule, ...] = (
    _setting(
        "deepspeed-batch",
        "train_batch_size is micro-batch times accumulation steps times dp",
        settings=(_BATCH, _MICRO, _STEPS),
        reads=("dp",),
        breaks=_identity_off,
        message=lambda s, c, f: (
            f"train_batch_size {s.number(_BATCH)} is not micro-batch {s[_MICRO]} · {s.given.get(_STEPS)} steps · dp {c['dp']}"
        ),
        mend=_identity_mend,
    ),
    _setting(
        "deepspeed-batch-missing",
        "train_batch_size or train_micro_batch_size_per_gpu is given",
        settings=(_BATCH, _MICRO),
        reads=("dp", "micro_batch"),
        breaks=lambda s, c, f: s[_BATCH] is None and s[_MICRO] is None,
        message="neither train_batch_size nor train_micro_batch_size_per_gpu is given (dp {dp})",
        mend=lambda s, c, f: {_MICRO: c["micro_batch"]},
    ),
    _setting(
        "deepspeed-stage",
        "the ZeRO stage is 0, 1, 2 or 3",
        settings=(_STAGE,),
        breaks=lambda s, c, f: s.number(_STAGE) not in {0, 1, 2, 3},
        message=lambda s, c, f: f"zero_optimization.stage {s[_STAGE]}",
        mend=lambda s, c, f: {_STAGE: min(max(s.number(_STAGE), 0), 3)},
    ),
    _setting(
        "deepspeed-key",
        "keys of the top level that DeepSpeed does not know are passed over in silence",
        settings=("zero_optimization",),
        breaks=lambda s, c, f: bool(_unknown(s)),
        message=lambda s, c, f: f"{len(_unknown(s))} keys DeepSpeed passes over: {_suspects(s)}",
        mend=lambda s, c, f: _meant(s),
    ),
    _setting(
        "deepspeed-auto",
        "values of auto are filled in by the Hugging Face trainer alone; DeepSpeed stops at them",
        settings=(_BATCH, _MICRO, _STEPS),
        breaks=lambda s, c, f: bool(_automatic(s)),
        message=lambda s, c, f: f"{len(_automatic(s))} values are auto: {', '.join(_automatic(s))}",
        mend=lambda s, c, f: dict.fromkeys(_automatic(s)),
    ),
    _setting(
        "deepspeed-half",
        "fp16 or bf16, not both",
        settings=("fp16.enabled", "bf16.enabled"),
        breaks=lambda s, c, f: s.on("fp16.enabled") & s.on("bf16.enabled"),
        message="fp16.enabled and bf16.enabled are both true",
        mend={"fp16.enabled": False},
    ),
    _setting(
        "deepspeed-masters",
        "master weights in 16 bits need ZeRO",
        settings=(*_MASTERS, _STAGE),
        breaks=lambda s, c, f: any(s.on(name) for name in _MASTERS) & (s.number(_STAGE) == 0),
        message=lambda s, c, f: f"16-bit master weights with zero_optimization.stage {s.number(_STAGE)}",
        mend={_STAGE: 1},
    ),
    _setting(
        "deepspeed-offload-part",
        "offloading a part of the states needs stage 3",
        settings=(*(f"{name}.ratio" for name in _OFFLOADS), _STAGE),
        breaks=lambda s, c, f: bool(_partial(s)) & (s.number(_STAGE) != 3),
        message=lambda s, c, f: f"{', '.join(_partial(s))} below 1 with zero_optimization.stage {s.number(_STAGE)}",
        mend=lambda s, c, f: dict.fromkeys(_partial(s), 1.0),
    ),
    _setting(
        "deepspeed-offload-device",
        "states are offloaded to cpu, nvme or none",
        settings=tuple(f"{name}.device" for name in _OFFLOADS),
        breaks=lambda s, c, f: bool(_devices(s)),
        message=lambda s, c, f: ", ".join(f"{key} {s[key]}" for key in _devices(s)),
        mend=lambda s, c, f: dict.fromkeys(_devices(s), "cpu"),
    ),
    _setting(
        "deepspeed-offload-parameters",
        "parameters are offloaded under stage 3 alone",
        settings=("zero_optimization.offload_param.device", _STAGE),
        breaks=lambda s, c, f: (s.text("zero_optimization.offload_param.device") in {"cpu", "nvme"}) & (s.number(_STAGE) != 3),
        message=lambda s, c, f: f"offload_param with zero_optimization.stage {s.number(_STAGE)}",
        mend={"zero_optimization.offload_param.device": None},
    ),
    _setting(
        "deepspeed-sum",
        "summing gradients excludes stage 3",
        settings=("gradient_allreduce_op", _STAGE),
        breaks=lambda s, c, f: (s.text("gradient_allreduce_op") == "sum") & (s.number(_STAGE) == 3),
        message=lambda s, c, f: f"gradient_allreduce_op sum with zero_optimization.stage {s.number(_STAGE)}",
        mend={"gradient_allreduce_op": None},
    ),
    _setting(
        "deepspeed-sequence-heads",
        "sequence parallelism over heads (Ulysses) divides the attention heads, and the GPUs",
        settings=(_SEQUENCE,),
        reads=("tp",),
        breaks=lambda s, c, f: (
            (f.graph.spec.heads % (c["tp"] * max(s.number(_SEQUENCE), 1)) != 0) | (f.gpus % max(s.number(_SEQUENCE), 1) != 0)
        ),
        message="{heads} heads and {gpus} GPUs on sequence_parallel_size {sequence_parallel_size}, tp {tp}",
        mend=lambda s, c, f: {
            _SEQUENCE: closest(s.number(_SEQUENCE), divisors(int(np.gcd(f.graph.spec.heads // c["tp"] or 1, f.gpus))))
        },
    ),
)
