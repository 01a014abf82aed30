"""DualPipe-V (github.com/deepseek-ai/DualPipe): two chunks a rank, stages folded like a V, few gradients apart.

Rank r holds stages r and 2·pp − 1 − r. In the main phase a forward pass of one chunk and a backward pass of the other follow
each other (what that hides of their exchange is the stack's affair, not the schedule's); input and weight gradients are apart
only where the pipeline fills and drains. For equal chunks with times f, i, w (half of a rank's
F, I, W), M >= 2·pp and pp > 1, the pipeline takes exactly

    T = M·(F + I + W) + max over the rows (a, b, c) of `EXTRA` of  a·f + b·i + c·w

each the longest chain for some f, i, w. For unequal stages this is an estimate (`recurrence` is exact). Every rank keeps
2·pp + 1 chunks of micro-batches at its peak, one more than ZB-V.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.base import Schedule, StageTimes
from shardwright.planner.schedules.zb_v import Extra, extra_s, halves

EXTRA: Extra = (
    ((0, -1), (1, 0), (0, 0)),
    ((0, -1), (2, 0), (-1, 0)),
    ((1, 0), (0, 0), (0, 0)),
    ((1, 0), (1, 0), (-1, 0)),
    ((2, 0), (-1, 0), (-1, 0)),
    ((2, 0), (0, 0), (-2, 0)),
)
"""Counts of f, i and w, each as (slope, constant) in pp − 1."""


def rows(times: StageTimes) -> FloatArray:
    """T as if all stages were like those of the run."""
    return np.asarray(times.micro_batches * times.both_s + extra_s(EXTRA, halves(times), times.pp))


def together(pp: IntArray, micro_batches: IntArray) -> FloatArray:
    """Share of the passes of the first rank, which has fewest, that run beside one of the other direction."""
    return np.asarray(np.maximum(2 * micro_batches - 3 * pp + 1, 0) / (2 * micro_batches))


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """Chunks kept, in micro-batches of the whole rank."""
    return np.asarray(np.minimum(2 * pp + 1, 2 * micro_batches) / 2 + 0.0 * rank)


SCHEDULE = Schedule(
    id="dualpipe-v",
    interleaved=True,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=False,
    splits_backward=True,
    source="github.com/deepseek-ai/DualPipe",
    folded=True,
    least_rounds=2,
)
