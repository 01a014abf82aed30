"""`f`, the price of a step, for any schedule and any stages; equal to the event simulation up to rounding.

`exact_step_s` takes the closed form (`closed`) for the plans that have one and the recurrence (`recurrence`) for the rest;
`exact_finish_s` says when each rank is done, always by recurrence. Orders are compiled once for each shape (`program_of`).
Where both ends of a message wait (`Sends.BOTH`), V-shaped pipelines and interleaved ones in groups other than pp would wait for
themselves and are refused.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.errors import InvalidValueError
from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules.closed import closed_step_s
from shardwright.planner.schedules.recurrence import Program, finish_s, program, step_s
from shardwright.planner.schedules.shape import Shape, can_exchange, order_of
from shardwright.planner.schedules.timing import ChunkTimes, Sends


@lru_cache(maxsize=256)
def program_of(shape: Shape, exchange: bool = False) -> Program:
    """The compiled order of operations.

    Args:
        shape: what fixes the order.
        exchange: whether both ends of a message wait (`Sends.BOTH`).
    """
    return program(order_of(shape, exchange), exchange)


def program_for(shape: Shape, times: ChunkTimes) -> Program:
    """The order compiled for the sends of some times.

    Raises:
        InvalidValueError: passes that run together gain something, and the shape has none; or both ends of its messages
            wait, and its ranks would wait for each other.
    """
    if times.gain and not shape.paired:
        raise InvalidValueError(
            f"a gain of {times.gain} for passes that do not run together", hint="give a shape with paired, or no gain"
        )
    if times.sends is Sends.BOTH and not can_exchange(shape):
        raise InvalidValueError(
            f"{shape.schedule} where both ends of a message wait", hint="one chunk a rank can, interleaved ones in groups of pp"
        )
    return program_of(shape, times.sends is Sends.BOTH)


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
    made[rest] = step_s(program_for(shape, times), times.take(rest))
    return made


def exact_finish_s(shape: Shape, times: ChunkTimes) -> FloatArray:
    """Seconds until each rank has done its last operation, without its tail, [plans, pp].

    Args:
        shape: what fixes the order of operations of all these plans.
        times: of their stages.
    """
    return finish_s(program_for(shape, times), times)
