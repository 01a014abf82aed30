"""ZB-V (arXiv 2401.10241 section 5): two chunks a rank, stages folded like a V, weight gradients apart.

Rank r holds stages r and 2·pp − 1 − r, so that the loss is computed where the pipeline starts. For equal chunks with times
f, i, w (half of a rank's F, I, W), M >= 2·pp − 1 and pp > 1, the pipeline takes exactly

    T = M·(F + I + W) + max over the rows (a, b, c) of `EXTRA` of  a·f + b·i + c·w

each the longest chain for some f, i, w; for f = i = w that is (pp − 1)·f more than the work, all of it the first forward
passes before rank r can start. For unequal stages this is an estimate (`recurrence` is exact). Rank r keeps

    min(M + min(M, r + 1), 2·pp)

chunks of micro-batches at its peak: in bytes as much as the first rank of 1F1B, and the same on every rank.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.base import Schedule, StageTimes

Count = tuple[int, int]
Extra = tuple[tuple[Count, Count, Count], ...]

EXTRA: Extra = (
    ((0, 0), (0, 1), (1, -1)),
    ((0, 0), (1, 0), (0, 0)),
    ((0, 0), (2, 0), (-2, 0)),
    ((0, 1), (0, 0), (1, -1)),
    ((2, -1), (-1, 1), (0, 0)),
    ((2, -1), (0, 1), (-2, 0)),
    ((2, 0), (-1, 0), (0, -1)),
    ((2, 0), (0, 0), (-2, -1)),
)
"""Counts of f, i and w, each as (slope, constant) in pp − 1."""


def extra_s(
    table: Extra,
    times: tuple[FloatArray, FloatArray, FloatArray],
    pp: IntArray,
) -> FloatArray:
    """What the longest of some chains takes beyond the work of a rank; nothing on one rank.

    Args:
        table: counts of a chunk's forward pass, input gradient and weight gradient, each as (slope, constant) in pp − 1.
        times: those times.
        pp: pipeline ranks.
    """
    lengths = [
        np.asarray(sum((slope * (pp - 1) + constant) * seconds for (slope, constant), seconds in zip(row, times, strict=True)))
        for row in table
    ]
    return np.where(pp > 1, np.maximum.reduce(lengths), 0.0)


def halves(times: StageTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Forward pass, input gradient and weight gradient of one of a rank's two chunks."""
    weight = times.weight_part_s
    return times.forward_s / 2, (times.backward_s - weight) / 2, weight / 2


def rows(times: StageTimes) -> FloatArray:
    """T as if all stages were like those of the run; no less than `through_s`."""
    made = times.micro_batches * times.both_s + extra_s(EXTRA, halves(times), times.pp)
    return np.maximum(made, through_s(times))


def through_s(times: StageTimes) -> FloatArray:
    """The first micro-batch down to the last stage, all of them there, and the last one's gradients back; [plans, runs]."""
    forward, back, weight = halves(times)
    chunks = times.pp + times.pp - 1
    return np.asarray((chunks + times.micro_batches) * (forward + back) + weight)


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """Chunks kept, in micro-batches of the whole rank."""
    chunks = np.minimum(micro_batches + np.minimum(micro_batches, rank + 1), 2 * pp)
    return np.asarray(chunks / 2)


SCHEDULE = Schedule(
    id="zb-v",
    interleaved=True,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=False,
    splits_backward=True,
    source="arXiv 2401.10241 section 5",
    folded=True,
)
