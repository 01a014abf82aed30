"""Micro-batches kept at the peak: closed forms equal what the simulation keeps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_cases import random_times, shapes, simulated_order

from shardwright.errors import InvalidValueError
from shardwright.planner.schedules import dualpipe_v, gpipe, interleaved, interleaved_zb, kept, one_f_one_b, zb_h1, zb_v
from shardwright.planner.schedules.memory import live, peak_bytes, peak_live, peak_waiting
from shardwright.planner.schedules.shape import LOOPED, SIMULATED, Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timing import Sends

IN_FLIGHT = {
    "gpipe": gpipe.in_flight,
    "1f1b": one_f_one_b.in_flight,
    "interleaved-1f1b": interleaved.in_flight,
    "zb-h1": zb_h1.in_flight,
    "interleaved-zb": interleaved_zb.in_flight,
    "zb-v": zb_v.in_flight,
    "dualpipe-v": dualpipe_v.in_flight,
}


def closed_form(shape):
    """Chunks that each rank keeps at its peak, by the schedule's closed form."""
    pp, vpp, count = (np.asarray(n) for n in (shape.pp, shape.vpp, shape.micro_batches))
    return IN_FLIGHT[shape.schedule](pp, vpp, count, np.arange(shape.pp)) * shape.vpp


@given(shapes(), st.integers(0, 2**32))
def test_the_order_alone_says_what_the_simulation_keeps(shape, seed):
    times = random_times(np.random.default_rng(seed), shape)
    order = simulated_order(shape, times)
    made = simulate(order, times)
    assert [made.peak_live(rank) for rank in range(shape.pp)] == peak_live(order).tolist()


@given(shapes(widest=8, most=24))
def test_closed_forms_equal_the_order(shape):
    assert peak_live(order_of(shape)).tolist() == kept.peak_sum(shape).tolist()
    if shape.group in {None, shape.pp} and not shape.paired:
        assert peak_live(order_of(shape)).tolist() == closed_form(shape).tolist()


@pytest.mark.parametrize("schedule", SIMULATED)
def test_closed_forms_on_a_grid(schedule):
    for pp in (1, 2, 3, 5, 8):
        for vpp in (2, 3) if schedule in LOOPED else (2,) if schedule in {"zb-v", "dualpipe-v"} else (1,):
            for micro_batches in (2 * pp, 3 * pp, 8 * pp):
                shape = Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=micro_batches)
                assert peak_live(order_of(shape)).tolist() == closed_form(shape).tolist()


@given(shapes(widest=8, most=24), st.integers(0, 2**32))
def test_closed_forms_of_chunks_equal_the_simulation(shape, seed):
    full = shape.group is None or shape.micro_batches % shape.group == 0
    times = random_times(np.random.default_rng(seed), shape)
    if not full:
        with pytest.raises(InvalidValueError, match="no closed form"):
            kept.peak_chunks(shape)
        return
    made = simulate(order_of(shape), replace(times, sends=Sends.OVERLAPPED))
    assert [list(made.peak_chunks(rank)) for rank in range(shape.pp)] == kept.peak_chunks(shape).tolist()


@given(shapes(schedules=("1f1b", "zb-h1", "interleaved-zb", "zb-v", "dualpipe-v"), widest=8, most=24), st.integers(0, 2**32))
def test_micro_batches_that_wait_for_their_weight_gradient(shape, seed):
    order = order_of(shape)
    made = simulate(order, replace(random_times(np.random.default_rng(seed), shape), sends=Sends.OVERLAPPED))
    found = [max(sum(now.waiting) for now in made.live(rank)) for rank in range(shape.pp)]
    assert found == peak_waiting(order).tolist()
    if shape.schedule != "zb-v" or shape.micro_batches >= 2 * shape.pp - 1:
        assert found == kept.peak_waiting(shape).tolist()


def test_what_waits_keeps_less():
    order = order_of(Shape(schedule="zb-h1", pp=4, vpp=1, micro_batches=8))
    ones = np.ones((4, 1))
    assert peak_bytes(order, ones, ones).tolist() == peak_bytes(order, ones).tolist() == [4, 4, 4, 4]
    assert peak_bytes(order, ones, 0 * ones).tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize("group", [4, 5, 6, 8])
def test_larger_groups_keep_more(group):
    shape = Shape(schedule="interleaved-1f1b", pp=4, vpp=3, micro_batches=2 * group, group=group)
    expected = np.minimum(2 * (3 - np.arange(4)) + 2 * group + 1, shape.micro_batches * 3)
    assert peak_live(order_of(shape)).tolist() == expected.tolist()


def test_interleaving_keeps_more_on_the_first_rank_by_the_published_factor():
    pp, vpp = 8, 4
    plain = peak_live(order_of(Shape(schedule="1f1b", pp=pp, vpp=1, micro_batches=32)))[0]
    chunks = peak_live(order_of(Shape(schedule="interleaved-1f1b", pp=pp, vpp=vpp, micro_batches=32)))[0]
    assert chunks / vpp / plain == pytest.approx(1 + (pp - 1) / (pp * vpp))


def test_bytes_weigh_chunks():
    order = order_of(Shape(schedule="zb-v", pp=3, vpp=2, micro_batches=8))
    assert peak_bytes(order, np.ones((3, 2))).tolist() == peak_live(order).tolist()
    first = peak_bytes(order, np.array([[1.0, 0.0]] * 3))
    assert first.tolist() == live(order)[:, :, 0].max(axis=1).tolist() == [6, 5, 4]


def test_nothing_is_kept_beyond_the_last_operation():
    order = order_of(Shape(schedule="dualpipe-v", pp=3, vpp=2, micro_batches=6))
    counts = live(order)
    assert (counts[~order.present] == 0).all()
    assert (counts[order.present].sum(axis=1) > 0).all()
