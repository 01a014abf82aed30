"""The event simulator keeps dependencies, does one thing at a time and everything once; small pipelines by hand."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_cases import random_times, sends_of, shapes, simulated_order

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT, alternating, one_f_one_b_order
from shardwright.planner.schedules.recurrence import program
from shardwright.planner.schedules.shape import SIMULATED, Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timing import Sends, chunk_times

CLOSE = 1e-9


def simulated(shape, seed, **options):
    times = random_times(np.random.default_rng(seed), shape, **options)
    order = simulated_order(shape, times)
    return order, times, simulate(order, times)


@given(shapes(), st.integers(0, 2**32))
def test_every_pass_once(shape, seed):
    order, _, made = simulated(shape, seed)
    counts = Counter((event.phase, event.stage, event.micro_batch) for event in made.events)
    assert set(counts.values()) == {1}
    for stage in range(order.stages):
        for micro_batch in range(shape.micro_batches):
            key = (stage, micro_batch)
            assert (FORWARD, *key) in counts
            apart = (INPUT, *key) in counts, (WEIGHT, *key) in counts
            assert apart == ((BACKWARD, *key) not in counts,) * 2
    assert all(order.stage_rank[event.stage] == event.rank for event in made.events)


@given(shapes(), st.integers(0, 2**32))
def test_a_rank_does_one_thing_at_a_time(shape, seed):
    order, _, made = simulated(shape, seed)
    for rank in range(order.pp):
        events = made.of_rank(rank)
        assert all(event.end_s >= event.start_s for event in events)
        for sooner, later in pairwise(events):
            together = (sooner.start_s, sooner.end_s) == (later.start_s, later.end_s) and sooner.paired and later.paired
            assert later.start_s >= sooner.end_s - CLOSE or (together and (sooner.phase, later.phase) == (FORWARD, BACKWARD))
        assert made.finish_s[rank] >= events[-1].end_s + made.tail_s[rank] - CLOSE


@given(shapes(), st.integers(0, 2**32))
def test_dependencies_are_kept(shape, seed):
    order, times, made = simulated(shape, seed)
    rank = order.stage_rank
    end = {(event.phase, event.stage, event.micro_batch): event.end_s for event in made.events}
    send = times.send_s[0]

    def gradients_at(stage, micro_batch):
        return end.get((INPUT, stage, micro_batch), end.get((BACKWARD, stage, micro_batch)))

    for event in made.events:
        s, m = event.stage, event.micro_batch
        if event.phase == FORWARD and s > 0:
            late = send[s - 1] if rank[s] != rank[s - 1] else 0.0
            assert event.start_s >= end[FORWARD, s - 1, m] + late - CLOSE
        if event.phase in {BACKWARD, INPUT} and s < order.stages - 1:
            late = send[s] if rank[s] != rank[s + 1] else 0.0
            assert event.start_s >= gradients_at(s + 1, m) + late - CLOSE
        if event.phase in {BACKWARD, INPUT} and not (times.sends is Sends.BOTH and event.paired):
            assert event.start_s >= end[FORWARD, s, m] - CLOSE
        if event.phase == WEIGHT:
            assert event.start_s >= end[INPUT, s, m] - CLOSE


@given(shapes(), st.integers(0, 2**32))
def test_messages_between_neighbours_only_and_one_for_each_pass(shape, seed):
    order, _, made = simulated(shape, seed)
    crossings = int((np.diff(order.stage_rank) != 0).sum())
    assert len(made.transfers) == 2 * crossings * shape.micro_batches
    for sent in made.transfers:
        target = sent.stage + (1 if sent.phase == FORWARD else -1)
        assert sent.source == order.stage_rank[sent.stage] != sent.target == order.stage_rank[target]
        assert sent.end_s >= sent.start_s


@given(shapes(), st.integers(0, 2**32))
def test_everything_kept_is_freed(shape, seed):
    order, _, made = simulated(shape, seed)
    for rank in range(order.pp):
        live = made.live(rank)
        assert all(min(now.chunks) >= 0 for now in live)
        assert set(live[-1].chunks) == {0}
        assert made.peak_live(rank) >= 1


@given(shapes(), st.integers(0, 2**32), st.floats(1.0, 3.0))
def test_slower_stages_and_messages_never_shorten_the_step(shape, seed, factor):
    order, times, made = simulated(shape, seed)
    rng = np.random.default_rng(seed)
    longer = [part * rng.choice([1.0, factor], part.shape) for part in (times.forward_s, times.input_s, times.weight_s)]
    slower = chunk_times(
        *longer, pp=shape.pp, send_s=factor * times.send_s, tail_s=times.tail_s, sends=times.sends, gain=times.gain
    )
    assert simulate(order, slower).step_s >= made.step_s - CLOSE


@given(shapes(), st.integers(0, 2**32))
def test_blocking_sends_never_beat_overlapped_ones(shape, seed):
    _, _, overlapped = simulated(shape, seed, sends=Sends.OVERLAPPED)
    for blocking in sends_of(shape)[1:]:
        _, _, made = simulated(shape, seed, sends=blocking)
        assert made.step_s >= overlapped.step_s - CLOSE


@given(shapes(), st.integers(0, 2**32))
def test_no_step_is_shorter_than_the_work_of_a_rank(shape, seed):
    order, times, made = simulated(shape, seed)
    per_stage = (times.forward_s + times.input_s + times.weight_s)[0] * shape.micro_batches
    for rank in range(order.pp):
        work = per_stage[order.stage_rank == rank].sum()
        if not shape.paired:
            assert made.busy_s(rank) == pytest.approx(work)
        assert made.busy_s(rank) <= work + CLOSE
        assert made.finish_s[rank] >= made.busy_s(rank) + times.tail_s[0, rank] - CLOSE


def test_one_rank_works_without_a_pause():
    for schedule in SIMULATED:
        vpp = 1 if schedule in {"gpipe", "1f1b", "zb-h1"} else 2
        _, times, made = simulated(Shape(schedule=schedule, pp=1, vpp=vpp, micro_batches=5), 3, tails=False)
        assert made.step_s == pytest.approx(5 * (times.forward_s + times.input_s + times.weight_s).sum())
        assert made.transfers == ()


def test_two_ranks_by_hand():
    times = chunk_times(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]]), np.array([[1.0, 1.0]]), pp=2, send_s=0.5)
    made = simulate(order_of(Shape(schedule="1f1b", pp=2, vpp=1, micro_batches=2)), times)
    spans = {(e.rank, e.phase, e.micro_batch): (e.start_s, e.end_s) for e in made.events}
    assert spans == {
        (0, FORWARD, 0): (0.0, 1.0),
        (0, FORWARD, 1): (1.0, 2.0),
        (1, FORWARD, 0): (1.5, 3.5),
        (1, BACKWARD, 0): (3.5, 6.5),
        (1, FORWARD, 1): (6.5, 8.5),
        (0, BACKWARD, 0): (7.0, 9.0),
        (1, BACKWARD, 1): (8.5, 11.5),
        (0, BACKWARD, 1): (12.0, 14.0),
    }
    assert made.step_s == 14.0
    assert [(now.time_s, now.chunks) for now in made.live(0)] == [
        (0.0, (0,)),
        (0.0, (1,)),
        (1.0, (2,)),
        (9.0, (1,)),
        (14.0, (0,)),
    ]


@pytest.mark.parametrize(("sends", "start"), [(Sends.OVERLAPPED, 1.0), (Sends.SENDER, 1.5), (Sends.RECEIVER, 1.0)])
def test_who_waits_for_a_message(sends, start):
    times = chunk_times(np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 2)), pp=2, send_s=0.5, sends=sends)
    made = simulate(order_of(Shape(schedule="gpipe", pp=2, vpp=1, micro_batches=2)), times)
    assert made.of_rank(0)[1].start_s == start
    assert made.of_rank(1)[0].start_s == 1.5
    assert made.of_rank(1)[1].start_s == {1.0: 2.5, 1.5: 3.0}[start] + (0.5 if sends is Sends.RECEIVER else 0.0)


def test_both_ends_wait():
    """The second message of rank 0 waits until rank 1 has done its first pass, and rank 0 with it."""
    times = chunk_times(np.array([[1.0, 3.0]]), np.ones((1, 2)), np.ones((1, 2)), pp=2, send_s=0.5, sends=Sends.BOTH)
    made = simulate(order_of(Shape(schedule="gpipe", pp=2, vpp=1, micro_batches=3)), times)
    assert [event.start_s for event in made.of_rank(0)][:3] == [0.0, 1.5, 5.0]
    assert [event.start_s for event in made.of_rank(1)][:3] == [1.5, 5.0, 8.5]
    assert [(sent.start_s, sent.end_s) for sent in made.transfers][:3] == [(1.0, 1.5), (4.5, 5.0), (8.0, 8.5)]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_an_exchange_carries_both_directions_at_once(schedule):
    """Equal stages: an inner rank of 1F1B exchanges once before and once after its backward pass."""
    ones = np.ones((1, 2))
    times = [chunk_times(ones, ones, ones, pp=2, send_s=send, sends=Sends.BOTH) for send in (0.0, 0.25)]
    first, second = (simulate(order_of(Shape(schedule=schedule, pp=2, vpp=1, micro_batches=4)), one) for one in times)
    assert 1 <= (second.step_s - first.step_s) / 0.25 <= 2 * 4 + 2
    spans = Counter((sent.start_s, sent.end_s) for sent in second.transfers)
    assert max(spans.values()) == 2


def test_dualpipe_v_has_the_published_bubble():
    """(PP / 2 − 1)·(F&B + B − 3W) with PP = 2·pp stages, where the backward pass takes two forward ones."""
    pp, count = 4, 16
    for gain in (0.0, 0.5, 1.0):
        ones = np.ones((1, 2 * pp))
        times = chunk_times(ones, ones, ones, pp=pp, gain=gain)
        shape = Shape(schedule="dualpipe-v", pp=pp, vpp=2, micro_batches=count, paired=True)
        made = simulate(order_of(shape), times)
        idle = [made.step_s - made.busy_s(rank) for rank in range(pp)]
        assert max(idle) == pytest.approx((pp - 1) * ((3 - gain) + 2 - 3)), (gain, idle)


def test_weight_gradients_fill_idle_time():
    ones = np.ones((1, 4))
    plain = simulate(order_of(Shape(schedule="1f1b", pp=4, vpp=1, micro_batches=8)), chunk_times(ones, ones, ones, pp=4))
    apart = simulate(order_of(Shape(schedule="zb-h1", pp=4, vpp=1, micro_batches=8)), chunk_times(ones, ones, ones, pp=4))
    assert plain.step_s == 24 + 3 * 3
    assert apart.step_s == 24 + 3


REFUSED = {
    "wait for each other": alternating(4, 2, 8, 2 * (3 - np.arange(4)) + 2, 2),
    "before what it needs": alternating(4, 2, 8, np.zeros(4, dtype=np.int64), 4),
    "exactly once": replace(one_f_one_b_order(2, 3), micro_batch=np.zeros((2, 6), dtype=np.int64)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_orders_that_cannot_run_are_refused(reason):
    ones = np.ones((1, REFUSED[reason].stages))
    with pytest.raises(ConflictError, match=reason):
        simulate(REFUSED[reason], chunk_times(ones, ones, ones, pp=REFUSED[reason].pp))
    with pytest.raises(ConflictError, match=reason):
        program(REFUSED[reason])


def test_a_rank_without_its_last_pass_is_refused():
    whole = one_f_one_b_order(2, 3)
    names = ("phase", "stage", "micro_batch")
    with pytest.raises(ConflictError, match="exactly once"):
        program(replace(whole, **{name: getattr(whole, name)[:, :-1] for name in names}))


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (Shape(schedule="1f2b", pp=2, vpp=1, micro_batches=4), UnknownNameError),
        (Shape(schedule="1f1b", pp=2, vpp=2, micro_batches=4), InvalidValueError),
        (Shape(schedule="1f1b", pp=0, vpp=1, micro_batches=4), InvalidValueError),
        (Shape(schedule="zb-v", pp=2, vpp=3, micro_batches=4), InvalidValueError),
        (Shape(schedule="dualpipe-v", pp=4, vpp=2, micro_batches=7), InvalidValueError),
        (Shape(schedule="interleaved-1f1b", pp=4, vpp=2, micro_batches=9), InvalidValueError),
        (Shape(schedule="interleaved-1f1b", pp=4, vpp=2, micro_batches=8, group=3), InvalidValueError),
        (Shape(schedule="interleaved-1f1b", pp=4, vpp=2, micro_batches=8, group=0), InvalidValueError),
    ],
)
def test_impossible_shapes_are_refused(shape, error):
    with pytest.raises(error) as caught:
        order_of(shape)
    assert caught.value.hint


@pytest.mark.parametrize("stages", [3, 5])
def test_stages_that_do_not_fill_the_ranks_are_refused(stages):
    with pytest.raises(InvalidValueError, match="pipeline ranks"):
        chunk_times(np.ones((1, stages)), np.ones((1, stages)), np.ones((1, stages)), pp=2)
    with pytest.raises(InvalidValueError, match="below 0"):
        chunk_times(-np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 2)), pp=2)
