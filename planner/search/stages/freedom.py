"""What a target lets each plan choose beyond the axes of the space, and which candidates of a scan differ in that alone.

    layers per stage     wherever the framework has words for an uneven division: Megatron-LM from 0.13 on (layouts),
                         torchtitan, PyTorch; not where the split is fixed, nor where a cluster mixes kinds of node, whose
                         divisions by speed are in the space itself
    layers recomputed    any count k of each stage's layers, one for all stages, where the framework can recompute some layers
                         of a stage; a multiple of vpp (the count is given for each chunk); not where recompute is fixed

Models read from graphs keep the divisions of the scan: what their stages send each other depends on where the cuts are.

A *family* is the candidates of one mesh, micro-batch, ZeRO stage and schedule: they differ in their division and recomputing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.memory import FULL
from shardwright.planner.cost.pipelines import LOOPED
from shardwright.planner.plans import ALL_LAYERS, RECOMPUTE_CHOICES, RECOMPUTE_MODES, BoolArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.registry import rules_for
from shardwright.planner.search.space import Space

PARTIAL = len(RECOMPUTE_MODES)
"""Recompute choice that stands for some layers of each stage."""

FAMILY = tuple(
    f.name for f in fields(PlanBatch) if f.name not in {"recompute", "recompute_layers", "split", "micro_batches", "dp"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freedom:
    """What is free.

    Attributes:
        layers: whether every chunk may hold any number of layers.
        recompute: whether any number of layers may be recomputed.
        modes: recompute modes of the space (`RECOMPUTE_MODES`).
    """

    layers: bool
    recompute: bool
    modes: tuple[int, ...]

    def to_dict(self) -> dict[str, list[str]]:
        """How `search.space` says it: axes of one value, each candidate standing for all its divisions and counts."""
        made = {"layers_per_stage": ["any"]} if self.layers else {}
        return made | ({"recompute_layers": ["any"]} if self.recompute else {})


def freedom_of(problem: Problem, space: Space) -> Freedom:
    """What the target and the fixed axes leave free."""
    rules = [rule for rule in rules_for(problem.framework, problem.target_version) if rule.rejects and not rule.canonical]
    facts = facts_of(problem)
    partial = {"recompute": np.array([PARTIAL])}
    refused = any(set(rule.reads) == {"recompute"} and bool(rule.broken(partial, facts).any()) for rule in rules)
    said = not any(rule.id == "megatron-split-flags" for rule in rules)
    modes = tuple(sorted({mode for mode in space.axes["recompute"] if mode < PARTIAL}))
    alike = problem.graph.origin is None and not problem.cluster.mixed
    layers = alike and said and "split" not in space.fixed and len(modes) > 0
    return Freedom(
        layers=layers,
        recompute=layers and "recompute" not in space.fixed and not refused and RECOMPUTE_CHOICES.index("full") in modes,
        modes=modes,
    )


def covered(batch: PlanBatch, freedom: Freedom) -> BoolArray:
    """Candidates that are one of the divisions of a family that is divided, [candidates]."""
    partial = (batch.recompute == FULL) & (batch.recompute_layers < ALL_LAYERS)
    free = np.where(partial, freedom.recompute, np.isin(batch.recompute, freedom.modes))
    return np.asarray(free & dividable(batch) & freedom.layers)


def dividable(batch: PlanBatch) -> BoolArray:
    """Plans with a pipeline whose order of operations is known, [plans]."""
    whole = (batch.micro_batches < batch.pp) | (batch.micro_batches % batch.pp == 0)
    return np.asarray((batch.pp > 1) & ((batch.vpp == 1) | (batch.schedule != LOOPED) | whole))


def families_of(batch: PlanBatch) -> tuple[IntArray, IntArray]:
    """One candidate of each family, and the family of each candidate."""
    return distinct(*(getattr(batch, name) for name in FAMILY))
