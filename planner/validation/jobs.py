"""Which measured runs are compared in ranking: those that `plan` would list together.

    job     what `plan` is given: model, machine, batch, sequence, arithmetic, adapters, stack       `job_of`
    plan    what it chooses: degrees, and what of the stack the record of a plan states              `plan_of`

Runs in other arithmetic or of another stack answer other questions, and runs of one plan, published by several people
or for several releases, are one plan: neither says whether plans are in the right order.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem
from shardwright.planner.stacks import StackProfile

PLANNED = (
    "selective_modules",
    "tp_exposed",
    "tp_exposed_unsequenced",
    "ep_exposed",
    "dualpipe_ep_hidden",
    "cp_hidden",
    "p2p_exposed_interleaved",
    "fsdp_gathers_per_step",
    "moe_dispatcher",
)
"""Fields of a profile behind the switches of a plan: what is recomputed, which exchanges are hidden, how tokens travel."""

UNPRICED = ("aliases", "sources", "description")
"""Fields that say nothing of times."""


def job_of(problem: Problem, sequences: int) -> Hashable:
    """What plans compete with each other: equal for runs of one job.

    Args:
        problem: model, machine, training and stack of a run.
        sequences: sequences of a whole step.
    """
    job = problem.job
    return (
        problem.graph.digest,
        problem.cluster.digest,
        job.seq_len,
        sequences,
        job.precision.id,
        job.optimizer.id,
        job.grad_bytes,
        repr(job.frozen),
        repr(job.lengths),
        tuple(getattr(problem.stack, name) for name in _stack_fields()),
    )


def plan_of(problem: Problem, degrees: Degrees) -> Hashable:
    """What a run chose within its job: equal for runs of one plan."""
    return repr(degrees), tuple(getattr(problem.stack, name) for name in PLANNED)


def _stack_fields() -> tuple[str, ...]:
    return tuple(f.name for f in fields(StackProfile) if f.name not in (*PLANNED, *UNPRICED))
