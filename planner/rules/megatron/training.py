"""Megatron: batches for evaluation, length of training, data; and arguments that a version does not have.

Checked by `validate_args`; an unknown argument by argparse.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings

_args = partial(setting_rule, source="Megatron-LM validate_args")

_ITERATIONS = ("train_iters", "lr_decay_iters", "lr_warmup_iters")
_SAMPLES = ("train_samples", "lr_decay_samples", "lr_warmup_samples")
_SPLIT_DATA = ("train_data_path", "valid_data_path", "test_data_path")
_EVAL = ("eval_global_batch_size", "eval_micro_batch_size")


def _mixed(s: Settings) -> list[str]:
    """Settings of the other way to count than the one training is given by."""
    other = _SAMPLES if s.number("train_iters") > 0 else _ITERATIONS if s.number("train_samples") > 0 else ()
    return [name for name in other if s.number(name) > 0]


def _warmups(s: Settings) -> list[str]:
    return [name for name in ("lr_warmup_iters", "lr_warmup_samples") if s.number(name) > 0]


def _sources(s: Settings) -> list[str]:
    """Data sources in force, one name each."""
    made = ["mock_data"] if s.on("mock_data") else []
    made += ["data_path"] if s["data_path"] else []
    return made + [name for name in _SPLIT_DATA if s[name]][:1]


def _eval_step(s: Settings, c: Columns) -> np.ndarray:
    micro = s.number("eval_micro_batch_size")
    return np.asarray((micro if micro > 0 else c["micro_batch"]) * c["dp"])


def _eval_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    batch = s.number("eval_global_batch_size") or f.global_batch
    return np.asarray(any(s[name] is not None for name in _EVAL) & (batch % _eval_step(s, c) != 0))


def _eval_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    step = (s.number("eval_micro_batch_size") or c["micro_batch"]) * c["dp"]
    batch = s.number("eval_global_batch_size") or f.global_batch
    return {"eval_global_batch_size": max(round(batch / step), 1) * step}


#: argument -> (first version that has it, first that does not)
ARGUMENTS: dict[str, tuple[str | None, str | None]] = {
    "encoder_tensor_model_parallel_size": (None, "0.14"),
    "moe_extended_tp": (None, "0.17"),
    "moe_use_legacy_grouped_gemm": (None, "0.17"),
    "use_legacy_models": (None, "0.18"),
    "pipeline_model_parallel_layout": ("0.13", None),
    "use_megatron_fsdp": ("0.14", None),
    "overlap_moe_expert_parallel_comm": ("0.14", None),
    "fp4": ("0.15", None),
    "cuda_graph_impl": ("0.15", None),
    "moe_flex_dispatcher_backend": ("0.16", None),
    "fine_grained_activation_offloading": ("0.16", None),
    "hybrid_context_parallel": ("0.16", None),
    "fake_process_group": ("0.16", None),
    "hybrid_layer_pattern": ("0.17", None),
    "mla_down_proj_fusion": ("0.17", None),
    "cuda_graph_modules": ("0.18", None),
    "eval_global_batch_size": ("0.18", None),
    "eval_micro_batch_size": ("0.18", None),
    "step_batch_size_schedule": ("0.18", None),
    "tensor_parallel_num_weight_shards": ("0.19", None),
    "expert_tensor_parallel_num_weight_shards": ("0.19", None),
    "enable_mhc_connections": ("0.20", None),
    "megatron_fsdp_version": ("0.20", None),
    "mtp_hsm": ("0.20", None),
}


def _given(s: Settings, name: str) -> bool:
    return s.given.get(name) not in {None, False}


def _argument_rule(name: str, since: str | None, until: str | None) -> Rule:
    """That versions before (or from) one on do not know an argument."""
    when = f"came with megatron-core {until}" if until else f"went with megatron-core {since}"
    return setting_rule(
        "megatron-argument",
        f"--{name.replace('_', '-')} {when}",
        settings=(name,),
        breaks=lambda s, c, f: _given(s, name),
        message=f"--{name.replace('_', '-')} (given: {{{name}}}) {when}",
        mend={name: None},
        source="Megatron-LM arguments",
        since=since,
        until=until,
    )


def _argument_rules() -> tuple[Rule, ...]:
    before = [_argument_rule(name, None, first) for name, (first, _) in ARGUMENTS.items() if first is not None]
    after = [_argument_rule(name, last, None) for name, (_, last) in ARGUMENTS.items() if last is not None]
    return (*before, *after)


TRAINING_RULES: tuple[Rule, ...] = (
    _args(
        "megatron-eval-batch",
        "the micro-batch of evaluation times dp divides its global batch",
        settings=_EVAL,
        reads=("dp", "micro_batch"),
        breaks=_eval_off,
        message=lambda s, c, f: (
            f"evaluating {s.number(_EVAL[0]) or f.global_batch} sequences in micro-batches of "
            f"{s.number(_EVAL[1]) or c['micro_batch']} on dp {c['dp']}"
        ),
        mend=_eval_mend,
        since="0.18",
    ),
    _args(
        "megatron-batch-schedule",
        "the batch follows a schedule or is given, not both",
        settings=("step_batch_size_schedule", "global_batch_size"),
        breaks=lambda s, c, f: (s["step_batch_size_schedule"] is not None) & (s["global_batch_size"] is not None),
        message="--step-batch-size-schedule with --global-batch-size {global_batch_size}",
        mend={"step_batch_size_schedule": None},
        since="0.18",
    ),
    _args(
        "megatron-counting",
        "training, decay and warm-up are all counted in iterations, or all in samples",
        settings=(*_ITERATIONS, *_SAMPLES),
        breaks=lambda s, c, f: bool(_mixed(s)),
        message=lambda s, c, f: "iterations and samples are mixed: " + ", ".join(f"{name} {s[name]}" for name in _mixed(s)),
        mend=lambda s, c, f: dict.fromkeys(_mixed(s)),
    ),
    _args(
        "megatron-warmup",
        "warm-up is a fraction or a length",
        settings=("lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples"),
        breaks=lambda s, c, f: (s["lr_warmup_fraction"] is not None) & bool(_warmups(s)),
        message=lambda s, c, f: f"--lr-warmup-fraction {s['lr_warmup_fraction']} with {', '.join(_warmups(s))}",
        mend={"lr_warmup_fraction": None},
    ),
    _args(
        "megatron-least-rate",
        "the least learning rate is not above the learning rate",
        settings=("lr", "min_lr"),
        breaks=lambda s, c, f: s["lr"] is not None and s["min_lr"] is not None and float(s["min_lr"]) > float(s["lr"]),
        message="--min-lr {min_lr} above --lr {lr}",
        mend=lambda s, c, f: {"min_lr": s["lr"]},
    ),
    _args(
        "megatron-save",
        "saving needs an interval",
        settings=("save", "save_interval"),
        breaks=lambda s, c, f: (s["save"] is not None) & (s.number("save_interval") <= 0),
        message="--save with --save-interval {save_interval}",
        mend={"save_interval": 1000},
    ),
    _args(
        "megatron-data",
        "data come from one source: mock, a path, or a path a split",
        settings=("mock_data", "data_path", *_SPLIT_DATA),
        breaks=lambda s, c, f: len(_sources(s)) > 1,
        message=lambda s, c, f: f"{len(_sources(s))} sources of data: {', '.join(_sources(s))}",
        mend=lambda s, c, f: dict.fromkeys(_sources(s)[:-1]),
    ),
    *_argument_rules(),
)
