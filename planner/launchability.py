"""Which targets can launch a plan: those for which `emit` writes it.

    with_targets(problem, records)   records with `expressible_by` as emission sees it, and what follows from it

Rules on columns (`rules.registry.expressible`) go through thousands of candidates and know degrees alone. A finished record is
put to the emitters themselves, so that what is listed is what is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.planner.description import Record
from shardwright.planner.problem import Problem
from shardwright.planner.rules.target_schedules import SCHEDULES_OF, target_of_stack
from shardwright.planner.rules.versions import target_of


def with_targets(problem: Problem, records: Sequence[Record]) -> list[Record]:
    """The records with the targets that write them; those of plans that cannot be priced as they are."""
    from shardwright.planner.emit.expressing import expressing

    targets_of = expressing(problem)
    return [_with(problem, record, targets_of(record)) if record["stages"] else record for record in records]


def _with(problem: Problem, record: Record, targets: list[str]) -> Record:
    made = record | {"expressible_by": targets}
    return made | {"warnings": [*record["warnings"], *priced_elsewhere(problem, made)]}


def priced_elsewhere(problem: Problem, record: Record) -> list[str]:
    """That the target whose facts price a plan does not run its schedule; its own rules say so where it is the one named."""
    target, schedule = target_of_stack(problem), record["parallel"]["schedule"]
    if target in {None, target_of(problem.framework)} or schedule in SCHEDULES_OF[str(target)] or record["parallel"]["pp"] == 1:
        return []
    able = ", ".join(record["expressible_by"])
    which = f"it can be launched by {able}: name one by --framework" if able else "no target can launch it"
    return [f"priced with the facts of {problem.stack.id}, a stack of {target}, which has no schedule {schedule}; {which}"]
