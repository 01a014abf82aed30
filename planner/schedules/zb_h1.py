"""ZB-H1 (arXiv 2401.10241 section 2.3): 1F1B with weight gradients apart, r micro-batches behind on rank r.

A backward pass B is the input gradient I, which the stage before waits for, and the weight gradient W, which fills idle
time. With w = min(M, pp − i) and b = min(i, M − 1) the chains through stage i are as long as

    T_i = M·(F_i + I_i) + Σ_{j<i} F_j + max(0, Σ_{j>i} (F_j + I_j) − (w − 1)·F_i)
          + max( (M − 1 − b)·W_i + Σ_{j<i} I_j + W_0 , M·W_i )                                T = max_i T_i

The first term of the last maximum leaves stage i after its last input gradient, with b + 1 weight gradients still to do, and
ends with the first stage's last one; the second stays. Each T_i is a bound; for equal stages and M >= pp

    T = M·(F + I + W) + (pp − 1)·max(F, I, F + I − W)

exactly. Every rank keeps min(M, pp) micro-batches, as the first rank of 1F1B does.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.base import Schedule, StageTimes


def rows(times: StageTimes) -> FloatArray:
    """T_i for the last stage of every run."""
    weight, count = times.weight_part_s, times.micro_batches
    forward, back = times.forward_s, times.backward_s - weight
    before, _ = _around(forward, times)
    _, after = _around(forward + back, times)
    drained, _ = _around(back, times)
    wait = np.maximum(after - (np.minimum(count, times.pp - times.last_rank) - 1) * forward, 0.0)
    behind = np.minimum(times.last_rank, count - 1)
    leaves = (count - 1 - behind) * weight + drained + weight[:, :1]
    return np.asarray(count * (forward + back) + before + wait + np.maximum(leaves, count * weight))


def _around(seconds: FloatArray, times: StageTimes) -> tuple[FloatArray, FloatArray]:
    """Sums over the stages before and after the last stage of each run, [plans, runs]."""
    until = np.cumsum(seconds * times.multiplicity, axis=1)
    return until - seconds, until[:, -1:] - until


def in_flight(pp: IntArray, vpp: IntArray, micro_batches: IntArray, rank: IntArray) -> FloatArray:
    """min(M, pp) on every rank."""
    return np.asarray(np.minimum(micro_batches, pp) + 0.0 * rank)


def logits_behind(pp: IntArray, micro_batches: IntArray) -> IntArray:
    """min(M, pp) − 1: the last rank's weight gradients are pp − 1 micro-batches behind."""
    return np.minimum(micro_batches, pp) - 1


SCHEDULE = Schedule(
    id="zb-h1",
    interleaved=False,
    rows=rows,
    in_flight=in_flight,
    keeps_all_logits=False,
    splits_backward=True,
    source="arXiv 2401.10241 section 2.3",
    logits_behind=logits_behind,
)
