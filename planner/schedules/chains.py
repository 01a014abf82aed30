"""Longer chains of 1F1B: a stage heavier than those after it waits for them twice.

With w = min(M, pp − i) and A = Σ_{j>i} (F_j + B_j), stage i waits before its first backward pass, which comes no sooner than
the first micro-batch has gone through the stages after it and back, and again before its last one, after its last forward
pass. Where M > pp − i the last forward pass follows the first backward pass, and one chain holds both waits:

    T_i = M·(F_i + B_i) + Σ_{j<i} (F_j + B_j) + max(0, A − (w − 1)·F_i) + max(0, A − (w − 1)·B_i)

else the longer of the two counts. Never less than `one_f_one_b.rows`, and a bound like them.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules.base import StageTimes


def one_f_one_b_chains(times: StageTimes) -> FloatArray:
    """T_i for the last stage of every run, [plans, runs]."""
    before, after = times.around()
    kept = times.pp - times.last_rank
    ahead = np.minimum(times.micro_batches, kept) - 1
    filling = np.maximum(after - ahead * times.forward_s, 0.0)
    draining = np.maximum(after - ahead * times.backward_s, 0.0)
    both = np.where(times.micro_batches > kept, filling + draining, np.maximum(filling, draining))
    return np.asarray(times.micro_batches * times.both_s + before + both)
