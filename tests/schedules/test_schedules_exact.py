"""The vectorised price equals the event simulation; closed forms equal both."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_cases import interleaved_shapes, random_shape, random_times, sends_of, shapes, simulated_order, stage_times

from shardwright.planner.schedules import dualpipe_v, gpipe, interleaved, interleaved_zb, one_f_one_b, zb_h1, zb_v
from shardwright.planner.schedules.closed import closed_step_s
from shardwright.planner.schedules.exact import exact_finish_s, exact_step_s, program_of
from shardwright.planner.schedules.recurrence import PLANS_AT_ONCE, step_s
from shardwright.planner.schedules.shape import FOLDED, LOOPED, SIMULATED, Shape, order_of, shapes_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timing import Sends, chunk_times

ROWS = {
    "gpipe": gpipe.rows,
    "1f1b": one_f_one_b.rows,
    "interleaved-1f1b": interleaved.rows,
    "zb-h1": zb_h1.rows,
    "interleaved-zb": interleaved_zb.rows,
    "zb-v": zb_v.rows,
    "dualpipe-v": dualpipe_v.rows,
}
SAME = 1e-11


def disagreement(rng, schedule, cases):
    """Largest relative difference between price and simulation over some random cases."""
    worst = 0.0
    for _ in range(cases):
        shape = random_shape(rng, schedule)
        times = random_times(rng, shape)
        made = simulate(simulated_order(shape, times), times)
        worst = max(worst, abs(exact_step_s(shape, times)[0] / made.step_s - 1))
        finish = exact_finish_s(shape, times)[0] + times.tail_s[0]
        worst = max(worst, np.abs(finish / made.finish_s - 1).max())
    return worst


@pytest.mark.parametrize("schedule", SIMULATED)
def test_price_equals_simulation(schedule):
    assert disagreement(np.random.default_rng(11), schedule, 80) < SAME


@given(shapes(), st.integers(0, 2**32), st.integers(2, 5))
def test_plans_priced_together_cost_what_they_cost_alone(shape, seed, plans):
    times = random_times(np.random.default_rng(seed), shape, plans)
    together = exact_step_s(shape, times)
    alone = [exact_step_s(shape, times.take(slice(at, at + 1)))[0] for at in range(plans)]
    assert together == pytest.approx(alone, rel=SAME)


def test_more_plans_than_are_priced_at_once():
    shape = Shape(schedule="1f1b", pp=3, vpp=1, micro_batches=4)
    times = random_times(np.random.default_rng(2), shape, 2 * PLANS_AT_ONCE + 3)
    made = exact_step_s(shape, times)
    assert made.shape == (2 * PLANS_AT_ONCE + 3,)
    assert made[-1] == pytest.approx(simulate(order_of(shape), times, 2 * PLANS_AT_ONCE + 2).step_s)


def equal_times(rng, shape, plans=4, **options):
    one = np.ones((1, shape.pp * shape.vpp))
    parts = np.exp(rng.uniform(-1, 1, (3, plans, 1)))
    return chunk_times(*(part * one for part in parts), pp=shape.pp, **options)


@given(st.one_of(shapes(), interleaved_shapes(3)), st.integers(0, 2**32), st.floats(0, 5))
def test_closed_forms_of_equal_chunks_equal_the_recurrence(shape, seed, tail):
    times = equal_times(np.random.default_rng(seed), shape, tail_s=tail)
    holds, closed = closed_step_s(shape, times)
    assert holds.all() or not holds.any()
    if holds.any():
        assert closed == pytest.approx(step_s(program_of(shape), times), rel=SAME)


@given(st.integers(1, 9), st.integers(1, 30), st.floats(0, 3), st.integers(0, 2**32))
def test_exchanges_of_equal_stages_have_a_closed_form(pp, micro_batches, send, seed):
    shape = Shape(schedule="1f1b", pp=pp, vpp=1, micro_batches=micro_batches)
    times = equal_times(np.random.default_rng(seed), shape, send_s=send, sends=Sends.BOTH)
    holds, closed = closed_step_s(shape, times)
    assert holds.all()
    assert closed == pytest.approx(step_s(program_of(shape, exchange=True), times), rel=SAME)


def test_exchanges_of_unequal_length_have_none():
    shape = Shape(schedule="1f1b", pp=3, vpp=1, micro_batches=4)
    times = equal_times(np.random.default_rng(1), shape, send_s=np.array([[0.1, 0.2, 0.0]]), sends=Sends.BOTH)
    assert not closed_step_s(shape, times)[0].any()


@pytest.mark.parametrize("schedule", SIMULATED)
def test_usual_shapes_have_a_closed_form(schedule):
    vpp = 2 if schedule in (*FOLDED, *LOOPED) else 1
    shape = Shape(schedule=schedule, pp=4, vpp=vpp, micro_batches=16)
    holds, closed = closed_step_s(shape, equal_times(np.random.default_rng(1), shape))
    assert holds.all()
    made = ROWS[schedule](stage_times(shape, equal_times(np.random.default_rng(1), shape))).max(axis=1)
    assert made == pytest.approx(closed, rel=SAME)


@given(shapes(schedules=("gpipe",)), st.integers(0, 2**32))
def test_gpipe_has_a_closed_form_for_any_stages(shape, seed):
    rng = np.random.default_rng(seed)
    times = random_times(rng, shape, 3, tails=False, sends=list(Sends)[int(rng.integers(3))])
    holds, closed = closed_step_s(shape, times)
    assert holds.all()
    assert closed == pytest.approx([simulate(order_of(shape), times, at).step_s for at in range(3)], rel=SAME)
    if not times.send_s.any():
        assert ROWS["gpipe"](stage_times(shape, times)).max(axis=1) == pytest.approx(closed, rel=SAME)


@pytest.mark.parametrize("schedule", [s for s in SIMULATED if s != "gpipe"])
def test_unequal_stages_and_late_messages_have_none(schedule):
    vpp = 2 if schedule in (*FOLDED, *LOOPED) else 1
    shape = Shape(schedule=schedule, pp=2, vpp=vpp, micro_batches=8)
    one = np.ones((1, 2 * vpp))
    uneven = np.append(one[:, :-1], [[2.0]], axis=1)
    for forward, send in ((uneven, 0.0), (one, 0.1)):
        holds, _ = closed_step_s(shape, chunk_times(forward, one, one, pp=2, send_s=send))
        assert not holds.any()


def test_a_batch_of_equal_and_unequal_plans():
    shape = Shape(schedule="1f1b", pp=2, vpp=1, micro_batches=4)
    forward = np.array([[1.0, 1.0], [1.0, 2.0]])
    times = chunk_times(forward, np.ones((2, 2)), np.ones((2, 2)), pp=2)
    expected = [simulate(order_of(shape), times, at).step_s for at in range(2)]
    assert expected[0] == 15
    assert exact_step_s(shape, times) == pytest.approx(expected)


def test_plans_are_grouped_by_shape():
    ids = ("zb-h1", "1f1b", "zb-h1", "1f1b", "1f1b")
    pp, vpp, count = np.array([2, 4, 2, 4, 4]), np.ones(5, dtype=np.int64), np.array([8, 8, 8, 16, 8])
    groups = {shape: which.tolist() for shape, which in shapes_of(ids, pp, vpp, count)}
    assert groups == {
        Shape(schedule="zb-h1", pp=2, vpp=1, micro_batches=8): [0, 2],
        Shape(schedule="1f1b", pp=4, vpp=1, micro_batches=8): [1, 4],
        Shape(schedule="1f1b", pp=4, vpp=1, micro_batches=16): [3],
    }


@pytest.mark.parametrize("sends", Sends)
def test_larger_messages_never_shorten_the_step(sends):
    shape = Shape(schedule="interleaved-1f1b", pp=3, vpp=2, micro_batches=6)
    one = np.ones((1, 6))
    assert sends in sends_of(shape)
    steps = [exact_step_s(shape, chunk_times(one, one, one, pp=3, send_s=p, sends=sends))[0] for p in (0, 0.05, 0.1, 0.5)]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
