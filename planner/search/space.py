"""The declared space of plans and the legal candidates in it.

The space is a product of free axes (`AXIS_ORDER`); dp, dp_shard, micro_batches and edp follow from them. `enumerate_legal`
fixes one axis after another and applies every rule as soon as the axes it reads are fixed. A prefix that breaks a
rule stands for Π (lengths of the axes not yet fixed) candidates, which are counted under that rule without being walked:

    candidates = Π lengths = Σ rejected + legal
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.hardware.host import check_hosts
from shardwright.planner.cost.stages import SPLIT_CHOICES, SPLIT_KINDS
from shardwright.planner.offloading import offload_of, text_of
from shardwright.planner.plans import ALL_TO_ALL, MOE_DISPATCHERS, PRICED_CP_COMM, RECOMPUTE_CHOICES, IntArray, default_cp_comm
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import DERIVED, Facts, Rule, divisors, facts_of
from shardwright.planner.rules.registry import AXIS_ORDER, last_axis, rules_for
from shardwright.planner.schedules.registry import SCHEDULE_IDS

MAX_TP, MAX_CP = 72, 64
CP_TOKENS = 1024
"""Context parallelism leaves every rank at least so many tokens of a sequence (in the core of the space)."""

MAX_SAMPLES = 65_536
"""Largest micro-batch that is tried for a graph read from a file, whose samples may be small."""

LEGAL_BUDGET = 360_000
"""The space is refined while it holds no more than about so many legal candidates."""

#: Words that `--fix` takes besides the axes' own names.
FIX_ALIASES: Mapping[str, str] = {"sequence_parallel": "sp", "zero_stage": "zero", "mbs": "micro_batch"}
_WORDS: Mapping[str, Sequence[str]] = {
    "schedule": SCHEDULE_IDS,
    "split": SPLIT_CHOICES,
    "recompute": RECOMPUTE_CHOICES,
    "cp_comm": PRICED_CP_COMM,
    "moe_dispatcher": MOE_DISPATCHERS,
}
_SHOWN: Mapping[str, str] = {"sp": "sequence_parallel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Values of each free axis, in `AXIS_ORDER`; words (such as schedules) as indices.

    Attributes:
        axes: values by axis.
        fixed: axes the user holds at one value.
    """

    axes: Mapping[str, tuple[int, ...]]
    fixed: frozenset[str] = frozenset()

    @property
    def candidates(self) -> int:
        """Points of the product."""
        return math.prod(len(values) for values in self.axes.values())

    def to_dict(self) -> dict[str, list[int | str | bool]]:
        """The axes with their values as people read them."""
        made: dict[str, list[int | str | bool]] = {}
        for axis, values in self.axes.items():
            words = _WORDS.get(axis)
            shown: list[int | str | bool] = [words[v] for v in values] if words else list(values)
            shown = [text_of(v) for v in values] if axis == "offload" else shown
            made[_SHOWN.get(axis, axis)] = [bool(v) for v in values] if axis == "sp" else shown
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Legal:
    """Legal candidates and the account of the others.

    Attributes:
        columns: free axes and what follows from them, [legal].
        rejected: candidates by the first rule they break, in rule order.
        facts: what the rules know.
        dead_end: where no candidate is legal, the rule that the last of them broke, and one of them.
    """

    columns: dict[str, IntArray]
    rejected: dict[str, int]
    facts: Facts
    dead_end: tuple[Rule, dict[str, int]] | None = None

    def __len__(self) -> int:
        return len(self.columns["tp"])


def declare(problem: Problem, fix: Mapping[str, str]) -> Space:
    """The space of a problem.

    Args:
        problem: model, cluster and batch.
        fix: axes to hold at one value.

    Raises:
        UnknownNameError: an axis or word that does not exist.
        InvalidValueError: a value that is no number or below 1.
        ConflictError: layers divided by speed where all nodes are alike, or one axis held at two values by two names.
    """
    return declare_all([problem], fix)


