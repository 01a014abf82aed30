"""Linear rows that no step undercuts, for one shape of pipeline: chains of dependent work (`schedules.bounds`).

Most of a step, each rank works through its own operations. A chain that stays on rank r begins and ends in one of these ways:

    begins   with the forward passes that bring the first micro-batch to the rank
             with all forward passes of the micro-batch whose backward pass is the first on the rank, and its way back there
    ends     with the last operation of the rank, and its tail
             with the way back of its last backward pass to the first rank, and the tail there
             with its last forward pass, on to the end of the model, and all backward passes of that micro-batch

`first_chains` gives those of every rank, and the longest chains (`critical_rows`) of a few plans whose stages differ a little.
Rows depend on the order of operations alone, so candidates of one shape share them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import BoolArray, FloatArray
from shardwright.planner.schedules.bounds import critical_rows
from shardwright.planner.schedules.exact import program_for
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import ChunkTimes, chunk_times

SCATTERED, LIGHTEST, HEAVIEST = 12, 0.93, 1.1
"""Plans whose stages differ a little, and by how much: their longest chains are among the first rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """Rows as one table, [rows, 3·chunks + pp]: how often each F, I, W and tail counts."""

    counts: FloatArray

    def with_rows(self, more: FloatArray) -> Chains:
        """With further rows, each once."""
        table = np.concatenate((self.counts, more))
        _, first = np.unique(table, axis=0, return_index=True)
        return Chains(counts=table[np.sort(first)])

    def length_s(self, times: ChunkTimes) -> FloatArray:
        """Length of every chain, [plans, rows]."""
        return np.asarray(
            np.concatenate((times.forward_s, times.input_s, times.weight_s, times.tail_s), axis=1) @ self.counts.T
        )


def first_chains(shape: Shape, forward: float, back: float, weight: float) -> Chains:
    """Rows to start from.

    Args:
        shape: of the pipeline.
        forward: seconds of a usual forward pass; only proportions matter.
        back: of its gradient of inputs.
        weight: of its gradient of weights.
    """
    sizes = np.random.default_rng(0).uniform(LIGHTEST, HEAVIEST, (SCATTERED, shape.pp * shape.vpp))
    sizes[0] = 1.0
    times = chunk_times(sizes * forward, sizes * back, sizes * weight, pp=shape.pp)
    order = program_for(shape, times).order
    return Chains(counts=rank_rows(order)).with_rows(longest(shape, times))


def longest(shape: Shape, times: ChunkTimes) -> FloatArray:
    """The longest chain of each of some plans, [plans, columns]."""
    rows = critical_rows(program_for(shape, times), times)
    return np.concatenate((rows.forward, rows.input, rows.weight, rows.tail), axis=1)


def rank_rows(order: Order) -> FloatArray:
    """The chains that stay on one rank, for every rank, [rows, columns]."""
    return np.unique(np.concatenate([_rank_rows(order, rank) for rank in range(order.pp)]), axis=0)


def _rank_rows(order: Order, rank: int) -> FloatArray:
    """Chains that stay on a rank, by how they begin and end."""
    phase, stage = order.phase[rank], order.stage[rank]
    count = int(order.present[rank].sum())
    back = np.flatnonzero((phase == BACKWARD) | (phase == INPUT))
    first_back, last_back, last_forward = int(back[0]), int(back[-1]), int(np.flatnonzero(phase == FORWARD)[-1])
    begins = [(0, _way(order, forward=range(stage[0])))]
    begins.append((first_back, _way(order, forward=range(order.stages), back=range(int(stage[first_back]) + 1, order.stages))))
    ends = [(count, _tail(order, rank))]
    ends.append((last_back + 1, _way(order, back=range(int(stage[last_back]))) + _tail(order, order.stage_rank[0])))
    onward = _way(order, forward=range(int(stage[last_forward]) + 1, order.stages), back=range(order.stages))
    ends.append((last_forward + 1, onward + _tail(order, order.stage_rank[0])))
    made = [b + _own(order, rank, start, stop) + e for start, b in begins for stop, e in ends if start < stop]
    return np.stack(made)


def _own(order: Order, rank: int, start: int, stop: int) -> FloatArray:
    """Operations of a rank from one to before another."""
    n, phase, stage = order.stages, order.phase[rank, start:stop], order.stage[rank, start:stop]
    made = np.zeros(3 * n + order.pp)
    columns: dict[int, tuple[int, ...]] = {FORWARD: (0,), INPUT: (1,), WEIGHT: (2,), BACKWARD: (1, 2)}
    for kind, places in columns.items():
        for place in places:
            made[place * n : (place + 1) * n] += np.bincount(stage[phase == kind], minlength=n)
    return made


def _way(order: Order, *, forward: range = range(0), back: range = range(0)) -> FloatArray:
    """One micro-batch forward and back through some stages; weight gradients too where they are no operations of their own."""
    n = order.stages
    made = np.zeros(3 * n + order.pp)
    made[list(forward)] = 1.0
    made[[n + s for s in back]] = 1.0
    whole = _is_whole(order)
    made[[2 * n + s for s in back if whole[s]]] = 1.0
    return made


def _is_whole(order: Order) -> BoolArray:
    """Stages whose backward passes are all one operation, [stages]."""
    apart = np.unique(order.stage[order.phase == INPUT])
    return np.asarray(~np.isin(np.arange(order.stages), apart))


def _tail(order: Order, rank: int) -> FloatArray:
    made = np.zeros(3 * order.stages + order.pp)
    made[3 * order.stages + int(rank)] = 1.0
    return made
