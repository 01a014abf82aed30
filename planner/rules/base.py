"""Feasibility rules as declared objects.

A rule reads named columns (degrees, and what follows from them), facts of the job, and the settings of a framework, and tests
arrays of candidates at once. Its message and remedy are written for one candidate, with the numbers filled in.

Two kinds, told by `Rule.settings`: rules of degrees (none) are applied by the search to every candidate; rules of settings to
a configuration a user has, or one that was written, since the search leaves settings to whoever writes the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import BoolArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.rules.settings import Settings, Value
from shardwright.planner.rules.target_schedules import planned_schedules
from shardwright.planner.rules.versions import holds_in
from shardwright.planner.schedules.registry import SCHEDULE_IDS

Columns = Mapping[str, IntArray]
Candidate = Mapping[str, int]
Changes = Mapping[str, Value]
"""Columns or settings, and the values that mend a broken rule; None for a setting to leave out."""

#: What can be read besides free axes: column -> the axes it follows from.
DERIVED: Mapping[str, tuple[str, ...]] = {
    "dp": ("tp", "cp", "pp"),
    "dp_shard": ("tp", "cp", "pp", "zero", "dp_replicate"),
    "micro_batches": ("tp", "cp", "pp", "micro_batch"),
    "edp": ("tp", "cp", "pp", "ep", "etp"),
}

SEVERITIES = ("error", "changed", "warning")
"""Refused by the framework or training something else; changed by it in silence, harmlessly; legal, but not wanted."""

COMPUTE_CAPABILITY: Mapping[str, int] = {
    "volta": 7, "ampere": 8, "ada": 8, "hopper": 9, "cdna3": 9, "cdna4": 9, "blackwell": 10, "blackwell-ultra": 10,
}  # fmt: skip
"""Major compute capability as torch reports it, by chip generation (CUDA C++ programming guide; gfx9 for CDNA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rules know besides the candidate.

    Attributes:
        gpus: GPUs to use.
        graph: the model.
        seq_len: tokens a sequence.
        global_batch: sequences a step.
        shard_extents: ranks of groups that sharded states may be replicated over, in the search.
        precision: id of the training precision.
        optimizer: id of the optimizer.
        reduces_once_a_step: whether gradients are accumulated whole and reduced once a step under a pipeline.
        compute_capability: major compute capability of the device.
        settings: what a configuration sets, for rules that read settings.
        chunks: layers of each stage or pipeline chunk where a user states them; None where they follow from `split`.
        planned_schedules: schedules the search plans as far as prices go (`target_schedules`).
    """

    gpus: int
    graph: ModelGraph
    seq_len: int
    global_batch: int
    shard_extents: tuple[int, ...]
    reduces_once_a_step: bool
    precision: str = "bf16"
    optimizer: str = "adam"
    compute_capability: int = 9
    settings: Settings = field(default_factory=Settings)
    chunks: tuple[int, ...] | None = None
    planned_schedules: tuple[str, ...] = SCHEDULE_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition a plan must meet.

    Attributes:
        id: the name results count rejections under.
        says: the rule in one sentence.
        reads: columns it reads, free or derived (`DERIVED`).
        broken: (columns, facts) -> where it is broken, [candidates].
        message: (one candidate, facts) -> what is wrong, with numbers.
        remedy: (one candidate, facts) -> the nearest legal choice.
        targets: the targets it holds for; empty for all (mathematics or hardware demand it).
        canonical: it only keeps the search from pricing one plan twice; a user's own plan need not meet it.
        waived_by: an axis; where the user fixes it, the rule does not hold.
        source: where the rule comes from.
        severity: one of `SEVERITIES`.
        since: first version of the target it holds for (for megatron-bridge: of the megatron-core it carries).
        until: first version it no longer holds for.
        settings: settings it reads.
        mend: (one candidate, facts) -> the nearest legal values of what it reads; None where words alone say it.
    """

    id: str
    says: str
    reads: tuple[str, ...]
    broken: Callable[[Columns, Facts], BoolArray]
    message: Callable[[Candidate, Facts], str]
    remedy: Callable[[Candidate, Facts], str]
    targets: tuple[str, ...] = ()
    canonical: bool = False
    waived_by: str | None = None
    source: str = "arithmetic"
    severity: str = "error"
    since: str | None = None
    until: str | None = None
    settings: tuple[str, ...] = ()
    mend: Callable[[Candidate, Facts], Changes] | None = None

    @property
    def axes(self) -> frozenset[str]:
        """The free axes that must be fixed before it can be tested."""
        return frozenset(axis for name in self.reads for axis in DERIVED.get(name, (name,)))

    @property
    def rejects(self) -> bool:
        """Whether the search rejects candidates under it."""
        return self.severity == "error" and not self.settings

    def holds_for(self, target: str | None, version: str | None = None) -> bool:
        """Whether it binds plans for a target in a version (None: the current one); without a target, whether it binds all."""
        if not self.targets:
            return True
        return target in self.targets and holds_in(str(target), version, self.since, self.until)

    def to_dict(self) -> dict[str, Any]:
        """What `show rules` prints."""
        return {
            "id": self.id,
            "says": self.says,
            "reads": list(self.reads),
            "targets": list(self.targets) or ["any"],
            "severity": "search only" if self.canonical else self.severity,
            "since": self.since,
            "until": self.until,
            "settings": list(self.settings),
            "source": self.source,
        }


def facts_of(problem: Problem) -> Facts:
    """The facts of a problem."""
    job, cluster = problem.job, problem.cluster
    domain = cluster.fast_gpus
    return Facts(
        gpus=cluster.gpus,
        graph=job.graph,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        shard_extents=(cluster.gpus_per_node, domain, 8 * domain),
        precision=job.precision.id,
        optimizer=job.optimizer.id,
        reduces_once_a_step=problem.stack.fsdp_gathers_per_step == "step",
        compute_capability=min(COMPUTE_CAPABILITY.get(group.node.device.arch, 9) for group in cluster.groups),
        planned_schedules=planned_schedules(problem),
    )


def counted_ends(split: IntArray) -> tuple[IntArray, IntArray]:
    """Whether the embedding, and the head, count as a layer in a division: the bits of the first four values of `split`."""
    even = split < 4
    return (split & 1) * even, (split >> 1) * even


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def closest(wanted: int, allowed: tuple[int, ...]) -> int:
    """The allowed value nearest to a wanted one, the smaller of two."""
    return min(allowed, key=lambda v: (abs(v - wanted), v))


def nearest(wanted: int, allowed: tuple[int, ...], count: int = 2) -> str:
    """The allowed values nearest to a wanted one, as text."""
    best = sorted(sorted(allowed, key=lambda v: (abs(v - wanted), v))[:count])
    return " or ".join(map(str, best)) if best else "none"
