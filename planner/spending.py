"""What a step costs in money and energy, and what failures take of it.

    USD per 1M tokens  = p / 3600 · GPUs · step / tokens · 1e6        p: USD per GPU-hour, GPUs of the nodes in use
    J per token        = P · share · PUE · nodes · step / tokens      P: rated power of a node, share drawn in training
    goodput            = useful share of wall time                    `hardware.reliability`

and `weight`, which makes an objective of a step time: within one cluster all of them grow with the step, so that

    value = weight(objective) · step      throughput s, cost USD per 1M tokens, energy J per token, goodput s per useful step
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.hardware.economics import needed_price, rated_power_w
from shardwright.hardware.reliability import Outlook
from shardwright.planner.problem import Problem

OBJECTIVE_UNITS = {
    "throughput": "step_time_s",
    "cost": "usd_per_1m_tokens",
    "energy": "joules_per_token",
    "goodput": "step_time_s / goodput_fraction",
}
"""What each objective makes least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Money, energy and failures of a job on the nodes it uses.

    Attributes:
        tokens: tokens a step.
        gpus: GPUs paid for: whole nodes in use.
        usd_per_s: price of all of them; None if unknown.
        power_w: power of the site for them; None if unknown.
        checkpoint_bytes_per_rank: of one rank, evenly spread.
        outlook: what failures make of a run.
    """

    tokens: int
    gpus: int
    usd_per_s: float | None
    power_w: float | None
    checkpoint_bytes_per_rank: float
    outlook: Outlook

    @staticmethod
    def of(problem: Problem) -> Spending:
        """The spending of a problem."""
        cluster, operation = problem.cluster, problem.operation
        prices = [(group.node.usd_per_gpu_hour, group.gpus) for group in cluster.groups]
        powers = [(rated_power_w(group.node), group.count) for group in cluster.groups]
        usd_per_hour, rated_w = _total(prices), _total(powers)
        return Spending(
            tokens=problem.job.tokens_per_step,
            gpus=cluster.gpus,
            usd_per_s=None if usd_per_hour is None else usd_per_hour / 3600,
            power_w=None if rated_w is None else rated_w * operation.power_share * operation.pue,
            checkpoint_bytes_per_rank=problem.checkpoint_bytes / cluster.gpus,
            outlook=operation.outlook(cluster.gpus, problem.checkpoint_bytes),
        )

    def usd_per_1m_tokens(self, step_s: float) -> float | None:
        """Price of a million tokens; None if unknown."""
        return None if self.usd_per_s is None else self.usd_per_s * step_s / self.tokens * 1e6

    def joules_per_token(self, step_s: float) -> float | None:
        """Energy of a token; None if unknown."""
        return None if self.power_w is None else self.power_w * step_s / self.tokens

    def goodput(self) -> dict[str, Any]:
        """The part of `predicted` that speaks of failures; null where it is endless."""
        o = self.outlook
        return {
            "goodput_fraction": o.fraction,
            "goodput_low_fraction": o.fraction_low,
            "goodput_high_fraction": o.fraction_high,
            "mtti_s": _finite(o.mtti_s),
            "checkpoint_interval_s": _finite(o.interval_s),
            "checkpoint_bytes_per_rank": self.checkpoint_bytes_per_rank,
        }

    def weight(self, objective: str) -> float:
        """What a second of step time is worth in an objective (least is best).

        Raises:
            InvalidValueError: what it needs is unknown.
        """
        if objective == "cost" and self.usd_per_s is not None:
            return self.usd_per_s / self.tokens * 1e6
        if objective == "energy" and self.power_w is not None:
            return self.power_w / self.tokens
        if objective == "goodput" and self.outlook.fraction > 0:
            return 1.0 / self.outlook.fraction
        return 1.0 if objective == "throughput" else math.inf


def check_objective(problem: Problem) -> None:
    """Sees to it that an objective can be computed.

    Raises:
        InvalidValueError: no price, or no power, is known for a node.
    """
    for node in (group.node for group in problem.cluster.groups):
        if problem.objective == "cost":
            needed_price(node)
        if problem.objective == "energy" and rated_power_w(node) is None:
            hint = "give it: --set cluster.power_w=WATTS_OF_A_NODE"
            raise InvalidValueError(f"no power is known for {node.id}", where="--objective", hint=hint)


def _total(each: Sequence[tuple[float | None, int]]) -> float | None:
    """Sum of values times counts; None where one is unknown."""
    known = [value * count for value, count in each if value is not None]
    return sum(known) if len(known) == len(each) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
