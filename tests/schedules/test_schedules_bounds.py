"""Rows never exceed the price; the longest chain is exact where it was found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_cases import random_shape, random_times, shapes, stage_times

from shardwright.planner.schedules import gpipe, one_f_one_b, zb_h1
from shardwright.planner.schedules.bounds import critical_rows, reference_rows
from shardwright.planner.schedules.exact import exact_step_s, program_for, program_of
from shardwright.planner.schedules.shape import SIMULATED, Shape
from shardwright.planner.schedules.timing import Sends, chunk_times

ROUNDING = 1 + 1e-12
FOLDED_ROWS = {"gpipe": (gpipe.rows,), "1f1b": (one_f_one_b.rows,), "zb-h1": (zb_h1.rows,)}
"""Closed-form rows that are bounds for any stages."""


def tightness(rng, schedule, shapes_tried, plans):
    """Bound over price of many random plans."""
    made = []
    for _ in range(shapes_tried):
        shape = random_shape(rng, schedule, widest=6)
        times = random_times(rng, shape, plans)
        rows = reference_rows(program_for(shape, times), times.sends, times.gain)
        made.append(rows.bound_s(times) / exact_step_s(shape, times))
    return np.concatenate(made)


@pytest.mark.parametrize("schedule", SIMULATED)
def test_reference_rows_never_exceed_the_price(schedule):
    share = tightness(np.random.default_rng(5), schedule, 12, 40)
    assert share.max() < ROUNDING
    assert share.mean() > 0.94


@given(shapes(), st.integers(0, 2**32))
def test_the_longest_chain_is_exact_where_found_and_a_bound_elsewhere(shape, seed):
    times = random_times(np.random.default_rng(seed), shape, 4)
    step = exact_step_s(shape, times)
    lengths = critical_rows(program_for(shape, times), times).length_s(times)
    assert np.diag(lengths) == pytest.approx(step, rel=1e-11)
    assert (lengths <= step[:, None] * ROUNDING).all()


@given(shapes(schedules=tuple(FOLDED_ROWS)), st.integers(0, 2**32))
def test_closed_form_rows_are_bounds_for_unequal_stages(shape, seed):
    times = random_times(np.random.default_rng(seed), shape, 4, tails=False)
    step = exact_step_s(shape, times)[:, None]
    for rows in FOLDED_ROWS[shape.schedule]:
        assert (rows(stage_times(shape, times)) <= step * ROUNDING).all()


def test_longer_chains_of_1f1b_are_nearly_always_the_price():
    rng = np.random.default_rng(8)
    shares = []
    for _ in range(40):
        shape = random_shape(rng, "1f1b")
        layers = rng.integers(3, 6, (25, shape.pp)).astype(float)
        times = chunk_times(layers, layers, layers, pp=shape.pp)
        step, stages = exact_step_s(shape, times), stage_times(shape, times)
        shares.append(one_f_one_b.rows(stages).max(axis=1) / step)
    found = np.concatenate(shares)
    assert found.max() <= ROUNDING
    assert found.min() > 0.97
    assert (found > 0.999).mean() > 0.9


@given(shapes(), st.integers(0, 2**32))
def test_rows_count_whole_passes_and_end_on_one_rank(shape, seed):
    times = random_times(np.random.default_rng(seed), shape, 3)
    rows = critical_rows(program_for(shape, times), times)
    for part in (rows.forward, rows.input, rows.weight, rows.send):
        assert (part >= 0).all()
        assert times.gain or (part == part.round()).all()
    assert (rows.forward <= shape.micro_batches).all()
    assert (rows.tail.sum(axis=1) == 1).all()


def test_cutting_at_the_solution_closes_the_gap():
    """What a solver does: minimise rows, price the answer, add the chain that was longest there."""
    shape = Shape(schedule="interleaved-1f1b", pp=4, vpp=2, micro_batches=8)
    made = program_of(shape)
    times = random_times(np.random.default_rng(3), shape, 30, sends=Sends.OVERLAPPED, tails=False)
    price = exact_step_s(shape, times)
    bound = reference_rows(made).bound_s(times)
    visited = 0
    while bound.min() < price[best := int(bound.argmin())] / ROUNDING:
        cut = critical_rows(made, times.take(slice(best, best + 1)))
        bound = np.maximum(bound, cut.bound_s(times))
        visited += 1
    assert best == price.argmin()
    assert visited < 30
