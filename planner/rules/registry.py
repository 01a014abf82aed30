"""All rules, in the order in which candidates meet them.

The order follows the axes a rule reads (`AXIS_ORDER`), so that the search can reject a whole block of candidates as soon as the
axes of a rule are fixed, and count it without walking it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Columns, Facts, Rule
from shardwright.planner.rules.bridge import BRIDGE_RULES
from shardwright.planner.rules.canonical import CANONICAL
from shardwright.planner.rules.deepspeed import DEEPSPEED_RULES
from shardwright.planner.rules.elementary import ELEMENTARY
from shardwright.planner.rules.exchanges import EXCHANGES, TARGET_EXCHANGES
from shardwright.planner.rules.launching import LAUNCH_RULES
from shardwright.planner.rules.losses import LOSSES, TARGET_LOSSES
from shardwright.planner.rules.megatron.attention import ATTENTION_RULES
from shardwright.planner.rules.megatron.moe import MOE_RULES
from shardwright.planner.rules.megatron.optimizer import OPTIMIZER_RULES
from shardwright.planner.rules.megatron.pipeline import PIPELINE_RULES
from shardwright.planner.rules.megatron.recompute import RECOMPUTE_RULES
from shardwright.planner.rules.megatron.splits import SPLIT_RULES
from shardwright.planner.rules.megatron.training import TRAINING_RULES
from shardwright.planner.rules.megatron.world import WORLD_RULES
from shardwright.planner.rules.offloading import OFFLOADING, TARGET_OFFLOADING
from shardwright.planner.rules.targets import TARGET_RULES
from shardwright.planner.rules.torchtitan import TITAN_RULES
from shardwright.planner.rules.versions import TARGETS, target_of

#: Free axes in the order the search fixes them.
AXIS_ORDER: tuple[str, ...] = (
    "tp",
    "cp",
    "cp_comm",
    "pp",
    "ep",
    "etp",
    "moe_dispatcher",
    "sp",
    "zero",
    "dp_replicate",
    "micro_batch",
    "vpp",
    "schedule",
    "split",
    "recompute",
    "loss_chunks",
    "offload",
)


def last_axis(rule: Rule) -> int:
    """Position of the last axis a rule reads; 0 where it reads the job alone."""
    return max((AXIS_ORDER.index(axis) for axis in rule.axes), default=0)


def _place(rule: Rule) -> tuple[bool, int]:
    """The search's rules by the axes they read; then those of settings, and warnings."""
    return not rule.rejects, last_axis(rule)


SUBJECTS: Mapping[str, tuple[Rule, ...]] = {
    "degrees": TARGET_RULES,
    "exchanges": TARGET_EXCHANGES,
    "losses": TARGET_LOSSES,
    "offloading": TARGET_OFFLOADING,
    "launching": LAUNCH_RULES,
    "megatron: world": WORLD_RULES,
    "megatron: attention": ATTENTION_RULES,
    "megatron: pipeline": (*PIPELINE_RULES, *SPLIT_RULES),
    "megatron: experts": MOE_RULES,
    "megatron: recomputing": RECOMPUTE_RULES,
    "megatron: optimizer": OPTIMIZER_RULES,
    "megatron: training": TRAINING_RULES,
    "megatron-bridge": BRIDGE_RULES,
    "torchtitan": TITAN_RULES,
    "deepspeed": DEEPSPEED_RULES,
}
"""Rules of targets, by subject."""

ALL_TARGET_RULES: tuple[Rule, ...] = tuple(rule for rules in SUBJECTS.values() for rule in rules)

RULES: tuple[Rule, ...] = tuple(
    sorted((*ELEMENTARY, *EXCHANGES, *LOSSES, *OFFLOADING, *CANONICAL, *ALL_TARGET_RULES), key=_place)
)


def rules_for(framework: str, version: str | None = None) -> tuple[Rule, ...]:
    """The rules the search applies for a framework, in order.

    Args:
        framework: a framework or target; `any` means only what mathematics and hardware demand.
        version: its version; None for the newest.
    """
    target = target_of(framework)
    return tuple(r for r in RULES if r.rejects and r.holds_for(target, version))


def rules_of_a_plan(framework: str, version: str | None = None, *, settings: bool = False) -> tuple[Rule, ...]:
    """The rules a user's own plan is held to, warnings among them.

    Args:
        framework: a framework or target.
        version: its version; None for the newest.
        settings: include the rules that read settings.
    """
    target = target_of(framework)
    return tuple(r for r in RULES if not r.canonical and (settings or not r.settings) and r.holds_for(target, version))


def expressible(columns: Columns, facts: Facts, framework: str = "any", version: str | None = None) -> dict[str, BoolArray]:
    """For each target, where it can express the plans, [plans]: the named one in that version, the others in their newest.

    Rules on how layers are divided are left out: plans hold the layers themselves, not the way they were divided.
    """
    length, named = len(columns["tp"]), target_of(framework)
    made: dict[str, BoolArray] = {}
    for target in TARGETS:
        able = np.ones(length, dtype=bool)
        for rule in ALL_TARGET_RULES:
            if rule.rejects and "split" not in rule.reads and rule.holds_for(target, version if target == named else None):
                able &= ~rule.broken(columns, facts)
        made[target] = able
    return made
