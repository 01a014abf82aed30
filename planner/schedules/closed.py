"""Closed forms of the step, where they provably equal the event simulation.

With the times that operations occupy their rank (blocking sends inside), delays p and sums and maxima over stages

    GPipe           Σ F + (M − 1)·max F + Σ B + (M − 1)·max B + 2·Σ p      any stages: two flow shops of M equal jobs
    1F1B            (M + pp − 1)·(F + B)                                   equal stages, p = 0
    interleaved     (M·vpp + pp − 1)·(f + b)                               equal chunks, p = 0, groups of pp, which divides M
    ZB-H1           M·(F + I + W) + (pp − 1)·max(F, I, F + I − W)          equal stages, p = 0, M >= pp
      its loops     M·vpp·(f + i + w) + (pp − 1)·max(f, i, f + i − w)   equal chunks, p = 0, groups of at most M
    ZB-V            2·M·(f + i + w) + extra (`zb_v.EXTRA`)                 equal chunks, p = 0, M >= 2·pp − 1
    DualPipe-V      2·M·(f + i + w) + extra (`dualpipe_v.EXTRA`)           equal chunks, p = 0

and, in all of them, a tail that is the same on every rank. Where both ends of a message wait there is one for

    1F1B            (M + pp − 1)·(F + B) + n·p                      equal stages, the same p everywhere
                    n = 2·M + 2·pp − 5, for pp = 2 M + 1, for M = 1 2·(pp − 1)

and there is none where passes run together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import BoolArray, FloatArray
from shardwright.planner.schedules import dualpipe_v, zb_v
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwright.planner.schedules.shape import FOLDED, Shape
from shardwright.planner.schedules.timing import ChunkTimes, Sends, busy_s, crossing, delay_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Equal:
    """Times of one chunk of plans whose chunks are all equal, [plans]."""

    shape: Shape
    forward: FloatArray
    input: FloatArray
    weight: FloatArray

    @property
    def both(self) -> FloatArray:
        """All three."""
        return self.forward + self.input + self.weight

    def extra(self, table: zb_v.Extra) -> FloatArray:
        """2·M·(f + i + w) and the longest chain beyond it."""
        beyond = zb_v.extra_s(table, (self.forward, self.input, self.weight), np.asarray(self.shape.pp))
        return 2 * self.shape.micro_batches * self.both + beyond


def closed_step_s(shape: Shape, times: ChunkTimes) -> tuple[BoolArray, FloatArray]:
    """Which plans have a closed form, and the step by it (of no meaning for the others), [plans] each.

    Args:
        shape: what fixes the order of operations.
        times: of the stages.
    """
    crosses = crossing(shape.pp, shape.vpp, shape.schedule in FOLDED)
    busy, delay = busy_s(times, crosses), delay_s(times, crosses)
    tail = times.tail_s[:, 0]
    holds = (times.tail_s == tail[:, None]).all(axis=1)
    exchange = times.sends is Sends.BOTH
    if shape.schedule == "gpipe" and not exchange:
        return holds, _gpipe_s(shape, busy, delay) + tail
    if not _regular(shape) or (exchange and shape.schedule != "1f1b"):
        return np.zeros(times.plans, dtype=bool), tail
    late = delay[crosses].min(axis=0, initial=np.inf) if exchange and crosses.any() else np.zeros(times.plans)
    equal = (busy == busy[:, :1]).all(axis=(0, 1)) & (delay[crosses] == late).all(axis=0)
    chunk = _Equal(shape=shape, forward=busy[FORWARD, 0], input=busy[INPUT, 0], weight=busy[WEIGHT, 0])
    return holds & equal, FORMS[shape.schedule](chunk) + _exchanges(shape) * late + tail


def _exchanges(shape: Shape) -> int:
    """Exchanges of the longest chain of 1F1B where both ends of a message wait."""
    count, pp = shape.micro_batches, shape.pp
    return count + 1 if pp == 2 else 2 * (pp - 1) if count == 1 else 2 * count + 2 * pp - 5


def _regular(shape: Shape) -> bool:
    """Whether there are micro-batches enough for the closed form, and no passes run together."""
    count, pp = shape.micro_batches, shape.pp
    if shape.paired:
        return False
    if shape.schedule == "interleaved-1f1b":
        return count % pp == 0 and shape.group in {None, pp}
    if shape.schedule == "interleaved-zb":
        return count >= (shape.group or pp)
    least = {"1f1b": 1, "zb-h1": pp, "zb-v": 2 * pp - 1, "dualpipe-v": 2 * pp}
    return shape.schedule in least and count >= least[shape.schedule]


def _gpipe_s(shape: Shape, busy: FloatArray, delay: FloatArray) -> FloatArray:
    repeats = shape.micro_batches - 1
    phases = (busy[FORWARD], busy[BACKWARD])
    return np.asarray(sum(phase.sum(axis=0) + repeats * phase.max(axis=0) for phase in phases) + 2 * delay.sum(axis=0))


def _one_f_one_b_s(chunk: _Equal) -> FloatArray:
    shape = chunk.shape
    return (shape.micro_batches * shape.vpp + shape.pp - 1) * chunk.both


def _zb_h1_s(chunk: _Equal) -> FloatArray:
    shape = chunk.shape
    longest = np.maximum.reduce([chunk.forward, chunk.input, chunk.forward + chunk.input - chunk.weight])
    return np.asarray(shape.micro_batches * shape.vpp * chunk.both + (shape.pp - 1) * longest)


FORMS: dict[str, Callable[[_Equal], FloatArray]] = {
    "1f1b": _one_f_one_b_s,
    "interleaved-1f1b": _one_f_one_b_s,
    "zb-h1": _zb_h1_s,
    "interleaved-zb": _zb_h1_s,
    "zb-v": lambda chunk: chunk.extra(zb_v.EXTRA),
    "dualpipe-v": lambda chunk: chunk.extra(dualpipe_v.EXTRA),
}
"""Closed forms for equal chunks, by schedule."""
