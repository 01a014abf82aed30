"""Rules of launch targets: what each framework cannot express.

They hold when the target is named by `--framework`; with `any` they only decide `expressible_by`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from shardwright.planner.plans import RECOMPUTE_CHOICES, RECOMPUTE_MODES, BoolArray
from shardwright.planner.rules.base import Changes, Columns, Facts, Rule
from shardwright.planner.rules.declaring import needed
from shardwright.planner.rules.defaults import spoken
from shardwright.planner.rules.target_schedules import SCHEDULES_OF
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES

_PLAIN, _GPIPE, _ZB_H1, _ZB_V = map(SCHEDULE_IDS.index, ("1f1b", "gpipe", "zb-h1", "zb-v"))
_APART = np.array([schedule.splits_backward for schedule in SCHEDULES])
_MEGATRON = ("megatron", "megatron-bridge")
_TORCH = ("torchtitan", "torchrun")


def _not_of(target: str) -> BoolArray:
    """Schedules a target does not run, [schedules]."""
    return ~np.isin(SCHEDULE_IDS, SCHEDULES_OF[target])


def _rule(
    name: str,
    targets: tuple[str, ...],
    says: str,
    reads: tuple[str, ...],
    broken: Callable[[Columns, Facts], BoolArray],
    mend: Changes,
    source: str,
    more: str = "",
) -> Rule:
    def values(candidate: Mapping[str, int]) -> str:
        words = {"recompute": RECOMPUTE_CHOICES, "schedule": SCHEDULE_IDS}
        return ", ".join(f"{key} {words[key][candidate[key]] if key in words else candidate[key]}" for key in reads)

    def changes(candidate: Mapping[str, int], facts: Facts) -> Changes:
        return needed(mend, candidate, facts.settings)

    def remedy(candidate: Mapping[str, int], facts: Facts) -> str:
        return ", ".join(part for part in (spoken(changes(candidate, facts), targets[0]), more) if part)

    return Rule(
        id=name,
        says=says,
        reads=reads,
        broken=broken,
        message=lambda candidate, facts: f"{says} (given: {values(candidate)})",
        remedy=remedy,
        targets=targets,
        source=source,
        mend=changes,
    )


_PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("bf16", "fp16", "fp32", "fp8-delayed", "fp8-tensorwise", "fp8-blockwise", "mxfp8", "nvfp4"),
    "megatron-bridge": ("bf16", "fp16", "fp32", "fp8-delayed", "fp8-tensorwise", "fp8-blockwise", "mxfp8", "nvfp4"),
    "torchtitan": ("bf16", "fp32", "fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp", "mxfp8"),
    "torchrun": ("bf16", "fp16", "fp32"),
    "deepspeed": ("bf16", "fp16", "fp32"),
}
_OPTIMIZERS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("adam", "adam-bf16", "sgd", "muon"),
    "megatron-bridge": ("adam", "adam-bf16", "sgd", "muon"),
    "torchtitan": ("adam",),
    "torchrun": ("adam", "sgd", "muon", "adafactor"),
    "deepspeed": ("adam", "sgd", "muon"),
}


def _job_rule(target: str, kind: str, allowed: tuple[str, ...], given: Callable[[Facts], str], source: str) -> Rule:
    """A rule on the job alone: a target's precisions or optimizers."""
    words = ", ".join(allowed)
    return Rule(
        id=f"{target}-{kind}",
        says=f"{target} trains with {kind} {words}",
        reads=(),
        broken=lambda c, f: np.full(len(c["tp"]), given(f) not in allowed),
        message=lambda candidate, facts: f"{target} has no {kind} {given(facts)}",
        remedy=lambda candidate, facts: f"use {kind} {words}",
        targets=(target,),
        source=source,
    )


def _architecture_rule(target: str) -> Rule:
    """A rule on the model alone: a target that builds models from an architecture takes no graph from a file."""
    return Rule(
        id=f"{target}-graph",
        says=f"{target} trains models built from an architecture, not graphs read from a file",
        reads=(),
        broken=lambda c, f: np.full(len(c["tp"]), f.graph.origin is not None),
        message=lambda candidate, facts: f"{target} builds its models itself; {facts.graph.name} was read from a graph file",
        remedy=lambda candidate, facts: "use --framework pytorch",
        targets=(target,),
        source="the frameworks' model definitions",
    )


_JOB_RULES: tuple[Rule, ...] = (
    *(_architecture_rule(target) for target in ("megatron", "megatron-bridge", "torchtitan", "deepspeed")),
    *(
        _job_rule(t, "precision", p, lambda f: f.precision, "precision options of the frameworks and Transformer Engine")
        for t, p in _PRECISIONS.items()
    ),
    *(
        _job_rule(t, "optimizer", o, lambda f: f.optimizer, "optimizer options of the frameworks")
        for t, o in _OPTIMIZERS.items()
    ),
)

