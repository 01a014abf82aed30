"""1F1B without interleaving (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473).

Stage i does w = min(M, pp − i) forward passes before its first backward pass. The first forward can start after the forward
passes of the stages before it, the first backward no earlier than one micro-batch has gone through the stages after it and
come back, and what follows its last backward is the backward passes of the stages before it:

    T_i = M·(F_i + B_i) + Σ_{j<i} (F_j + B_j) + max(0, Σ_{j>i} (F_j + B_j) − (w − 1)·F_i)        T = max_i T_i

Each T_i is the length of a chain of dependent work, hence a bound; for equal stages T is the exact M·(F+B) + (pp−1)·(F+B).
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.base import Schedule, StageTimes


def rows(times: StageTimes) -> FloatArray:
    """T_i for the last stage of every run (no other stage of a run has a longer chain)."""
    before, after = times.around()
    warm_up = np.minimum(times.micro_batches, times.pp - times.last_rank)
    wait = np.maximum(after - (warm_up - 1) * times.forward_s, 0.0)
    return np.asarray(times.micro_batches * times.both_s + before + wait)


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """min(M, pp − rank)."""
    return np.asarray(np.minimum(micro_batches, pp - rank), dtype=np.float64)


SCHEDULE = Schedule(
    id="1f1b", interleaved=False, rows=rows, in_flight=in_flight, keeps_all_logits=False, source="arXiv 2104.04473"
)
