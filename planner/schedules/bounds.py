"""Linear rows that never exceed the price: the lengths of chains of dependent work.

The step is the longest of all chains of operations in which each waits for the one before, on its rank or on another stage:

    T = max over chains c of Σ_s (f_cs·F_s + i_cs·I_s + w_cs·W_s + p_cs·send_s) + tail of the last rank

with counts f, i, w, p that do not depend on the times. So T is convex in the times, every chain is a row that no times can
exceed, and the longest chain at some times (`critical_rows`) is exact there: the cut to add when a program that minimises
rows returns those times. `reference_rows` gives rows to start from: the longest chains of plans in which one rank, or all
ranks from one on, are heavier than the rest, or the forward passes of one rank and the gradients of another, or all differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT, Order
from shardwright.planner.schedules.recurrence import PLANS_AT_ONCE, Program, computed_s, ends, late_s
from shardwright.planner.schedules.timing import DELAYED, ChunkTimes, Sends, chunk_times, crossing

HEAVIER = (1.05, 1.3, 4.0)
"""How much heavier one rank is in the plans whose longest chains are the first rows."""

PAIRED_RANKS = 16
"""Up to so many ranks, every pair of them gives a row: one with heavier forward, one with heavier backward passes."""

SCATTERED = 200
"""Plans with stages of all sizes whose longest chains are among the first rows."""

LARGEST = 4.0
"""How much larger than others their largest stages are."""

LONG_TAIL = 10.0
"""Passes that the tail of one rank takes in the plans whose chains end there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of a bound, valid for one order, one kind of sends and one gain of passes that run together.

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
    rows, links, tail = _longest(made, times)
    whole, computed, messages = _spread(made, times, rows)
    by_phase = computed.reshape(plans, len(PHASES), order.stages)
    waited = links + messages if times.sends in DELAYED else _sends(whole.reshape(by_phase.shape), times.sends)
    crosses = crossing(order.pp, order.vpp, order.folded)
    return Rows(
        forward=by_phase[:, FORWARD],
        input=by_phase[:, INPUT] + by_phase[:, BACKWARD],
        weight=by_phase[:, WEIGHT] + by_phase[:, BACKWARD],
        send=np.where(crosses, waited, 0.0),
        tail=tail,
    )


def _spread(made: Program, times: ChunkTimes, rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Counts by pass and by message, from counts by `recurrence.spent_s`'s rows: passes, what counts of them, messages.

    Of a pair the longer pass counts whole, and the shorter one but for the gain; of an exchange its longest message counts.
    """
    pairs, exchanges = made.chains.pairs, made.chains.exchanges
    passes = len(PHASES) * made.order.stages
    whole, together, exchanged = np.split(rows, (passes, passes + 1 + len(pairs)), axis=1)
    computed, together = whole, together[:, 1:]
    forward, backward = (np.eye(passes)[side] for side in pairs.T)
    seconds = computed_s(times).T
    behind = seconds @ forward.T < seconds @ backward.T
    for side, shorter in ((forward, behind), (backward, ~behind)):
        whole = whole + together @ side
        computed = computed + (together * (1 - times.gain * shorter)) @ side
    crosses = crossing(made.order.pp, made.order.vpp, made.order.folded)
    longest = np.where(crosses, times.send_s, 0.0)[:, exchanges].argmax(axis=2)
    chosen = np.eye(made.order.stages)[exchanges[np.arange(len(exchanges)), longest]]
    messages = (exchanged[:, :, None] * chosen).sum(axis=1)
    return whole, computed, messages


def reference_rows(made: Program, sends: Sends = Sends.OVERLAPPED, gain: float = 0.0, *, scattered: int = SCATTERED) -> Rows:
    """Rows to start from: distinct longest chains of the plans of `reference_times`.

    Args:
        made: the compiled order.
        sends: who waits for messages.
        gain: share of the shorter pass that is hidden where two run together.
        scattered: how many plans with stages of all sizes to add; more make the bound tighter, and longer.
    """
    rows = critical_rows(made, reference_times(made.order, sends, gain, scattered))
    table = np.concatenate([getattr(rows, name) for name in Rows.__slots__], axis=1)
    _, first = np.unique(table, axis=0, return_index=True)
    first.sort()
    return Rows(**{name: getattr(rows, name)[first] for name in Rows.__slots__})


def reference_times(order: Order, sends: Sends, gain: float = 0.0, scattered: int = SCATTERED) -> ChunkTimes:
    """Equal ranks; one rank, or one and all after it, heavier; forward passes heavier on one rank, gradients on another.

    Where ranks hold several chunks also one stage, or all up to one, with twice the work; with one rank's tail long; and
    plans whose stages take 1 to `LARGEST` times as long, by numbers that are the same in every run.
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
    sizes = np.random.default_rng(0).uniform(1, LARGEST, (2, scattered, order.stages))
    forward = np.concatenate((forward, np.ones((pp, order.stages)), sizes[0]))
    backward = np.concatenate((backward, np.ones((pp, order.stages)), sizes[0] * sizes[1] / (1 + LARGEST) * 2))
    tail = np.zeros((len(forward), pp))
    tail[len(tail) - scattered - pp : len(tail) - scattered] = LONG_TAIL * one
    return chunk_times(forward, 1.05 * backward, 0.95 * backward, pp=pp, send_s=0.01, tail_s=tail, sends=sends, gain=gain)


def _longest(made: Program, times: ChunkTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Counts along longest chains: rows of `spent_s` [plans, rows], links [plans, stages], tails [plans, pp]."""
    pp, plans = made.order.pp, np.arange(times.plans)
    end, late = ends(made, times), late_s(made, times)
    row, waits, link = (part.reshape(-1) for part in (made.row, made.waits, made.link))
    kinds = len(PHASES) * made.order.stages + 1 + len(made.chains.pairs) + len(made.chains.exchanges)
    rows, links, tail = (np.zeros((len(plans), count)) for count in (kinds, made.order.stages, pp))
    final = (end[-pp:].T + times.tail_s).argmax(axis=1)
    tail[plans, final] = 1.0
    at = row.size + final
    while (at >= pp).any():
        cell = np.maximum(at - pp, 0)  # below, no step is left: its time is 0 already, and only "nothing" is counted
        going = at >= pp
        rows[plans, row[cell]] += going
        waited = going & (waits[cell] > 0) & (end[waits[cell], plans] + late[link[cell], plans] >= end[cell, plans])
        links[plans, link[cell]] += waited
        at = np.where(waited, waits[cell], np.where(going, cell, at))
    return rows, links, tail


def _sends(by_phase: FloatArray, sends: Sends) -> FloatArray:
    """How often each message counts as part of a pass, [plans, stages]."""
    forward, backward = by_phase[:, FORWARD], by_phase[:, INPUT] + by_phase[:, BACKWARD]
    onward, back = (forward, backward) if sends is Sends.SENDER else (backward, forward)
    return onward + np.roll(back, -1, axis=1)
