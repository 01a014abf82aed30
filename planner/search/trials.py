"""Which plans to measure: the K whose trial most raises the chance of holding the plan that is really fastest.

    log true_i = log predicted_i + what all plans of the job share + Σ_axis error[axis, value_i]
    variance of the difference of two errors on an axis = VARIANCES[axis] · distance of the values

Errors are normal. On a degree they walk: the distance is |log2 (value / value)|, so that neighbours err more alike than others.
On a choice (`CHOICES`) it is 1 between any two. What is shared moves no plan before another and cancels; plans that differ
in their layers alone err alike, and one of them is a candidate. `drawn` draws all errors together; the chance of a plan is how
often it is the fastest: of two that err alike only the one predicted faster has any. One plan is fastest in each draw, hence

    P(fastest in S) = Σ_{i in S} P(i is fastest)

and taking the greatest chance again and again gives the best set of every size. What remains to lose with it is the mean of
(least true time in S) / (least of all) - 1.

Source of the variances: `benchmarks/fit_trials.py` on published runs (docs/search.md says how well they held there).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.planner.description import Record
from shardwright.planner.plans import FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.search.finalists import NEAR, operations, with_exact
from shardwright.planner.search.ranking import launchable
from shardwright.planner.search.scan import Scan

DEGREES = ("tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch")
CHOICES = ("schedule", "sharding", "recompute")
AXES = (*DEGREES, *CHOICES)
"""What the errors of the model are about; sharding is the ZeRO stage and whether replicas of shards are kept."""

VARIANCES: Mapping[str, float] = dict.fromkeys(AXES, 0.0046) | {"tp": 0.0074, "pp": 0.0014, "micro_batch": 0.0050}
"""Of the difference of log (measured / predicted) of two plans, for each doubling of a degree or another choice. Source:
`benchmarks/fit_trials.py` on 2,059 pairs of published runs of one job. On the other axes too few pairs
differ (60 at most): those have the mean of these three."""

DRAWS, SEED = 16_384, 20_240_229
"""Draws of all errors, and where their generator starts: the same draws for the same plans, on every machine."""

MOST_CANDIDATES = 300
MAX_TRIALS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """Plans to measure, best first.

    Attributes:
        chosen: which of the candidates.
        probability: that each is the fastest.
        loss: expected loss with it and all before it.
    """

    chosen: IntArray
    probability: FloatArray
    loss: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Candidates for trials among the plans of a scan, and the choice of them.

    Attributes:
        made: the scan, with exact prices of all candidates.
        rows: the candidates, fastest first.
        chances: which of them to measure.
    """

    made: Scan
    rows: IntArray
    chances: Chances

    @property
    def chosen(self) -> IntArray:
        """Rows of the scan that are to be measured."""
        return self.rows[self.chances.chosen]

    def to_dict(self, records: Sequence[Record], plans: Sequence[Record]) -> Record:
        """What a result says of them.

        Args:
            records: the ESTIMATE of each of `chosen`, with its id.
            plans: those shown, with id and rank.
        """
        ranks = {plan["id"]: plan["rank"] for plan in plans}
        c = self.chances
        sums = np.minimum(np.cumsum(c.probability), 1.0)
        return {
            "candidates": len(self.rows),
            "slowest_step_time_s": float(self.made.step_s[self.rows].max()) if len(self.rows) else None,
            "draws": DRAWS,
            "seed": SEED,
            "plans": [
                {
                    "rank": ranks.get(record["id"]),
                    "id": record["id"],
                    "step_time_s": record["predicted"]["step_time_s"],
                    "probability": float(c.probability[n]),
                    "cumulative_probability": float(sums[n]),
                    "expected_loss": float(c.loss[n]),
                    "parallel": record["parallel"],
                }
                for n, record in enumerate(records)
            ],
        }


def choose_trials(problem: Problem, made: Scan, shown: IntArray, count: int) -> Trials:
    """The plans of a scan to measure.

    Args:
        problem: what was planned.
        made: priced candidates.
        shown: rows that are listed anyway; they stand for the plans that differ from them in layers alone.
        count: how many to measure; fewer are chosen where no other has a chance.
    """
    fitting = np.flatnonzero(made.fits)
    fitting = fitting[launchable(problem, made, fitting)]
    order = fitting[np.lexsort((made.step_s[fitting], ~np.isin(fitting, shown)))]
    first = np.unique(values(made.batch.take(order)), axis=0, return_index=True)[1]
    rows = order[first]
    rows = rows[np.argsort(made.step_s[rows], kind="stable")][:MOST_CANDIDATES]
    rows = rows[np.cumsum(np.where(made.exact[rows], 0, operations(made, rows))) <= NEAR]
    left = rows[~made.exact[rows]]
    made = with_exact(made, left) if len(left) else made
    rows = rows[np.argsort(made.step_s[rows], kind="stable")]
    chances = chances_of(made.step_s[rows], values(made.batch.take(rows)), count)
    return Trials(made=made, rows=rows, chances=chances)


def chances_of(step_s: FloatArray, plans: IntArray, count: int) -> Chances:
    """The trials that most raise the chance of holding the fastest plan.

    Args:
        step_s: predicted seconds of the candidates, [plans].
        plans: what each has on every axis, [plans, axes of `AXES`].
        count: how many trials at most.
    """
    true = drawn(step_s, plans)
    wins = np.bincount(true.argmin(axis=1), minlength=len(step_s)) if len(step_s) else np.zeros(0, dtype=np.int64)
    order = np.argsort(-wins, kind="stable")[: min(count, np.count_nonzero(wins))]
    best = true.min(axis=1, keepdims=True) if len(step_s) else np.zeros((DRAWS, 1))
    held = np.minimum.accumulate(true[:, order], axis=1)
    return Chances(chosen=order, probability=wins[order] / DRAWS, loss=np.mean(np.expm1(held - best), axis=0))


def drawn(step_s: FloatArray, plans: IntArray) -> FloatArray:
    """Log seconds of every candidate in every draw, without what all share: [draws, plans]."""
    generator = np.random.default_rng(SEED)
    true = np.tile(np.log(step_s), (DRAWS, 1))
    for place, axis in enumerate(AXES):
        found, which = np.unique(plans[:, place], return_inverse=True)
        normal = generator.standard_normal((DRAWS, len(found)))
        if axis in CHOICES:
            errors = normal * np.sqrt(VARIANCES[axis] / 2)
        else:
            gaps = np.diff(np.log2(found), prepend=np.log2(found[:1]))
            errors = np.cumsum(normal * np.sqrt(VARIANCES[axis] * gaps), axis=1)
        true += errors[:, which]
    return true


def values_of(parallel: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a plan has on each axis of `AXES`, from the `parallel` of an ESTIMATE."""
    degrees = tuple(parallel[name] for name in DEGREES)
    hybrid = parallel["dp_shard"] > 1 and parallel["dp_replicate"] > 1
    return (*degrees, parallel["schedule"], (parallel["zero_stage"], hybrid), parallel["recompute"]["mode"])


def distance(axis: str, one: Any, other: Any) -> float:
    """How far two values of an axis are from each other: doublings of a degree, 0 or 1 of a choice."""
    return float(one != other) if axis in CHOICES else abs(math.log2(one / other))


def values(b: PlanBatch) -> IntArray:
    """What plans in columns have on each axis, choices as numbers: [plans, axes]."""
    sharding = 2 * b.zero + ((b.dp_shard > 1) & (b.shown_dp_replicate > 1))
    return np.stack([*(getattr(b, name) for name in DEGREES), b.schedule, sharding, b.recompute], axis=1)
