"""What unequal chunks cost in interleaved 1F1B, relative to its closed-form rows, for a scan of very many plans.

In a step of the interleaved schedule all ranks wait for each other, so that chunks of one rank that differ cost more than the
rank's sum says, which is all that `interleaved.rows` reads. By how much depends on how layers are divided, hardly on how long
a layer takes: with n_s layers in chunk s, every layer taking 1 forward and 2 backward,

    factor(pp, vpp, M, n) = f(n) / rows(n)

is computed once for each division (`uneven_factor`) and multiplies the rows of all plans that share it. Long steps repeat: with
T(k) the step of k·pp micro-batches,

    T(M / pp) ≈ T(4) + (M / pp − 4)·(T(4) − T(3))        M > 4·pp

so that no program is longer than 4·pp micro-batches. It is an estimate: `exact` prices finalists.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules import interleaved
from shardwright.planner.schedules.base import StageTimes
from shardwright.planner.schedules.exact import exact_step_s
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import chunk_times

ROUNDS = 4
"""Rounds of pp micro-batches after which a step only repeats."""


def uneven_factor(pp: int, vpp: int, micro_batches: int, layers: FloatArray) -> FloatArray:
    """Step of unequal chunks over the greatest of `interleaved.rows`, [splits]; 1 where all chunks are equal.

    Args:
        pp: pipeline ranks.
        vpp: chunks a rank.
        micro_batches: micro-batches, a multiple of pp.
        layers: work of each chunk, in layers (embedding and head may count as parts of one), [splits, pp·vpp].
    """
    rounds = micro_batches // pp
    step = _step(pp, vpp, min(rounds, ROUNDS), layers)
    if rounds > ROUNDS:
        step = step + (rounds - ROUNDS) * (step - _step(pp, vpp, ROUNDS - 1, layers))
    return np.asarray(step / _rows(pp, vpp, micro_batches, layers))


def _step(pp: int, vpp: int, rounds: int, layers: FloatArray) -> FloatArray:
    shape = Shape(schedule=interleaved.SCHEDULE.id, pp=pp, vpp=vpp, micro_batches=rounds * pp)
    return exact_step_s(shape, chunk_times(layers, layers, layers, pp=pp))


def _rows(pp: int, vpp: int, micro_batches: int, layers: FloatArray) -> FloatArray:
    by_rank = layers.reshape(-1, vpp, pp).sum(axis=1)
    one = np.ones((len(layers), 1), dtype=np.int64)
    times = StageTimes(
        forward_s=by_rank,
        backward_s=2 * by_rank,
        multiplicity=np.ones(by_rank.shape, dtype=np.int64),
        last_rank=np.arange(pp) * one,
        pp=pp * one,
        vpp=vpp * one,
        micro_batches=micro_batches * one,
    )
    return np.asarray(interleaved.rows(times).max(axis=1))
