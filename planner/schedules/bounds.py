"""Linear rows that never exceed the price: the lengths of chains of dependent work.

The step is the longest of all chains of operations in which each waits for the one before, on its rank or on another stage:

    T = max over chains c of Σ_s (f_cs·F_s + i_cs·I_s + w_cs·W_s + p_cs·send_s) + tail of the last rank

with counts f, i, w, p that do not depend on the times. So T is convex in the times, every chain is a row that no times can
exceed, and the longest chain at some times (`critical_rows`) is exact there: the cut to add when a program that minimises
rows returns those times. `reference_rows` gives rows to start from: the longest chains of plans in which one rank, or all
ranks from one on, are heavier than the rest, or the forward passes of one rank and the gradients of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT, Order
from shardwright.planner.schedules.recurrence import PLANS_AT_ONCE, Program, ends
from shardwright.planner.schedules.timing import ChunkTimes, Sends, chunk_times, crossing, delay_s

HEAVIER = (1.05, 1.3, 4.0)
"""How much heavier one rank is in the plans whose longest chains are the first rows."""

PAIRED_RANKS = 16
"""Up to so many ranks, every pair of them gives a row: one with heavier forward, one with heavier backward passes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of a bound, valid for one order and one kind of sends.

    Attributes:
        forward, input, weight, send: how often the time of each stage (and of the message to the next) counts, [rows, stages].
        tail: 1 for the rank whose tail ends the chain, [rows, pp].
    """

    forward: FloatArray
    input: FloatArray
    weight: FloatArray
    send: FloatArray
    tail: FloatArray

    def __len__(self) -> int:
        return len(self.forward)

    def length_s(self, times: ChunkTimes) -> FloatArray:
        """Length of every chain, [plans, rows]."""
        parts = (
            (times.forward_s, self.forward),
            (times.input_s, self.input),
            (times.weight_s, self.weight),
            (times.send_s, self.send),
            (times.tail_s, self.tail),
        )
        return np.asarray(sum((seconds @ count.T for seconds, count in parts), start=np.zeros(1)))

    def bound_s(self, times: ChunkTimes) -> FloatArray:
        """The longest of them, never above the step, [plans]."""
        return np.asarray(self.length_s(times).max(axis=1))


def critical_rows(made: Program, times: ChunkTimes) -> Rows:
    """The longest chain of each plan, [plans] rows."""
    starts = range(0, times.plans, PLANS_AT_ONCE)
    parts = [_critical_rows(made, times.take(slice(start, start + PLANS_AT_ONCE))) for start in starts]
    return Rows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__slots__})


def _critical_rows(made: Program, times: ChunkTimes) -> Rows:
    order, plans = made.order, times.plans
    passes, links, tail = _longest(made, times)
    by_phase = passes.reshape(plans, len(PHASES), order.stages)
    crosses = crossing(order.pp, order.vpp, order.folded)
    return Rows(
        forward=by_phase[:, FORWARD],
        input=by_phase[:, INPUT] + by_phase[:, BACKWARD],
        weight=by_phase[:, WEIGHT] + by_phase[:, BACKWARD],
        send=np.where(crosses, _sends(by_phase, links, times.sends), 0.0),
        tail=tail,
    )


def reference_rows(made: Program, sends: Sends = Sends.OVERLAPPED) -> Rows:
    """Rows to start from: distinct longest chains of plans that are uneven in one or two places."""
    rows = critical_rows(made, reference_times(made.order, sends))
    table = np.concatenate([getattr(rows, name) for name in Rows.__slots__], axis=1)
    _, first = np.unique(table, axis=0, return_index=True)
    first.sort()
    return Rows(**{name: getattr(rows, name)[first] for name in Rows.__slots__})


def reference_times(order: Order, sends: Sends) -> ChunkTimes:
    """Equal ranks; one rank, or one and all after it, heavier; forward passes heavier on one rank, gradients on another.

    Where ranks hold several chunks also one stage, or all up to one, with twice the work.
    """
    rank, pp = order.stage_rank, order.pp
    one, after = np.eye(pp), np.triu(np.ones((pp, pp)))[1:]
    heavy = np.concatenate([np.zeros((1, pp)), *((more - 1) * one for more in HEAVIER), (HEAVIER[1] - 1) * after])
    forward = backward = 1 + heavy
    if pp <= PAIRED_RANKS:
        forward = np.concatenate((forward, 1 + np.repeat(one, pp, axis=0)))
        backward = np.concatenate((backward, 1 + np.tile(one, (pp, 1))))
    forward, backward = forward[:, rank], backward[:, rank]
    if order.vpp > 1:
        single, until = np.eye(order.stages), np.tril(np.ones((order.stages, order.stages)))
        chunks = 1 + np.concatenate((single, until))
        forward, backward = np.concatenate((forward, chunks)), np.concatenate((backward, chunks))
    return chunk_times(forward, 1.05 * backward, 0.95 * backward, pp=pp, send_s=0.01, sends=sends)


def _longest(made: Program, times: ChunkTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Counts along longest chains: operations [plans, phases·stages], links [plans, stages], tails [plans, pp]."""
    order, plans = made.order, np.arange(times.plans)
    end = ends(made, times)
    late = delay_s(times, crossing(order.pp, order.vpp, order.folded))
    passes = np.zeros((len(plans), len(PHASES) * order.stages))
    links, tail = np.zeros((len(plans), order.stages)), np.zeros((len(plans), order.pp))
    final = (end[made.last].T + times.tail_s).argmax(axis=1)
    tail[plans, final] = 1.0
    at = made.last[final]
    while at.any():
        passes[plans, made.row[at]] += at > 0
        at, link, waited = _step_back(made, end, late, at)
        links[plans, link] += waited
    return passes, links, tail


def _step_back(made: Program, end: FloatArray, late: FloatArray, at: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The operation that each one started after, the link between them, and whether that link was waited for."""
    plans = np.arange(len(at))
    before, waits, link = made.before[at], made.waits[at], made.link[at]
    waited = (waits > 0) & (end[waits, plans] + late[link, plans] >= end[before, plans])
    return np.where(waited, waits, before), link, waited.astype(np.int64)


def _sends(by_phase: FloatArray, links: FloatArray, sends: Sends) -> FloatArray:
    """How often each message counts, [plans, stages]."""
    if sends is Sends.OVERLAPPED:
        return links
    forward, backward = by_phase[:, FORWARD], by_phase[:, INPUT] + by_phase[:, BACKWARD]
    onward, back = (forward, backward) if sends is Sends.SENDER else (backward, forward)
    return onward + np.roll(back, -1, axis=1)
