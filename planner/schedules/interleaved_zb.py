"""Interleaved ZB-H1 (torch's `ScheduleInterleavedZeroBubble`): vpp chunks a rank, weight gradients apart, r passes behind.

    T_i = M·(F_i + I_i + W_i) + Z_i / vpp

with Z_i what ZB-H1 adds to the work of stage i (`zb_h1.rows`), since the pipeline fills with one chunk of every rank, a vpp-th
of its work. For equal chunks with times f, i, w that is exactly

    T = M·(F + I + W) + (pp − 1)·max(f, i, f + i − w)

for unequal ones an estimate (`recurrence` is exact). Every rank keeps min(vpp·pp, M·vpp) chunks of micro-batches, in bytes as
much as the first rank of 1F1B.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules import zb_h1
from shardwright.planner.schedules.base import Schedule, StageTimes


def rows(times: StageTimes) -> FloatArray:
    """T_i for the last stage of every run."""
    work = times.micro_batches * times.both_s
    return np.asarray(work + (zb_h1.rows(times) - work) / times.vpp)


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """min(M, pp) micro-batches of the whole rank, on every rank."""
    return np.asarray(np.minimum(micro_batches, pp) + 0.0 * rank)


SCHEDULE = Schedule(
    id="interleaved-zb",
    interleaved=True,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=False,
    splits_backward=True,
    source="torch.distributed.pipelining ScheduleInterleavedZeroBubble; arXiv 2401.10241 section 2.3",
)
