"""Why each operator is divided as it is: its cost, the next best way, what the difference is.

The *runner-up* of an operator is its best other strategy with all other operators as they are: its own time, what its
parameters exchange, and resharding on both sides are counted; it must fit the budget too. None: it has no other strategy, or no
other fits.

    alternatives(program, choice, node)   time and memory of every choice of a node, the others fixed
    runner_up(...)                        the best of another strategy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.nodes import NodeTable
from shardwright.planner.search.operators.program import Program, Tensor

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The best other strategy of an operator.

    Attributes:
        row: its choice.
        difference_s: what it costs more, of all layers the operator stands for.
    """

    row: int
    difference_s: float


def alternatives(program: Program, choice: Sequence[int], node: int) -> tuple[Floats, Floats]:
    """Seconds of a micro-batch and bytes of a device for every choice of a node, the others as they are, [choices]."""
    own, weights = program.nodes[node], program.weights
    count = len(own.costs)
    totals = np.zeros((count, len(weights), len(a.COLUMNS)))
    dropped = np.zeros((count, len(weights)))
    transient = np.zeros((count, len(weights)))
    for at, (other, row) in enumerate(zip(program.nodes, choice, strict=True)):
        costs = own.costs if at == node else other.costs[row][None]
        totals[:, other.section] += other.weight * costs
        dropped[:, other.section] += costs[:, a.DROPPED]
        transient[:, other.section] = np.maximum(transient[:, other.section], costs[:, a.TRANSIENT])
    for tensor in program.tensors:
        section = program.nodes[tensor.writer].section
        moved = _moved(tensor, choice, node)
        totals[:, section] += tensor.weight * moved
        dropped[:, section] += tensor.weight / weights[section] * moved[:, a.DROPPED]
    totals[..., a.TRANSIENT] = transient + dropped
    return _priced(program, totals)


def _moved(tensor: Tensor, choice: Sequence[int], node: int) -> Floats:
    """Costs of a tensor by choice of a node, [choices, columns] or [1, columns] where it does not touch the node."""
    writes = tensor.writer == node
    reads = [r for r in tensor.readers if r.node == node]
    if not writes and not reads:
        return np.asarray(sum((tensor.costs[pair] for pair in sorted(tensor.pairs(choice))), np.zeros(len(a.COLUMNS))))[None]
    count = len(tensor.written) if writes else len(reads[0].layout)
    made = np.zeros((count, len(a.COLUMNS)))
    for row in range(count):
        changed = [*choice[:node], row, *choice[node + 1 :]]
        for pair in sorted(tensor.pairs(changed)):
            made[row] += tensor.costs[pair]
    return made


def _priced(program: Program, totals: Floats) -> tuple[Floats, Floats]:
    pricing = program.pricing
    seconds = np.array([sum(pricing.total_s(section) for section in row) for row in totals])
    summed = totals.sum(axis=1)
    summed[:, a.TRANSIENT] = totals[..., a.TRANSIENT].max(axis=1)
    return seconds, np.array([pricing.memory_bytes(row) for row in summed])


def runner_up(program: Program, choice: Sequence[int], node: int, table: NodeTable) -> RunnerUp | None:
    """The best other strategy of a node."""
    seconds, memory = alternatives(program, choice, node)
    other = table.strategy != table.strategy[choice[node]]
    fits = other & (memory <= program.pricing.budget_bytes * (1 + 1e-9))
    if not fits.any():
        return None
    row = int(np.argmin(np.where(fits, seconds, np.inf)))
    return RunnerUp(row=row, difference_s=float(seconds[row] - seconds[choice[node]]))
