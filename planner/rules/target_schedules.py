"""Which pipeline schedules each target runs, and which of them a search plans.

A plan is priced with the facts of one stack, and a stack is of one target. Under `any` the search plans only schedules that
this target runs: others would be compared with facts of a framework that cannot launch them.

Source: Megatron-Core `pipeline_parallel.schedules`, `torch.distributed.pipelining.schedules` (torch 2.13), torchtitan
`distributed.pipeline_parallel`, DeepSpeed `PipelineEngine`.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.planner.problem import Problem
from shardwright.planner.rules.versions import target_of
from shardwright.planner.schedules.registry import SCHEDULE_IDS

_MEGATRON = ("1f1b", "interleaved-1f1b")

SCHEDULES_OF: Mapping[str, tuple[str, ...]] = {
    "megatron": _MEGATRON,
    "megatron-bridge": _MEGATRON,
    "torchrun": SCHEDULE_IDS,
    "torchtitan": tuple(name for name in SCHEDULE_IDS if name != "zb-h1"),
    "deepspeed": ("1f1b",),
}
"""By target. torchtitan gives every rank two stages or more where input and weight gradients are apart."""


def target_of_stack(problem: Problem) -> str | None:
    """The target whose facts price the plans of a problem."""
    return target_of(problem.stack.framework)


def planned_schedules(problem: Problem) -> tuple[str, ...]:
    """Schedules a search may plan as far as prices go: all where a framework is named, whose own rules then hold."""
    target = target_of_stack(problem)
    return SCHEDULE_IDS if problem.framework != "any" or target is None else SCHEDULES_OF[target]
