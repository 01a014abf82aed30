"""A plan of a saved result, with the problem it was made for, ready to be priced again under changes.

read_saved(source, rank)     RESULT or PLAN -> Saved
Saved.estimate               the plan's record, priced again from the file alone
priced(problem, plans)       step time and peak memory of several plans at once, infinite where one has no price
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.documents import rounded
from shardwright.planner.cost.context import Context, make_context
from shardwright.planner.cost.grounds import grounds_of, joined_tables
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.pricing import Prices, price
from shardwright.planner.cost.stages import fold
from shardwright.planner.estimation import repriced
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schema import read_result
from shardwright.planner.settling import settle

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One plan of a file.

    Attributes:
        document: the whole file.
        rank: the plan's rank; None for a PLAN, which has none.
        estimate: its record.
        problem: what it was made for.
    """

    document: Mapping[str, Any]
    rank: int | None
    estimate: Record
    problem: Problem

    @property
    def degrees(self) -> Degrees:
        """The plan."""
        return degrees_of(self.estimate)

    @property
    def ranked(self) -> list[Record]:
        """The plans of its ranking on as many GPUs as it uses, itself among them; itself alone where there is no ranking."""
        if self.rank is None:
            return [self.estimate]
        used = self.estimate["parallel"]["world_size"]
        return [plan for plan in self.document["plans"] if plan["parallel"]["world_size"] == used]

    @property
    def place(self) -> int:
        """Where it stands among them, from 0."""
        return next((at for at, plan in enumerate(self.ranked) if plan.get("rank") == self.rank), 0)

    @property
    def tie(self) -> float:
        """Relative width of a tie of that ranking."""
        return float(self.document["inputs"]["search"].get("tie_percent", 0.0)) / 100


def read_saved(source: str | Path | Mapping[str, Any], rank: int | None = None) -> Saved:
    """A plan of a RESULT or a PLAN.

    Args:
        source: a file, a folder that `plan -o` wrote, `-`, or what such a file holds.
        rank: 1-based; None for 1.

    Raises:
        ShardwrightError: the file cannot be used, or has no such rank.
    """
    document = read_result(source)
    problem, estimate = repriced(document, rank=rank or 1)
    own = (rank or 1) if document["kind"] == "plan-result" else None
    return Saved(document=document, rank=own, estimate=rounded(estimate), problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Several plans with their prices, and what they were priced with; `batch` holds those that have a price.

    Attributes:
        rows: which of the plans asked for have a price, [priced].
        count: plans asked for.
    """

    context: Context
    batch: PlanBatch
    key: IntArray
    prices: Prices
    rows: IntArray
    count: int

    @property
    def step_s(self) -> FloatArray:
        """Seconds a step; infinite where a plan has no price or needs more memory than there is, [plans]."""
        made = np.full(self.count, np.inf)
        problem = self.context.problem
        fits = self.prices.fits if problem.cluster.mixed else self.prices.peak_bytes <= problem.device.memory_bytes
        made[self.rows] = np.where(fits, self.prices.step_s, np.inf)
        return made

    def under(self, problem: Problem, *, same_prices: bool = False) -> Priced:
        """The same plans on a machine or stack with other figures, the model, batch and number of GPUs being the same.

        Args:
            problem: with the other figures.
            same_prices: whether they decide only what fits.
        """
        if same_prices:
            return replace(self, context=replace(self.context, problem=problem))
        network = network_of(problem)
        grounds = grounds_of(problem, network)
        keys = replace(self.context.keys, imbalance=problem.stack.moe_load_imbalance)
        context = replace(
            self.context,
            problem=problem,
            machine=grounds[0].machines[0],
            network=network,
            grounds=grounds,
            keys=keys,
            tables=joined_tables(problem.graph, keys, grounds),
        )
        return replace(self, context=context, prices=price(context, self.batch, self.key, exact=True))


def priced(problem: Problem, plans: Sequence[Degrees]) -> Priced:
    """Prices plans as they are printed, by the recurrence of their schedules.

    Args:
        problem: what they are made for; at least one of the plans has a price there.
        plans: the plans.
    """
    settled = [settle(problem, degrees) for degrees in plans]
    able = [index for index, one in enumerate(settled) if one.row is not None and one.split is not None]
    rows = [dict(settled[index].row or {}) | {"split": place} for place, index in enumerate(able)]
    splits = [split for split in (settled[index].split for index in able) if split is not None]
    batch = PlanBatch.stack(list(rows))
    context, key = make_context(
        problem, batch, fold(problem.graph, splits, every_rank=True, areas=problem.areas), network_of(problem)
    )
    prices = price(context, batch, key, exact=True)
    return Priced(context=context, batch=batch, key=key, prices=prices, rows=np.array(able, dtype=np.int64), count=len(plans))