def declare_all(problems: Sequence[Problem], fix: Mapping[str, str], budget: int = LEGAL_BUDGET) -> Space:
    """One space for a job on several clusters: every axis holds the values of all of them.

    Args:
        problems: the same job on each cluster.
        fix: as for `declare`.
        budget: legal candidates over all clusters up to which the space is refined.
    """
    held = held_axes(fix)
    if held.get("split", 0) in _of_speed() and not any(problem.cluster.mixed for problem in problems):
        hint = "fix one of " + ", ".join(SPLIT_KINDS)
        raise ConflictError(f"{fix['split']} divides layers over different kinds of node", where="--fix split", hint=hint)
    if held.get("offload"):
        for problem in problems:
            check_hosts(problem.cluster)
    cores = [_core(problem) for problem in problems]
    axes = {axis: tuple(sorted({v for core in cores for v in core[axis]})) for axis in AXIS_ORDER}
    axes |= {axis: (value,) for axis, value in held.items()}
    space = Space(axes=axes, fixed=frozenset(held))
    size = sum(len(enumerate_legal(problem, space)) for problem in problems)
    for axis, values in _refinements(problems[-1]):
        if axis in held:
            continue
        richer = tuple(sorted({*space.axes[axis], *values}))
        size = -(-size * len(richer) // len(space.axes[axis]))
        if size > budget:
            break
        space = replace(space, axes={**space.axes, axis: richer})
    return space


def _core(problem: Problem) -> dict[str, tuple[int, ...]]:
    """The values every search tries."""
    cluster, spec, job = problem.cluster, problem.graph.spec, problem.job
    ranks = divisors(cluster.gpus)
    domain = cluster.fast_gpus
    experts = spec.moe.experts if spec.moe else 1
    return {
        "tp": tuple(d for d in ranks if d <= min(2 * domain, MAX_TP, spec.heads)),
        "cp": tuple(d for d in ranks if d == 1 or (d <= job.seq_len // CP_TOKENS and problem.graph.origin is None)),
        "cp_comm": (default_cp_comm(problem.framework),),
        "pp": tuple(d for d in ranks if d <= problem.graph.layers + 2),
        "ep": tuple(d for d in divisors(experts) if cluster.gpus % d == 0),
        "etp": tuple(d for d in ranks if d <= 8) if spec.moe else (1,),
        "moe_dispatcher": (MOE_DISPATCHERS.index(problem.stack.moe_dispatcher) if spec.moe else ALL_TO_ALL,),
        "sp": (0, 1),
        "zero": (0, 1, 2, 3),
        "dp_replicate": ranks,
        "micro_batch": tuple(
            m for m in divisors(job.global_batch) if m <= (8 if problem.graph.origin is None else MAX_SAMPLES)
        ),
        "vpp": tuple(v for v in (1, 2) if v <= problem.graph.layers),
        "schedule": tuple(range(len(SCHEDULE_IDS))),
        "split": (0, len(SPLIT_KINDS) - 1, *(_of_speed() if cluster.mixed else ())),
        "recompute": (0, 1, 2),
        "loss_chunks": (1,),
        "offload": (0,),
    }


def _of_speed() -> tuple[int, ...]:
    return tuple(range(len(SPLIT_KINDS), len(SPLIT_CHOICES)))


def _refinements(problem: Problem) -> list[tuple[str, tuple[int, ...]]]:
    """Further values, tried in this order while the space stays within `LEGAL_BUDGET`."""
    ranks, layers = divisors(problem.cluster.gpus), problem.graph.layers
    half, quarter = RECOMPUTE_CHOICES.index("full-half"), RECOMPUTE_CHOICES.index("full-quarter")
    return [
        ("split", tuple(range(len(SPLIT_KINDS)))),
        ("vpp", tuple(v for v in (4,) if v <= layers)),
        ("recompute", (half,)),
        ("vpp", tuple(v for v in (3, 6, 8) if v <= layers)),
        ("micro_batch", tuple(m for m in divisors(problem.job.global_batch) if m <= 16)),
        ("vpp", tuple(v for v in (5, 7, 10, 12) if v <= layers)),
        ("recompute", (quarter,)),
        ("micro_batch", tuple(m for m in divisors(problem.job.global_batch) if m <= 64)),
        ("cp", tuple(d for d in ranks if d <= (MAX_CP if problem.graph.origin is None else 1))),
    ]


def held_axes(fix: Mapping[str, str]) -> dict[str, int]:
    """The value of each axis that is held.

    Raises:
        ConflictError: an axis is held at two values by two of its names.
    """
    held: dict[str, int] = {}
    for name, text in fix.items():
        axis, value = fixed_value(name, text)
        if held.setdefault(axis, value) != value:
            names = " and to ".join(f"{text} by {name}" for name, text in fix.items() if fixed_value(name, text)[0] == axis)
            raise ConflictError(f"{axis} is fixed to {names}", where="--fix", hint="keep one of the two")
    return held


def fixed_value(name: str, text: str, where: str = "--fix") -> tuple[str, int]:
    """The axis and value of one `--fix` statement.

    Args:
        name: the axis, or another word for it.
        text: its value.
        where: the option that errors name.

    Raises:
        UnknownNameError: an axis or word that does not exist.
        InvalidValueError: a value that is no number or out of range.
    """
    axis = name.replace("-", "_")  # as the options of one plan spell it
    axis = FIX_ALIASES.get(axis, axis)
    if axis not in AXIS_ORDER:
        if axis in DERIVED:
            raise ConflictError(
                f"{axis} follows from the other degrees", where=where, hint="fix " + " and ".join(DERIVED[axis])
            )
        raise unknown_name("axis", name, [*AXIS_ORDER, *FIX_ALIASES], where=where)
    if axis in _WORDS:
        if text not in _WORDS[axis]:
            raise unknown_name(axis, text, _WORDS[axis], where=f"{where} {name}")
        return axis, list(_WORDS[axis]).index(text)
    if axis == "offload":
        return axis, offload_of(text, f"{where} {name}").code
    if axis == "sp" and text in {"true", "false", "on", "off"}:
        return axis, int(text in {"true", "on"})
    low = 0 if axis in {"sp", "zero"} else 1
    high = {"sp": 1, "zero": 3}.get(axis, 10_000_000)
    if not text.isdecimal() or len(text) > 8 or not low <= int(text) <= high:
        raise InvalidValueError(f"{name}={text}", where=where, hint=f"give a whole number from {low} to {high:,}")
    return axis, int(text)


def enumerate_legal(problem: Problem, space: Space) -> Legal:
    """All candidates that keep the rules of the problem's framework, in the order of the axes."""
    facts = facts_of(problem)
    rules = [rule for rule in rules_for(problem.framework, problem.target_version) if rule.waived_by not in space.fixed]
    rejected: dict[str, int] = {}
    dead_end = None
    columns: dict[str, IntArray] = {"": np.zeros(1, dtype=np.int64)}
    left = space.candidates
    for position, axis in enumerate(AXIS_ORDER):
        values = space.axes[axis]
        left //= len(values)
        columns = _extended(columns, axis, values)
        _derive(columns, facts)
        for rule in rules:
            if last_axis(rule) == position:
                before, columns = columns, _tested(columns, rule, facts, left, rejected)
                if len(columns[""]) == 0 and dead_end is None:
                    dead_end = rule, {name: int(column[0]) for name, column in before.items()}
    del columns[""]
    return Legal(columns=columns, rejected=rejected, facts=facts, dead_end=dead_end)


def no_plan(legal: Legal, fix: Mapping[str, str]) -> ConflictError:
    """The error for a space without a single legal candidate: what the last of them broke, and what would mend it."""
    if legal.dead_end is None:  # pragma: no cover - only called where there is none
        return ConflictError("no candidate is legal")
    rule, candidate = legal.dead_end
    reads = sorted({axis for axis in rule.axes if _SHOWN.get(axis, axis) in fix or axis in fix})
    where = (
        "--fix"
        if reads
        else "--framework"
        if rule.targets and not rule.reads
        else "--global-batch"
        if rule.id.startswith("batch")
        else "--cluster"
    )
    facts = legal.facts
    return ConflictError(
        f"no plan keeps all rules: {rule.message(candidate, facts)}", where=where, hint=rule.remedy(candidate, facts)
    )


def _extended(columns: Mapping[str, IntArray], axis: str, values: Sequence[int]) -> dict[str, IntArray]:
    """Every candidate with every value of one more axis."""
    length = len(columns[""])
    made = {name: np.repeat(column, len(values)) for name, column in columns.items()}
    made[axis] = np.tile(np.array(values, dtype=np.int64), length)
    return made


def _tested(
    columns: dict[str, IntArray], rule: Rule, facts: Facts, weight: int, rejected: dict[str, int]
) -> dict[str, IntArray]:
    """Candidates that keep a rule; the others are counted."""
    broken = rule.broken(columns, facts)
    count = int(broken.sum())
    rejected[rule.id] = rejected.get(rule.id, 0) + count * weight
    if count == 0:
        return columns
    keep = np.flatnonzero(~broken)
    return {name: column[keep] for name, column in columns.items()}


def _derive(columns: dict[str, IntArray], facts: Facts) -> None:
    """Adds what follows from the axes fixed so far (whole-number division; rules see to it that it is exact)."""
    if "pp" in columns and "dp" not in columns:
        columns["dp"] = np.maximum(facts.gpus // (columns["tp"] * columns["cp"] * columns["pp"]), 1)
    if "etp" in columns and "edp" not in columns:
        columns["edp"] = columns["tp"] * columns["cp"] * columns["dp"] // (columns["ep"] * columns["etp"])
    if "micro_batch" in columns and "micro_batches" not in columns:
        columns["micro_batches"] = np.maximum(facts.global_batch // (columns["dp"] * columns["micro_batch"]), 1)
