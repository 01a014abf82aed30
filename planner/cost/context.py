"""What pricing needs beside the plans: the problem, what stages stand on, and tables for every operator key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.planner.axes.sharding import OperatorKeys
from shardwright.planner.cost.compute import Machine
from shardwright.planner.cost.grounds import Ground, grounds_of, joined_tables
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.operators import UnitTables
from shardwright.planner.cost.pipelines import (
    uneven_splits,
)
from shardwright.planner.cost.routed import operator_keys
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.plans import IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.uneven import Repeating


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What pricing needs beside the plans: the problem, its machine and network, and tables for every operator key.

    Attributes:
        machine: of the first kind of node; what all kinds have in common is read here.
        network: of the whole cluster.
        grounds: what stages stand on, one an area of the cluster.
        uneven: what is known of interleaved splits whose chunks differ, by split.
    """

    problem: Problem
    machine: Machine
    network: Network
    grounds: tuple[Ground, ...]
    keys: OperatorKeys
    tables: UnitTables
    splits: SplitTable
    uneven: Mapping[int, Repeating]

    def ground(self, split: int, run: int) -> Ground:
        """What a run of a split stands on."""
        return self.grounds[0 if self.splits.area is None else int(self.splits.area[split, run])]


def make_context(problem: Problem, batch: PlanBatch, splits: SplitTable, network: Network) -> tuple[Context, IntArray]:
    """The context for a batch, and each plan's operator key."""
    grounds = grounds_of(problem, network)
    keys, key = operator_keys(problem, batch)
    used = None if splits.area is None else np.isin(np.arange(len(grounds)), splits.area)
    context = Context(
        problem=problem,
        machine=grounds[0].machines[0],
        network=network,
        grounds=grounds,
        keys=keys,
        tables=joined_tables(problem.graph, keys, grounds, used),
        splits=splits,
        uneven=uneven_splits(splits.splits),
    )
    return context, key
