"""How long plans of a result took: as stated, or by running them on this machine.

stated(["1=14.2", "3=13.9"])   rank -> seconds a step
to_measure(result, count)      the ranks that `plan --trials` named, else the first
on_this_machine(...)           runs them, and keeps what may be compared with the prediction
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.planner.execution.machine import Machine
from shardwright.planner.execution.run import INTERRUPTED, run

WHERE = "--measured"
HINT = "write the rank of a plan and the seconds of its step: --measured 1=14.2,3=13.9"
FEWEST_S, MOST_S = 1e-6, 1e7


def stated(texts: Sequence[str], result: Mapping[str, Any]) -> dict[int, float]:
    """Seconds a step by rank, as a user states them.

    Args:
        texts: each `RANK=SECONDS`, or several with commas between.
        result: whose plans the ranks are of.

    Raises:
        InvalidValueError: no such plan, no such number, or a plan stated twice.
    """
    made: dict[int, float] = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        rank, seconds = _pair(pair)
        known = len(result["plans"])
        if not 1 <= rank <= known:
            raise InvalidValueError(f"rank {rank}: the result holds {known} plans", where=WHERE, hint=HINT)
        if rank in made:
            raise InvalidValueError(f"rank {rank} is stated twice", where=WHERE, hint="state the median of its steps once")
        made[rank] = seconds
    return made


def _pair(text: str) -> tuple[int, float]:
    rank, _, seconds = text.partition("=")
    try:
        made = int(rank), float(seconds)
    except ValueError as error:
        raise InvalidValueError(f"{text[:40]!r} is no measured plan", where=WHERE, hint=HINT) from error
    if not (math.isfinite(made[1]) and FEWEST_S <= made[1] <= MOST_S):
        raise InvalidValueError(f"a step of {seconds[:20]} s", where=WHERE, hint=HINT)
    return made


def to_measure(result: Mapping[str, Any], count: int) -> list[int]:
    """Ranks of the plans whose measurement tells most: those of `plan --trials` that are listed, then by rank."""
    told = [plan["rank"] for plan in result.get("trials", {}).get("plans", []) if plan["rank"] is not None]
    rest = [rank for rank in range(1, len(result["plans"]) + 1) if rank not in told]
    return [*told, *rest][:count]


def on_this_machine(
    result: Mapping[str, Any],
    ranks: Sequence[int],
    *,
    steps: int,
    limit_s: float,
    machine: Machine | None,
    on_trial: Callable[[str], None] | None,
) -> tuple[list[dict[str, Any]], bool]:
    """The trials of some plans as `run` records them, and whether the user stopped them.

    Raises:
        ShardwrightError: as `run`.
    """
    done = run(result, ranks=ranks, steps=steps, limit_s=limit_s, machine=machine, on_trial=on_trial)
    return list(done.data["trials"]), done.exit_code == INTERRUPTED


def seconds_of(trials: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds a step by rank, of the trials that may be compared with their prediction."""
    return {t["rank"]: t["measured"]["step_time_s"] for t in trials if t["measured"] and not t["not_comparable"]}
