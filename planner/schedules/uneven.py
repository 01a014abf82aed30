"""What unequal chunks cost in interleaved 1F1B, relative to its closed-form rows, for a scan of very many plans.

In a step of the interleaved schedule all ranks wait for each other, so that chunks of one rank that differ cost more than the
rank's sum says, which is all that `interleaved.rows` reads. By how much depends on how layers are divided, hardly on how long
a layer takes: with n_s layers in chunk s, every layer taking 1 forward and 2 backward,

    factor(pp, vpp, M, n) = f(n) / rows(n)

is computed once for each division (`repeating`) and multiplies the rows of all plans that share it (`uneven_factor`). Long
steps repeat: with T(k) the step of k·pp micro-batches,

    T(M / pp) ≈ T(4) + (M / pp − 4)·(T(4) − T(3))        M > 4·pp

so that no program is longer than 4·pp micro-batches. It is an estimate, within 2 % of `exact` on realistic plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules import interleaved
from shardwright.planner.schedules.base import StageTimes
from shardwright.planner.schedules.exact import exact_step_s
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import chunk_times

ROUNDS = 4
"""Rounds of pp micro-batches after which a step only repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeating:
    """Steps of one division of the layers.

    Attributes:
        pp: pipeline ranks.
        steps: of 1, 2, … `ROUNDS` rounds of pp micro-batches.
        rows: `interleaved.rows` of one, two and three rounds, by rank; from the second on they grow by the same amount.
    """

    pp: int
    steps: tuple[float, ...]
    rows: tuple[FloatArray, FloatArray, FloatArray]


def uneven_factor(found: Repeating, micro_batches: int) -> float:
    """Step of unequal chunks over the greatest of `interleaved.rows`, at least 1.

    Args:
        found: the division.
        micro_batches: micro-batches; a part of a round of pp counts as a whole one.
    """
    rounds = max(-(-micro_batches // found.pp), 1)
    step = found.steps[min(rounds, ROUNDS) - 1] + max(rounds - ROUNDS, 0) * (found.steps[-1] - found.steps[-2])
    one, two, three = found.rows
    rows = one if rounds == 1 else two + (rounds - 2) * (three - two)
    return max(float(step / rows.max()), 1.0)


def repeating(pp: int, vpp: int, layers: FloatArray) -> list[Repeating]:
    """Steps of the first rounds of some divisions, and the rows that are compared with them.

    Args:
        pp: pipeline ranks.
        vpp: chunks a rank.
        layers: work of each chunk, in layers (embedding and head may count as parts of one), [divisions, pp·vpp].
    """
    steps = [_step(pp, vpp, rounds, layers) for rounds in range(1, ROUNDS + 1)]
    one, two, three = (_rows(pp, vpp, rounds * pp, layers) for rounds in (1, 2, 3))
    return [
        Repeating(pp=pp, steps=tuple(float(step[at]) for step in steps), rows=(one[at], two[at], three[at]))
        for at in range(len(layers))
    ]


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
    return np.asarray(interleaved.rows(times))
