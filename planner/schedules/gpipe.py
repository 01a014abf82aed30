"""GPipe (arXiv 1811.06965): all forward passes, then all backward passes.

Both phases are flow shops of M equal jobs, so with sums and maxima over stages

    T = Σ F + (M − 1)·max F + Σ B + (M − 1)·max B

exactly. Every micro-batch is alive at the end of the forward phase.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.base import Schedule, StageTimes


def rows(times: StageTimes) -> FloatArray:
    """The step for every run: all stages wait for the flush, whichever is slowest in either phase."""
    before, after = times.around()
    slowest = times.forward_s.max(axis=1, keepdims=True) + times.backward_s.max(axis=1, keepdims=True)
    return np.asarray(before + times.both_s + after + (times.micro_batches - 1) * slowest)


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """All of them."""
    return np.asarray(micro_batches + 0.0 * rank)


SCHEDULE = Schedule(
    id="gpipe",
    interleaved=False,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=True,
    source="arXiv 1811.06965",
    drains=True,
)
