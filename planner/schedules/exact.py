"""`f`, the price of a step, for any schedule and any stages; equal to the event simulation up to rounding.

`exact_step_s` takes the closed form (`closed`) for the plans that have one and the recurrence (`recurrence`) for the rest;
`exact_finish_s` says when each rank is done, always by recurrence. Orders are compiled once for each shape (`program_of`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules.closed import closed_step_s
from shardwright.planner.schedules.recurrence import Program, finish_s, program, step_s
from shardwright.planner.schedules.shape import Shape, order_of
from shardwright.planner.schedules.timing import ChunkTimes


@lru_cache(maxsize=256)
def program_of(shape: Shape) -> Program:
    """The compiled order of operations."""
    return program(order_of(shape))


def exact_step_s(shape: Shape, times: ChunkTimes) -> FloatArray:
    """Seconds until the last rank is done, tails included, [plans].

    Args:
        shape: what fixes the order of operations of all these plans.
        times: of their stages.
    """
    closed, step = closed_step_s(shape, times)
    if closed.all():
        return step
    made = step.copy()
    rest = np.flatnonzero(~closed)
    made[rest] = step_s(program_of(shape), times.take(rest))
    return made


def exact_finish_s(shape: Shape, times: ChunkTimes) -> FloatArray:
    """Seconds until each rank has done its last operation, without its tail, [plans, pp].

    Args:
        shape: what fixes the order of operations of all these plans.
        times: of their stages.
    """
    return finish_s(program_of(shape), times)
