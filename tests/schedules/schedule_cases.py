"""Random shapes and times of pipelines that the tests of schedules share."""

import numpy as np
from hypothesis import strategies as st

from shardwright.planner.schedules.base import StageTimes
from shardwright.planner.schedules.shape import FOLDED, LOOPED, PAIRED, SIMULATED, Shape, can_exchange, order_of
from shardwright.planner.schedules.timing import Sends, chunk_times


def least_micro_batches(schedule, pp):
    return 2 * pp if schedule == "dualpipe-v" else 1


@st.composite
def shapes(draw, schedules=SIMULATED, widest=6, most=14):
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.integers(1, widest))
    if schedule in LOOPED:
        return draw(interleaved_shapes(pp, most, schedule))
    vpp = 2 if schedule in FOLDED else 1
    least, paired = least_micro_batches(schedule, pp), schedule in PAIRED and draw(st.booleans())
    count = draw(st.integers(least, max(least, most)))
    return Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count, paired=paired)


@st.composite
def interleaved_shapes(draw, pp, most=14, schedule="interleaved-1f1b"):
    vpp = draw(st.integers(2, 4))
    group = draw(st.integers(pp, 2 * pp))
    full = draw(st.integers(1, max(1, most // group)))
    count = full * group + draw(st.sampled_from([0, *range(pp, group)]))
    paired = draw(st.booleans()) and schedule in PAIRED
    return Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count, group=group, paired=paired)


def random_shape(rng, schedule, widest=8, most=24):
    """A shape, without hypothesis: for tests of many cases."""
    pp = int(rng.integers(1, widest + 1))
    paired = schedule in PAIRED and bool(rng.random() < 0.5)
    vpp = int(rng.integers(2, 5)) if schedule in LOOPED else 2 if schedule in FOLDED else 1
    if schedule in LOOPED:
        group = int(rng.integers(pp, 2 * pp + 1))
        count = group * int(rng.integers(1, max(2, most // group))) + int(rng.choice([0, *range(pp, group)]))
        return Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count, group=group, paired=paired)
    least = least_micro_batches(schedule, pp)
    count = int(rng.integers(least, max(least, most) + 1))
    return Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count, paired=paired)


def sends_of(shape):
    """Who may wait for messages of a pipeline."""
    return [sends for sends in Sends if sends is not Sends.BOTH or can_exchange(shape)]


def random_times(rng, shape, plans=1, sends=None, tails=True):
    """Unequal stages, unequal forward and backward passes, recomputing on some stages, sends of 0 to 10 % of a pass."""
    size = (plans, shape.pp * shape.vpp)
    layers = rng.choice([0.5, 1.0, 1.0, 1.5, 3.0], size) * rng.uniform(0.5, 1.5, (plans, 1))
    forward = layers * rng.uniform(0.9, 1.1, size)
    recomputed = forward * (rng.random(size) < 0.3)
    gradients = layers * rng.uniform(0.5, 1.5, (plans, 1))
    weight = layers * rng.uniform(0.5, 1.2, (plans, 1))
    send = rng.choice([0.0, 1.0], (plans, 1)) * rng.uniform(0, 0.1, size) * forward.mean()
    tail = rng.uniform(0, 3, (plans, shape.pp)) * (rng.random((plans, 1)) < 0.5) * tails
    chosen = sends_of(shape)[int(rng.integers(len(sends_of(shape))))] if sends is None else sends
    gain = rng.uniform() * shape.paired
    return chunk_times(forward, gradients + recomputed, weight, pp=shape.pp, send_s=send, tail_s=tail, sends=chosen, gain=gain)


def simulated_order(shape, times):
    """What the simulator runs."""
    return order_of(shape, times.sends is Sends.BOTH)


def stage_times(shape, times):
    """The same times as the closed forms of a schedule want them, every rank a run of its own."""
    plans, pp, vpp = times.plans, shape.pp, shape.vpp
    ones = np.ones((plans, 1), dtype=np.int64)
    by_rank = [per_rank(part, shape) for part in (times.forward_s, times.input_s, times.weight_s)]
    return StageTimes(
        forward_s=by_rank[0],
        backward_s=by_rank[1] + by_rank[2],
        weight_s=by_rank[2],
        multiplicity=np.ones((plans, pp), dtype=np.int64),
        last_rank=np.arange(pp) * ones,
        pp=pp * ones,
        vpp=vpp * ones,
        micro_batches=shape.micro_batches * ones,
    )


def per_rank(seconds, shape):
    """Sums over the chunks of each rank, [plans, pp]."""
    chunks = seconds.reshape(-1, shape.vpp, shape.pp)
    if shape.schedule in FOLDED:
        return chunks[:, 0] + chunks[:, 1, ::-1]
    return chunks.sum(axis=1)
