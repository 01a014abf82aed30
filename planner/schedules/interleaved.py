"""Interleaved 1F1B (arXiv 2104.04473 section 2.2): a rank holds vpp chunks, the pipeline fills with one chunk each.

    T_i = u·(M·(F_i + B_i) + W_i / vpp)

with W_i what 1F1B adds to the work of stage i: filling and draining pass one chunk of every rank, a vpp-th of its work. u is
what unequal chunks cost, since in every turn the ranks wait for the slowest chunk (`uneven`); 1 where chunks are equal. Rank r
keeps
2·(pp − r − 1) + (vpp − 1)·pp + 1 chunks at its peak (Megatron-LM's warm-up plus one), at most M·vpp.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules import one_f_one_b
from shardwright.planner.schedules.base import Schedule, StageTimes


def rows(times: StageTimes) -> FloatArray:
    """T_i for the last stage of every run."""
    work = times.micro_batches * times.both_s
    stretch = 1.0 if times.stretch is None else times.stretch
    return np.asarray(stretch * (work + (one_f_one_b.rows(times) - work) / times.vpp))


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """Chunks kept, in micro-batches of the whole rank."""
    chunks = 2 * (pp - rank - 1) + (vpp - 1) * pp + 1
    return np.asarray(np.minimum(chunks, micro_batches * vpp) / vpp)


SCHEDULE = Schedule(
    id="interleaved-1f1b",
    interleaved=True,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=False,
    source="arXiv 2104.04473",
    drains=True,
)
