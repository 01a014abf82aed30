"""What unequal chunks cost in interleaved 1F1B, estimated once for a division of the layers."""

import numpy as np
import pytest
from schedule_cases import stage_times

from shardwright.planner.schedules import interleaved
from shardwright.planner.schedules.exact import exact_step_s
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import chunk_times
from shardwright.planner.schedules.uneven import ROUNDS, repeating, uneven_factor


def larger_first(layers, chunks):
    base, more = divmod(layers, chunks)
    return np.array([[base + 1.0] * more + [base] * (chunks - more)])


def factor(pp, vpp, micro_batches, chunks):
    return uneven_factor(repeating(pp, vpp, chunks)[0], micro_batches)


@pytest.mark.parametrize("rounds", [1, 2, ROUNDS, 9])
def test_equal_chunks_cost_what_the_rows_say(rounds):
    assert factor(4, 3, 4 * rounds, np.full((1, 12), 2.0)) == pytest.approx(1.0)


@pytest.mark.parametrize(("layers", "pp", "vpp", "rounds"), [(22, 4, 4, 6), (30, 8, 3, 8), (20, 4, 3, 16), (61, 8, 2, 5)])
def test_long_steps_repeat(layers, pp, vpp, rounds):
    chunks = larger_first(layers, pp * vpp)
    shape = Shape(schedule="interleaved-1f1b", pp=pp, vpp=vpp, micro_batches=rounds * pp)
    times = chunk_times(chunks, chunks, chunks, pp=pp)
    rows = interleaved.rows(stage_times(shape, times)).max(axis=1)
    exact = max(exact_step_s(shape, times)[0], rows[0])
    assert rows[0] * factor(pp, vpp, rounds * pp, chunks) == pytest.approx(exact, rel=1e-2)


def test_the_factor_of_layers_serves_other_times():
    """Embedding, head and another ratio of forward to backward change it little; without it the rows are far off."""
    chunks = larger_first(31, 24)
    shape = Shape(schedule="interleaved-1f1b", pp=8, vpp=3, micro_batches=32)
    forward, backward = 6.1 * chunks, 12.7 * chunks
    forward[:, -1] += 1.0
    backward[:, 0] += 0.5
    times = chunk_times(forward, backward / 2, backward / 2, pp=8)
    rows, exact = interleaved.rows(stage_times(shape, times)).max(), exact_step_s(shape, times)[0]
    assert rows < 0.97 * exact
    assert rows * factor(8, 3, 32, chunks) == pytest.approx(exact, rel=0.015)
