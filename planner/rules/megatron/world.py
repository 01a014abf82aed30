"""Megatron: world size, tensor and sequence parallelism, environment.

Checked by `validate_args` (megatron/training/arguments.py), `ModelParallelConfig.__post_init__` and
`parallel_state.initialize_model_parallel`.
"""

from __future__ import annotations

from shardwright.planner.rules.base import Rule
from shardwright.planner.rules.declaring import setting_rule

_ARGS = "Megatron-LM validate_args"

WORLD_RULES: tuple[Rule, ...] = (
    setting_rule(
        "megatron-tp-overlap",
        "overlapping tensor-parallel communication needs sequence parallelism",
        settings=("tp_comm_overlap",),
        reads=("sp",),
        breaks=lambda s, c, f: s.on("tp_comm_overlap") & (c["sp"] == 0),
        message="--tp-comm-overlap without --sequence-parallel (tp {tp})",
        mend=lambda s, c, f: {"sp": 1} if c["tp"] > 1 else {"tp_comm_overlap": None},
        source=_ARGS,
    ),
    setting_rule(
        "megatron-sp-alone",
        "sequence parallelism with tp 1 is switched off",
        settings=("sequence_parallel",),
        reads=("tp",),
        breaks=lambda s, c, f: s.on("sequence_parallel") & (c["tp"] == 1),
        message="--sequence-parallel with tp {tp} is switched off",
        mend={"sequence_parallel": None},
        severity="changed",
        source=_ARGS,
    ),
)