TARGET_RULES: tuple[Rule, ...] = (
    *_JOB_RULES,
    _rule(
        "megatron-zero",
        _MEGATRON,
        "not planned: ZeRO 2, and ZeRO 3 with a pipeline; Megatron-FSDP accepts them, but no upstream test runs them",
        ("zero", "pp"),
        lambda c, f: ((c["zero"] == 2) | ((c["zero"] == 3) & (c["pp"] > 1))) & (not f.settings.on("use_megatron_fsdp")),
        {"zero": 1},
        "Megatron-LM validate_args (use_distributed_optimizer, use_megatron_fsdp)",
    ),
    _rule(
        "megatron-schedule",
        _MEGATRON,
        "Megatron's pipeline schedules are 1F1B and its interleaved form",
        ("schedule",),
        lambda c, f: _not_of("megatron")[c["schedule"]],
        {"schedule": _PLAIN, "vpp": 1},
        "Megatron-Core pipeline_parallel.schedules",
        "or interleaved-1f1b with vpp above 1",
    ),
    _rule(
        "torch-zero",
        _TORCH,
        "FSDP2 shards everything (ZeRO 3, or 2 without resharding after forward) and DDP nothing; ZeRO 1 is not built in",
        ("zero",),
        lambda c, f: c["zero"] == 1,
        {"zero": 3},
        "PyTorch fully_shard",
    ),
    _rule(
        "torch-1f1b",
        _TORCH,
        "torch's 1F1B needs pp micro-batches",
        ("pp", "micro_batches", "schedule"),
        lambda c, f: (c["schedule"] == _PLAIN) & (c["micro_batches"] < c["pp"]),
        {"schedule": _GPIPE},
        "torch.distributed.pipelining Schedule1F1B",
        "or more micro-batches",
    ),
    _rule(
        "torch-zb-h1",
        ("torchrun",),
        "torch's zero-bubble schedule runs micro-batches in rounds of equal size, as many as pp goes into them",
        ("pp", "micro_batches", "schedule"),
        lambda c, f: (c["schedule"] == _ZB_H1) & (c["micro_batches"] % np.maximum(c["micro_batches"] // c["pp"], 1) != 0),
        {"schedule": _PLAIN},
        "torch.distributed.pipelining ScheduleInterleavedZeroBubble",
        "or micro-batches in multiples of pp",
    ),
    _rule(
        "torchtitan-zb-h1",
        ("torchtitan",),
        "torchtitan gives every rank two stages or more where input and weight gradients are apart",
        ("schedule",),
        lambda c, f: _not_of("torchtitan")[c["schedule"]],
        {"schedule": _ZB_V, "vpp": 2},
        "torchtitan distributed.pipeline_parallel",
    ),
    _rule(
        "torch-split-backward",
        _TORCH,
        "FSDP2 that reshards after forward (ZeRO 3) loses gradients, without an error, of weights whose gradients a schedule "
        "computes apart from those of inputs",
        ("pp", "zero", "schedule"),
        lambda c, f: (c["pp"] > 1) & (c["zero"] == 3) & _APART[c["schedule"]] & (not f.reduces_once_a_step),
        {"zero": 2},
        "torch.distributed.pipelining stage_backward_weight with fully_shard (torch 2.13: other losses than one process has)",
    ),
    _rule(
        "torchtitan-sp",
        ("torchtitan",),
        "torchtitan's tensor parallelism always shards the sequence",
        ("tp", "sp"),
        lambda c, f: (c["tp"] > 1) & (c["sp"] == 0) & (f.settings["parallelism.enable_sequence_parallel"] is not False),
        {"sp": 1},
        "torchtitan model parallelize functions",
    ),
    _rule(
        "torchtitan-etp",
        ("torchtitan",),
        "torchtitan's expert tensor parallelism is 1 or tp",
        ("tp", "etp"),
        lambda c, f: (c["etp"] != 1) & (c["etp"] != c["tp"]),
        {"etp": 1},
        "torchtitan ParallelDims",
    ),
    _rule(
        "torch-recompute",
        ("torchtitan",),
        "torchtitan checkpoints all layers or none",
        ("recompute",),
        lambda c, f: c["recompute"] >= len(RECOMPUTE_MODES),
        {"recompute": RECOMPUTE_MODES.index("full")},
        "torchtitan activation checkpointing",
    ),
    _rule(
        "deepspeed-axes",
        ("deepspeed",),
        "DeepSpeed JSON has no tensor, context or expert-tensor degree; model code would have to bring them",
        ("tp", "cp", "etp"),
        lambda c, f: (c["tp"] > 1) | (c["cp"] > 1) | (c["etp"] > 1),
        {"tp": 1, "cp": 1, "etp": 1},
        "DeepSpeed configuration JSON",
    ),
    _rule(
        "deepspeed-pipeline",
        ("deepspeed",),
        "DeepSpeed's pipelines run 1F1B without virtual stages and with ZeRO 0 or 1: gradients live across micro-batches",
        ("pp", "zero", "schedule"),
        lambda c, f: (c["pp"] > 1) & ((c["zero"] > 1) | _not_of("deepspeed")[c["schedule"]]),
        {"zero": 1, "vpp": 1, "schedule": _PLAIN},
        "DeepSpeed PipelineEngine",
        "and several times pp micro-batches",
    ),
)
