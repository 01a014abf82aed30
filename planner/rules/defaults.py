"""What frameworks take where a configuration leaves a setting out, and how each writes a setting.

    defaults_of(target, version)   setting -> value, for the settings that rules read
    spoken(changes, target)        a remedy in the words of that target's configuration

Settings whose default is "off" or "unset" are not listed: `Settings` reads them as None.

Sources: argparse defaults of Megatron-LM `megatron/training/arguments.py` and dataclass defaults of megatron-core (branches
core_r0.12.0 to core_r0.19.0 and main of August 2026), torchtitan `config/job_config.py` (0.2) and `config/configs.py` (0.3),
DeepSpeed `runtime/constants.py` and `runtime/zero/config.py` (0.19).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from shardwright.planner.offloading import text_of
from shardwright.planner.plans import CP_COMM_KINDS, MOE_DISPATCHERS, RECOMPUTE_CHOICES
from shardwright.planner.rules.settings import Value
from shardwright.planner.rules.versions import holds_in
from shardwright.planner.schedules.registry import SCHEDULE_IDS

_MEGATRON: Mapping[str, Value] = {
    "overlap_p2p_comm": True,
    "gradient_accumulation_fusion": True,
    "transformer_impl": "transformer_engine",
    "moe_token_dispatcher_type": "allgather",
    "recompute_modules": ("core_attn",),
    "optimizer": "adam",
    "ckpt_format": "torch_dist",
    "data_parallel_sharding_strategy": "no_shard",
    "num_distributed_optimizer_instances": 1,
    "use_gloo_process_groups": True,
    "cp_comm_type": ("p2p",),
    "make_vocab_size_divisible_by": 128,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_router_score_function": "softmax",
    "add_bias_linear": True,
    "position_embedding_type": "learned_absolute",
    "cuda_graph_impl": "none",
    "check_for_nan_in_loss_and_grad": True,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "apply_rope_fusion": True,
    "untie_embeddings_and_output_weights": False,
    "megatron_fsdp_version": "v1",
}  # fmt: skip

_TORCHTITAN: Mapping[str, Value] = {
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "training.local_batch_size": 8,
    "activation_checkpoint.mode": "selective",
}

_DEEPSPEED: Mapping[str, Value] = {
    "zero_optimization.stage": 0,
    "gradient_accumulation_steps": 1,
    "sequence_parallel_size": 1,
}

_DEFAULTS: Mapping[str, Mapping[str, Value]] = {
    "megatron": _MEGATRON,
    "megatron-bridge": _MEGATRON,
    "torchtitan": _TORCHTITAN,
    "torchrun": {},
    "deepspeed": _DEEPSPEED,
}

NEGATIVE_FLAGS: Mapping[str, str] = {
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
    "add_bias_linear": "--disable-bias-linear",
    "use_gloo_process_groups": "--disable-gloo-process-groups",
    "check_for_nan_in_loss_and_grad": "--no-check-for-nan-in-loss-and-grad",
    "apply_rope_fusion": "--no-rope-fusion",
}
"""Megatron's switches that are on unless a flag says otherwise."""

OTHER_FLAGS: Mapping[str, str] = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "nccl_ub": "--use-nccl-ub",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
}
"""Megatron's flags that are named otherwise than the argument they set."""


def defaults_of(target: str, version: str | None) -> Mapping[str, Value]:
    """Setting -> value where a configuration leaves it out."""
    made = dict(_DEFAULTS[target])
    if target in {"megatron", "megatron-bridge"} and holds_in(target, version, "0.16", None):
        made["moe_flex_dispatcher_backend"] = "deepep"
    if target in {"megatron", "megatron-bridge"} and holds_in(target, version, "0.18", None):
        made["data_parallel_sharding_strategy"] = "optim_grads_params"
    return made


def spoken(changes: Mapping[str, Value], target: str | None) -> str:
    """Changes of columns and settings in words."""
    return ", ".join(_one(key, value, target) for key, value in changes.items())


def _one(key: str, value: Value, target: str | None) -> str:
    if key.startswith("env."):
        return f"unset {key[4:]}" if value is None else f"export {key[4:]}={value}"
    if key.startswith("launch."):
        return f"launch {value} ranks, or name a cluster of as many GPUs as are launched"
    if key in {"sp", "offload"} and isinstance(value, int):
        return (
            f"use --offload {text_of(value)}" if key == "offload" else f"switch sequence parallelism {'on' if value else 'off'}"
        )
    if key in _COLUMN_WORDS:
        return f"use {_COLUMN_WORDS[key]} {_CHOICES[key][value] if key in _CHOICES else value}"
    if target in {"megatron", None}:
        return _flag(key, value)
    return f"leave out {key}" if value is None else f"set {key} = {_written(value)}"


def _flag(key: str, value: Value) -> str:
    if key in NEGATIVE_FLAGS:
        return f"{'leave out' if value else 'give'} {NEGATIVE_FLAGS[key]}"
    name = OTHER_FLAGS.get(key, "--" + key.replace("_", "-"))
    if value is None or value is False:
        return f"leave out {name}"
    words = [value] if not isinstance(value, (list, tuple)) else value
    return f"give {name}" if value is True else f"give {name} {shlex.join(map(str, words))}"


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "schedule": SCHEDULE_IDS,
    "recompute": RECOMPUTE_CHOICES,
    "cp_comm": CP_COMM_KINDS,
    "moe_dispatcher": MOE_DISPATCHERS,
}

_COLUMN_WORDS: Mapping[str, str] = {
    **{name: name for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "zero", "dp", "dp_replicate")},
    "micro_batch": "a micro-batch of",
    "micro_batches": "micro-batches",
    "global_batch": "a global batch of",
    "schedule": "schedule",
    "recompute": "recompute",
    "cp_comm": "cp_comm",
    "loss_chunks": "loss_chunks",
    "moe_dispatcher": "moe_dispatcher",
}
