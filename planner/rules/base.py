"""Feasibility rules as declared objects.

A rule reads named columns (degrees, and what follows from them) and tests arrays of candidates at once. Its message and
remedy are written for one candidate, with the numbers filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import BoolArray, IntArray
from shardwright.planner.problem import Problem

Columns = Mapping[str, IntArray]

#: What can be read besides free axes: column -> the axes it follows from.
DERIVED: Mapping[str, tuple[str, ...]] = {
    "dp": ("tp", "cp", "pp"),
    "dp_shard": ("tp", "cp", "pp", "zero", "dp_replicate"),
    "micro_batches": ("tp", "cp", "pp", "micro_batch"),
    "edp": ("tp", "cp", "pp", "ep", "etp"),
}

TARGETS = ("megatron", "torchrun", "torchtitan", "megatron-bridge", "deepspeed")


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
    """

    gpus: int
    graph: ModelGraph
    seq_len: int
    global_batch: int
    shard_extents: tuple[int, ...]
    reduces_once_a_step: bool
    precision: str = "bf16"
    optimizer: str = "adam"


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
    """

    id: str
    says: str
    reads: tuple[str, ...]
    broken: Callable[[Columns, Facts], BoolArray]
    message: Callable[[Mapping[str, int], Facts], str]
    remedy: Callable[[Mapping[str, int], Facts], str]
    targets: tuple[str, ...] = ()
    canonical: bool = False
    waived_by: str | None = None
    source: str = "arithmetic"

    @property
    def axes(self) -> frozenset[str]:
        """The free axes that must be fixed before it can be tested."""
        return frozenset(axis for name in self.reads for axis in DERIVED.get(name, (name,)))

    def to_dict(self) -> dict[str, Any]:
        """What `show rules` prints."""
        return {
            "id": self.id,
            "says": self.says,
            "reads": list(self.reads),
            "targets": list(self.targets) or ["any"],
            "severity": "search only" if self.canonical else "error",
            "source": self.source,
        }


def facts_of(problem: Problem) -> Facts:
    """The facts of a problem."""
    job, cluster = problem.job, problem.cluster
    domain = max(cluster.gpus_per_node, min(cluster.node.scaleup_domain_gpus, cluster.gpus))
    return Facts(
        gpus=cluster.gpus,
        graph=job.graph,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        shard_extents=(cluster.gpus_per_node, domain, 8 * domain),
        precision=job.precision.id,
        optimizer=job.optimizer.id,
        reduces_once_a_step=problem.stack.fsdp_gathers_per_step == "step",
    )


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def nearest(wanted: int, allowed: tuple[int, ...], count: int = 2) -> str:
    """The allowed values nearest to a wanted one, as text."""
    best = sorted(sorted(allowed, key=lambda v: (abs(v - wanted), v))[:count])
    return " or ".join(map(str, best)) if best else "none"
