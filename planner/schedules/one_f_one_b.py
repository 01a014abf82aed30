"""1F1B without interleaving (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473).

Stage i does w = min(M, pp − i) forward passes before its first backward pass. With A = Σ_{j>i} (F_j + B_j) it waits before that
backward pass, which comes no sooner than the first micro-batch has gone through the stages after it and back, and again before
its last one, after its last forward pass. Where M > pp − i one chain of dependent work holds both waits,

    T_i = M·(F_i + B_i) + Σ_{j<i} (F_j + B_j) + max(0, A − (w − 1)·F_i) + max(0, A − (w − 1)·B_i)        T = max_i T_i

else the longer of the two counts. Each T_i is the length of a chain, hence a bound; for equal stages T is the exact
M·(F+B) + (pp−1)·(F+B), for unequal ones it is within 0.1 % of the simulation on realistic plans (benchmarks/schedule_accuracy).
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.base import Schedule, StageTimes


def rows(times: StageTimes) -> FloatArray:
    """T_i for the last stage of every run (no other stage of a run has a longer chain)."""
    before, after = times.around()
    kept = times.pp - times.last_rank
    ahead = np.minimum(times.micro_batches, kept) - 1
    filling = np.maximum(after - ahead * times.forward_s, 0.0)
    draining = np.maximum(after - ahead * times.backward_s, 0.0)
    waits = np.where(times.micro_batches > kept, filling + draining, np.maximum(filling, draining))
    return np.asarray(times.micro_batches * times.both_s + before + waits)


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """min(M, pp − rank)."""
    return np.asarray(np.minimum(micro_batches, pp - rank), dtype=np.float64)


SCHEDULE = Schedule(
    id="1f1b",
    interleaved=False,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=False,
    source="arXiv 2104.04473",
    drains=True,
)
