"""What a run of many steps takes on a cluster: wall-clock days, money, energy, interruptions, checkpoints.

    steps = ⌈tokens / tokens a step⌉
    days  = steps · step / goodput                  at the middle, the least and the greatest published rate of failures
    USD   = price of a GPU-hour · GPUs · hours      of wall time: failures are paid for

`least_outcome` is what no plan can beat: every model FLOP at the greatest rate of any kernel (`search.limits`), no failures.
Its days fall as the cluster grows; its USD do not change.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.planner.problem import Problem
from shardwright.planner.search.limits import least_step_s
from shardwright.planner.spending import Spending

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole run.

    Attributes:
        steps: optimiser steps.
        step_time_s: of one.
        days: wall clock, failures and checkpoints considered; `days_low` with few failures, `days_high` with many.
        usd: of the wall time; with `_low` and `_high`.
        mwh: energy of the site; None where the power is unknown.
        tokens_per_s: useful ones, over the wall time.
        goodput_fraction: useful share of the wall time.
        interruptions: expected.
        mtti_s: mean time to interruption; None without failures.
        restart_s: of each.
        checkpoint_interval_s: training between two checkpoints; None without failures.
        checkpoint_s: training stops so long for one.
        checkpoint_bytes_per_rank: evenly spread over all ranks.
    """

    steps: int
    step_time_s: float
    days: float
    days_low: float
    days_high: float
    usd: float
    usd_low: float
    usd_high: float
    mwh: float | None
    tokens_per_s: float
    goodput_fraction: float
    interruptions: float
    mtti_s: float | None
    restart_s: float
    checkpoint_interval_s: float | None
    checkpoint_s: float
    checkpoint_bytes_per_rank: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def outcome_of(problem: Problem, step_s: float, tokens: int) -> Outcome | None:
    """The run of so many tokens at a step time; None where failures leave no time to train.

    Args:
        problem: job and cluster; the price of its nodes is known.
        step_s: seconds a step.
        tokens: of the whole run.
    """
    spending = Spending.of(problem)
    outlook, steps = spending.outlook, math.ceil(tokens / spending.tokens)
    busy = steps * step_s
    if outlook.fraction <= 0 or outlook.fraction_low <= 0:
        return None
    walls = [busy / share for share in (outlook.fraction, outlook.fraction_high, outlook.fraction_low)]
    usd_per_s = spending.usd_per_s or 0.0
    power = spending.power_w
    return Outcome(
        steps=steps,
        step_time_s=step_s,
        days=walls[0] / DAY_S,
        days_low=walls[1] / DAY_S,
        days_high=walls[2] / DAY_S,
        usd=walls[0] * usd_per_s,
        usd_low=walls[1] * usd_per_s,
        usd_high=walls[2] * usd_per_s,
        mwh=None if power is None else power * walls[0] / 3.6e9,
        tokens_per_s=spending.tokens / step_s * outlook.fraction,
        goodput_fraction=outlook.fraction,
        interruptions=walls[0] / outlook.mtti_s,
        mtti_s=outlook.mtti_s if math.isfinite(outlook.mtti_s) else None,
        restart_s=problem.operation.restart_s,
        checkpoint_interval_s=outlook.interval_s if math.isfinite(outlook.interval_s) else None,
        checkpoint_s=outlook.checkpoint_s,
        checkpoint_bytes_per_rank=spending.checkpoint_bytes_per_rank,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """What no plan of a job on a cluster can beat.

    Attributes:
        days: of the run.
        usd: of the run.
        tokens_per_s: at most.
    """

    days: float
    usd: float
    tokens_per_s: float


def least_outcome(problem: Problem, tokens: int) -> Least:
    """What no plan can beat; the price of the nodes is known."""
    spending, step = Spending.of(problem), least_step_s(problem)
    busy = math.ceil(tokens / spending.tokens) * step
    return Least(days=busy / DAY_S, usd=busy * (spending.usd_per_s or 0.0), tokens_per_s=spending.tokens / step)
