"""`finish_s`: when each rank is done, for many plans that share their order of operations.

With the steps of `steps`, w(o) what step o waits for,

    end(o) = max(end(o − 1), end(w(o)) + delay(o)) + spent(o)          step = max over ranks of end(last) + tail

`program` puts steps into waves, each after the waves of o − 1 and w(o), once for an order: a table with a row for each wave and
a column for each rank, in which a rank without a step keeps the end it had. `ends` then goes through the rows,
[ranks, plans] at a time. This equals `simulator.simulate` up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT, Order, check
from shardwright.planner.schedules.steps import Chains, chains
from shardwright.planner.schedules.timing import ChunkTimes, Sends, busy_s, crossing, delay_s

PLANS_AT_ONCE = 32
"""Plans priced together: so many that calls cost little, so few that the ends of some waves stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """An order compiled into a table, whose cells count from the row "nothing is done yet", rank after rank.

    Attributes:
        order: what was compiled.
        exchange: whether both ends of a message wait.
        chains: its steps.
        row: what the step of each cell spends, a row of `spent_s`, [waves, pp].
        waits: cell of what it waits for, 0 for nothing, [waves, pp].
        link: link that this passes, the last stage for none, [waves, pp].
    """

    order: Order
    exchange: bool
    chains: Chains
    row: IntArray
    waits: IntArray
    link: IntArray


def program(order: Order, exchange: bool = False) -> Program:
    """Compiles an order.

    Args:
        order: what each rank does, in order.
        exchange: whether both ends of a message wait (`Sends.BOTH`).

    Raises:
        ConflictError: an operation is missing or too early, or the ranks wait for each other.
    """
    check(order)
    steps = chains(order, exchange)
    wave = _waves(steps.rank, steps.waits)
    shape = (int(wave.max()) + 1, order.pp)
    cell = (wave + 1) * order.pp + steps.rank
    cell[0] = 0
    table = [np.full(shape, none) for none in (len(PHASES) * order.stages, 0, order.stages - 1)]
    for part, values in zip(table, (steps.row, cell[steps.waits], steps.link), strict=True):
        part[wave[1:], steps.rank[1:]] = values[1:]
    return Program(order=order, exchange=exchange, chains=steps, row=table[0], waits=table[1], link=table[2])


def _waves(rank: IntArray, waits: IntArray) -> IntArray:
    """Wave of each step: every rank does its next one as soon as what it waits for is of an earlier wave."""
    first = np.flatnonzero(np.diff(rank)) + 1
    wave = np.full(len(rank), np.iinfo(np.int64).max)
    wave[0] = -1
    next_up, stop, clock = first, np.append(first[1:], len(rank)), 0
    while len(next_up):
        ready = wave[waits[next_up]] < clock
        done = next_up[ready]
        if len(done) == 0:
            raise ConflictError("the ranks of this pipeline wait for each other", hint="give another order of operations")
        wave[done] = clock
        next_up = next_up + ready
        going = next_up < stop
        next_up, stop, clock = next_up[going], stop[going], clock + 1
    return wave


def spent_s(made: Program, times: ChunkTimes) -> FloatArray:
    """Seconds of passes by phase and stage, of nothing, of the kinds of pairs and of exchanges, [rows, plans].

    Raises:
        InvalidValueError: the program was compiled for other sends.
    """
    if made.exchange != (times.sends is Sends.BOTH):
        raise InvalidValueError(f"sends {times.sends} with a program for others", hint="compile for sends where both ends wait")
    order = made.order
    crosses = crossing(order.pp, order.vpp, order.folded)
    passes = busy_s(times, crosses).reshape(-1, times.plans)
    pairs, zero = made.chains.pairs, np.zeros((1, times.plans))
    hidden = times.gain * np.minimum(*(computed_s(times)[pairs[:, side]] for side in (0, 1)))
    messages = np.where(crosses, times.send_s, 0.0).T[made.chains.exchanges].max(axis=1, initial=0.0)
    return np.concatenate((passes, zero, passes[pairs[:, 0]] + passes[pairs[:, 1]] - hidden, messages))


def computed_s(times: ChunkTimes) -> FloatArray:
    """Seconds of passes without messages, by phase and stage, [phases·stages, plans]."""
    by_phase = {
        FORWARD: times.forward_s,
        BACKWARD: times.input_s + times.weight_s,
        INPUT: times.input_s,
        WEIGHT: times.weight_s,
    }
    return np.concatenate([by_phase[phase].T for phase in sorted(by_phase)])


def late_s(made: Program, times: ChunkTimes) -> FloatArray:
    """Seconds that the result of w(o) travels, by link, [stages, plans]."""
    order = made.order
    return delay_s(times, crossing(order.pp, order.vpp, order.folded))


def ends(made: Program, times: ChunkTimes) -> FloatArray:
    """End of what every cell of the program's table holds, [(waves + 1)·pp, plans]."""
    waves, pp = made.row.shape
    flat = () if times.plans == 1 else (times.plans,)  # rows of one number are far slower than a flat array
    spent = spent_s(made, times).reshape(-1, *flat).take(made.row, axis=0)
    delays = late_s(made, times).reshape(-1, *flat)
    late = delays.take(made.link, axis=0) if delays.any() else [None] * waves
    end = np.zeros(((waves + 1) * pp, *flat))
    table = end.reshape(waves + 1, pp, *flat)
    sooner = table[0]
    for now, waits, spends, travels in zip(table[1:], made.waits, spent, late, strict=True):
        arrival = end.take(waits, axis=0)
        if travels is not None:
            arrival += travels
        np.maximum(arrival, sooner, out=arrival)
        np.add(arrival, spends, out=now)
        sooner = now
    return end.reshape(-1, times.plans)


def finish_s(made: Program, times: ChunkTimes) -> FloatArray:
    """When each rank is done with its operations, without its tail, [plans, pp]."""
    starts = range(0, times.plans, PLANS_AT_ONCE)
    parts = [ends(made, times.take(slice(start, start + PLANS_AT_ONCE)))[-made.order.pp :].T for start in starts]
    return np.concatenate(parts)


def step_s(made: Program, times: ChunkTimes) -> FloatArray:
    """When the last rank is done, tails included, [plans]."""
    return np.asarray((finish_s(made, times) + times.tail_s).max(axis=1))
