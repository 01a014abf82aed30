"""Which rules a plan breaks, with message and remedy: what readers, estimates and proofs call.

    violations(candidate, facts, settings, framework, version)   one plan, and the settings of its configuration

Without settings (None) only rules of degrees are tested; with them (even an empty mapping) the framework's defaults stand for
whatever they leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.planner.plans import ALL_TO_ALL, RING
from shardwright.planner.rules.base import Candidate, Changes, Facts, Rule
from shardwright.planner.rules.defaults import defaults_of
from shardwright.planner.rules.elementary import GRAPH_AXES
from shardwright.planner.rules.registry import rules_of_a_plan
from shardwright.planner.rules.settings import Settings, Value
from shardwright.planner.rules.versions import target_of

_FOLLOWS_FROM_DP = frozenset({"dp", "dp_shard", "micro_batches", "edp"})
_DIVIDES = frozenset({"tp", "cp"})
"""Axes that a graph read from a file is not divided by, whatever else they break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that a plan breaks.

    Attributes:
        rule: its id.
        severity: one of `base.SEVERITIES`; only an `error` makes a plan infeasible.
        message: what is wrong, with numbers.
        remedy: what to do, in words.
        changes: the same as columns or settings and their values, where the rule knows them.
    """

    rule: str
    severity: str
    message: str
    remedy: str
    changes: Changes = field(default_factory=dict)

    def to_dict(self) -> dict[str, str]:
        """What `violations` of an estimate prints."""
        return {"rule": self.rule, "message": self.message, "remedy": self.remedy}


def violations(
    candidate: Candidate,
    facts: Facts,
    settings: Mapping[str, Value] | None = None,
    framework: str = "any",
    version: str | None = None,
) -> list[Violation]:
    """All rules that one plan breaks, in the order of the registry.

    Args:
        candidate: every axis of `registry.AXIS_ORDER`, and dp (0 where the degrees do not divide the GPUs).
        facts: the job.
        settings: what its configuration sets; None to test degrees alone.
        framework: a framework or target; `any` for what mathematics and hardware demand.
        version: its version; None for the newest.
    """
    target = target_of(framework)
    known = whole_candidate(candidate, facts)
    if settings is not None and target is not None:
        stated = Settings(given=settings, defaults=defaults_of(target, version), version=version)
        facts = replace(facts, settings=stated)
    arrays = {name: np.array([value], dtype=np.int64) for name, value in known.items()}
    found = []
    moot = _DIVIDES if facts.graph.origin is not None and (known["tp"] > 1 or known["cp"] > 1) else frozenset()
    for rule in rules_of_a_plan(framework, version, settings=settings is not None):
        if known["dp"] == 0 and _FOLLOWS_FROM_DP & set(rule.reads):
            continue
        if moot.intersection(rule.reads) and rule.id != GRAPH_AXES.id:
            continue
        if bool(rule.broken(arrays, facts)[0]):
            found.append(violation(rule, known, facts))
    return found


def violation(rule: Rule, candidate: Candidate, facts: Facts) -> Violation:
    """How one candidate breaks a rule."""
    return Violation(
        rule=rule.id,
        severity=rule.severity,
        message=rule.message(candidate, facts),
        remedy=rule.remedy(candidate, facts),
        changes=rule.mend(candidate, facts) if rule.mend is not None else {},
    )


def whole_candidate(candidate: Candidate, facts: Facts) -> dict[str, int]:
    """A candidate with what follows from its degrees."""
    c = dict(candidate)
    dp = c["dp"]
    c.setdefault("cp_comm", RING)
    c.setdefault("loss_chunks", 1)
    c.setdefault("moe_dispatcher", ALL_TO_ALL)
    c.setdefault("offload", 0)
    c.setdefault("micro_batches", facts.global_batch // max(dp * c["micro_batch"], 1))
    c.setdefault("edp", c["tp"] * c["cp"] * dp // (c["etp"] * c["ep"]))
    c.setdefault("dp_shard", 1 if c["zero"] == 0 else dp // c["dp_replicate"])
    return c
