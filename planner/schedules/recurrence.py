"""`finish_s`: when each rank is done, for many plans that share their order of operations.

With a(o) the operation before o on its rank and d(o) the pass on another stage that o waits for,

    end(o) = max(end(a(o)), end(d(o)) + delay(o)) + busy(o)          step = max over ranks of end(last) + tail

`program` puts operations into waves, each after the waves of a(o) and d(o), once for an order; `ends` then goes through them,
[operations of the wave, plans] at a time. This equals `simulator.simulate` up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.errors import ConflictError
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import FORWARD, WEIGHT, Order, check
from shardwright.planner.schedules.timing import ChunkTimes, busy_s, crossing, delay_s

PLANS_AT_ONCE = 64
"""Plans priced together: so many that calls cost little, so few that a program's ends stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """An order compiled into waves. Operation 0 stands for "nothing": it ends at 0.

    Attributes:
        order: what was compiled.
        before: a(o), [operations + 1].
        waits: d(o), [operations + 1].
        row: phase·stages + stage of each operation, [operations + 1].
        link: stage before the link that d(o) passes, [operations + 1].
        bounds: first operation of each wave, and one past the last, [waves + 1].
        last: last operation of each rank, [pp].
    """

    order: Order
    before: IntArray
    waits: IntArray
    row: IntArray
    link: IntArray
    bounds: IntArray
    last: IntArray


def program(order: Order) -> Program:
    """Compiles an order.

    Raises:
        ConflictError: an operation is missing or too early, or the ranks wait for each other.
    """
    check(order)
    rank, place = np.nonzero(order.present)
    phase, stage, micro_batch = (part[rank, place] for part in (order.phase, order.stage, order.micro_batch))
    number = np.arange(1, len(phase) + 1)
    source = np.where(phase == FORWARD, stage - 1, stage + 1)
    inside = (phase != WEIGHT) & (source >= 0) & (source < order.stages)
    made = np.zeros((2, order.stages, order.micro_batches), dtype=np.int64)
    passes = phase != WEIGHT
    back = (phase != FORWARD).astype(np.int64)
    made[back[passes], stage[passes], micro_batch[passes]] = number[passes]
    waits = np.where(inside, made[back, np.where(inside, source, 0), micro_batch], 0)
    before = np.where(place > 0, number - 1, 0)
    wave = _waves(order, waits)
    by_wave = np.argsort(wave, kind="stable")
    renumber = np.zeros(len(phase) + 1, dtype=np.int64)
    renumber[by_wave + 1] = number
    ends = np.flatnonzero(np.append(rank[1:] != rank[:-1], True))
    zero = np.zeros(1, dtype=np.int64)
    return Program(
        order=order,
        before=np.append(zero, renumber[before[by_wave]]),
        waits=np.append(zero, renumber[waits[by_wave]]),
        row=np.append(zero, (phase * order.stages + stage)[by_wave]),
        link=np.append(zero, np.where(inside, np.minimum(stage, source), order.stages - 1)[by_wave]),
        bounds=1 + np.append(np.searchsorted(wave[by_wave], np.arange(wave.max() + 1)), len(wave)),
        last=renumber[ends + 1],
    )


def _waves(order: Order, waits: IntArray) -> IntArray:
    """Wave of each operation: every rank does its next operation as soon as what it waits for is of an earlier wave."""
    counts = order.present.sum(axis=1)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    wave = np.full(len(waits) + 1, np.iinfo(np.int64).max)
    wave[0] = -1
    next_up, stop, clock = first.copy(), first + counts, 0
    while len(next_up):
        ready = wave[waits[next_up]] < clock
        done = next_up[ready]
        if len(done) == 0:
            raise ConflictError("the ranks of this pipeline wait for each other", hint="give another order of operations")
        wave[done + 1] = clock
        next_up = next_up + ready
        going = next_up < stop
        next_up, stop, clock = next_up[going], stop[going], clock + 1
    return wave[1:]


def ends(made: Program, times: ChunkTimes) -> FloatArray:
    """End of every operation, [operations + 1, plans]."""
    order = made.order
    crosses = crossing(order.pp, order.vpp, order.folded)
    wide = (-1,) if times.plans == 1 else (-1, times.plans)  # rows of one number are far slower than a flat array
    busy = busy_s(times, crosses).reshape(wide).take(made.row, axis=0)
    delays = delay_s(times, crosses).reshape(wide)
    late = delays.take(made.link, axis=0) if delays.any() else None
    end = np.zeros(busy.shape)
    for start, stop in pairwise(made.bounds.tolist()):
        wave = slice(start, stop)
        arrival = end.take(made.waits[wave], axis=0)
        if late is not None:
            arrival += late[wave]
        np.maximum(arrival, end.take(made.before[wave], axis=0), out=arrival)
        np.add(arrival, busy[wave], out=end[wave])
    return end.reshape(-1, times.plans)


def finish_s(made: Program, times: ChunkTimes) -> FloatArray:
    """When each rank is done with its operations, without its tail, [plans, pp]."""
    parts = [
        ends(made, times.take(slice(start, start + PLANS_AT_ONCE)))[made.last].T
        for start in range(0, times.plans, PLANS_AT_ONCE)
    ]
    return np.concatenate(parts)


def step_s(made: Program, times: ChunkTimes) -> FloatArray:
    """When the last rank is done, tails included, [plans]."""
    return np.asarray((finish_s(made, times) + times.tail_s).max(axis=1))
