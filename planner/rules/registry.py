"""All rules, in the order in which candidates meet them.

The order follows the axes a rule reads (`AXIS_ORDER`), so that the search can reject a whole block of candidates as soon as the
axes of a rule are fixed, and count it without walking it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import TARGETS, Columns, Facts, Rule
from shardwright.planner.rules.canonical import CANONICAL
from shardwright.planner.rules.elementary import ELEMENTARY
from shardwright.planner.rules.targets import TARGET_RULES

#: Free axes in the order the search fixes them.
AXIS_ORDER: tuple[str, ...] = (
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "sp",
    "zero",
    "dp_replicate",
    "micro_batch",
    "vpp",
    "schedule",
    "split",
    "recompute",
)

_FRAMEWORK_TARGETS: Mapping[str, str] = {
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "pytorch": "torchrun",
    "deepspeed": "deepspeed",
}


def last_axis(rule: Rule) -> int:
    """Position of the last axis a rule reads; 0 where it reads the job alone."""
    return max((AXIS_ORDER.index(axis) for axis in rule.axes), default=0)


RULES: tuple[Rule, ...] = tuple(sorted((*ELEMENTARY, *CANONICAL, *TARGET_RULES), key=last_axis))


def rules_for(framework: str, *, canonical: bool = True) -> tuple[Rule, ...]:
    """The rules that hold for a framework, in order.

    Args:
        framework: one of `problem.FRAMEWORKS`; `any` means only what mathematics and hardware demand.
        canonical: include the rules that only shape the search space.
    """
    target = _FRAMEWORK_TARGETS.get(framework)
    return tuple(r for r in RULES if (canonical or not r.canonical) and (not r.targets or target in r.targets))


def expressible(columns: Columns, facts: Facts) -> dict[str, BoolArray]:
    """For each target, where it can express the plans, [plans]."""
    length = len(columns["tp"])
    made: dict[str, BoolArray] = {}
    for target in TARGETS:
        able = np.ones(length, dtype=bool)
        for rule in TARGET_RULES:
            if target in rule.targets:
                able &= ~rule.broken(columns, facts)
        made[target] = able
    return made
