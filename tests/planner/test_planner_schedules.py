"""Closed forms of the schedules against a simulation of every pass."""

import numpy as np
import pytest
import schedule_events as events
from hypothesis import given
from hypothesis import strategies as st

from shardwright.planner.schedules.base import StageTimes
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES

PLAIN, INTERLEAVED, GPIPE = (SCHEDULES[SCHEDULE_IDS.index(name)] for name in ("1f1b", "interleaved-1f1b", "gpipe"))
SECONDS = st.floats(0.01, 4.0)
SLACK = 1 + 1e-9


@st.composite
def pipelines(draw):
    """Forward and backward seconds of each rank, and micro-batches."""
    pp = draw(st.integers(2, 6))
    both = st.lists(SECONDS, min_size=pp, max_size=pp)
    return draw(both), draw(both), draw(st.integers(1, 10))


def times_of(forward, backward, count, vpp=1, multiplicity=None):
    """One plan; every entry of the lists is a run of as many ranks as its multiplicity says."""
    ranks = np.array(multiplicity or [1] * len(forward))
    column = np.array([[int(ranks.sum())]])
    return StageTimes(
        forward_s=np.array([forward]),
        backward_s=np.array([backward]),
        multiplicity=ranks[None, :],
        last_rank=np.cumsum(ranks)[None, :] - 1,
        pp=column,
        vpp=0 * column + vpp,
        micro_batches=0 * column + count,
    )


def step(schedule, *given, **options):
    return float(schedule.rows(times_of(*given, **options)).max())


@given(pipelines())
def test_gpipe_is_the_simulation_whatever_the_stages(pipeline):
    forward, backward, count = pipeline
    run = events.simulated(events.gpipe_orders(len(forward), count), forward, backward)
    assert step(GPIPE, forward, backward, count) == pytest.approx(run.step_s, rel=1e-9)


@given(pipelines())
def test_1f1b_never_exceeds_the_simulation_in_any_row(pipeline):
    forward, backward, count = pipeline
    run = events.simulated(events.one_f_one_b_orders(len(forward), count), forward, backward)
    rows = PLAIN.rows(times_of(forward, backward, count))
    assert (rows <= run.step_s * SLACK).all()
    assert rows.max() >= 0.75 * run.step_s


@given(st.integers(1, 8), SECONDS, SECONDS, st.integers(1, 12))
def test_1f1b_is_the_simulation_for_equal_stages(pp, forward, backward, count):
    run = events.simulated(events.one_f_one_b_orders(pp, count), [forward] * pp, [backward] * pp)
    assert step(PLAIN, [forward] * pp, [backward] * pp, count) == pytest.approx(run.step_s, rel=1e-9)
    assert run.step_s == pytest.approx((count + pp - 1) * (forward + backward), rel=1e-9)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4), SECONDS, SECONDS)
def test_interleaving_is_the_simulation_for_equal_stages(pp, vpp, groups, forward, backward):
    count = groups * pp
    run = events.simulated(events.interleaved_orders(pp, vpp, count), [forward] * pp, [backward] * pp, vpp)
    closed = step(INTERLEAVED, [forward] * pp, [backward] * pp, count, vpp=vpp)
    assert closed == pytest.approx((count + (pp - 1) / vpp) * (forward + backward), rel=1e-9)
    assert closed == pytest.approx(run.step_s, rel=1e-9)


@given(pipelines())
def test_one_micro_batch_passes_every_stage_once_both_ways(pipeline):
    forward, backward, _ = pipeline
    for schedule in (PLAIN, GPIPE):
        assert step(schedule, forward, backward, 1) == pytest.approx(sum(forward) + sum(backward), rel=1e-9)


@given(SECONDS, SECONDS, st.integers(1, 20))
@pytest.mark.parametrize("schedule", [PLAIN, GPIPE], ids=["1f1b", "gpipe"])
def test_a_single_stage_has_no_bubble(schedule, forward, backward, count):
    assert step(schedule, [forward], [backward], count) == pytest.approx(count * (forward + backward), rel=1e-9)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([1, 2, 3]),
)
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.id != "zb-h1"], ids=lambda schedule: schedule.id)
def test_folding_equal_neighbours_changes_nothing(schedule, runs, count, vpp):
    vpp = vpp if schedule.interleaved else 1
    forward, backward, ranks = (list(column) for column in zip(*runs, strict=True))
    folded = step(schedule, forward, backward, count, vpp=vpp, multiplicity=ranks)
    apart = step(schedule, np.repeat(forward, ranks).tolist(), np.repeat(backward, ranks).tolist(), count, vpp=vpp)
    assert folded == pytest.approx(apart, rel=1e-9)


@given(pipelines(), st.integers(0, 5), st.floats(0.0, 2.0), st.booleans())
@pytest.mark.parametrize("schedule", SCHEDULES, ids=SCHEDULE_IDS)
def test_slower_stages_never_shorten_the_step(schedule, pipeline, which, added, ahead):
    forward, backward, count = pipeline
    if schedule.id == "dualpipe-v":
        count += 2 * len(forward)  # fewer rounds have no such schedule
    vpp = 2 if schedule.interleaved else 1
    before = step(schedule, forward, backward, count, vpp=vpp)
    changed = list(forward if ahead else backward)
    changed[which % len(changed)] += added
    after = step(schedule, changed if ahead else forward, backward if ahead else changed, count, vpp=vpp)
    assert after * SLACK >= before


@given(pipelines())
@pytest.mark.parametrize("schedule", SCHEDULES, ids=SCHEDULE_IDS)
def test_every_row_covers_the_work_of_its_stage(schedule, pipeline):
    forward, backward, count = pipeline
    times = times_of(forward, backward, count, vpp=2 if schedule.interleaved else 1)
    assert (schedule.rows(times) * SLACK >= count * times.both_s).all()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
def test_micro_batches_alive_are_those_of_the_simulation(pp, count):
    for schedule, orders in ((PLAIN, events.one_f_one_b_orders(pp, count)), (GPIPE, events.gpipe_orders(pp, count))):
        run = events.simulated(orders, [1.0] * pp, [2.0] * pp)
        counted = schedule.in_flight(np.array(pp), np.array(1), np.array(count), np.arange(pp))
        np.testing.assert_array_equal(counted, run.alive)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("vpp", [2, 3, 5])
@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_chunks_alive_under_interleaving_are_those_of_the_simulation(pp, vpp, groups):
    count = groups * pp
    run = events.simulated(events.interleaved_orders(pp, vpp, count), [1.0] * pp, [2.0] * pp, vpp)
    counted = INTERLEAVED.in_flight(np.array(pp), np.array(vpp), np.array(count), np.arange(pp))
    np.testing.assert_allclose(counted * vpp, run.alive)


def test_only_gpipe_keeps_the_logits_of_all_micro_batches():
    assert [schedule.keeps_all_logits for schedule in (PLAIN, INTERLEAVED, GPIPE)] == [False, False, True]
    assert [schedule.interleaved for schedule in (PLAIN, INTERLEAVED, GPIPE)] == [False, True, False]


def test_the_simulator_notices_orders_that_wait_for_each_other():
    with pytest.raises(RuntimeError, match="wait"):
        events.simulated([[("B", 0, 0), ("F", 0, 0)]], [1.0], [1.0])
