"""Every schedule on a small pipeline whose chunks all take one pass for F, for I and for W: what `show schedules` prints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.errors import unknown_name
from shardwright.planner.schedules import dualpipe_v, gpipe, interleaved, interleaved_zb, one_f_one_b, zb_h1, zb_v
from shardwright.planner.schedules.base import Schedule
from shardwright.planner.schedules.shape import Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timeline import Timeline
from shardwright.planner.schedules.timing import chunk_times

KNOWN: tuple[Schedule, ...] = (
    gpipe.SCHEDULE,
    one_f_one_b.SCHEDULE,
    interleaved.SCHEDULE,
    zb_h1.SCHEDULE,
    interleaved_zb.SCHEDULE,
    zb_v.SCHEDULE,
    dualpipe_v.SCHEDULE,
)
"""All schedules whose order of operations is known, searched or not."""

FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "gpipe": ("torch ScheduleGPipe",),
    "1f1b": ("Megatron-LM", "torch Schedule1F1B"),
    "interleaved-1f1b": ("Megatron-LM", "torch ScheduleInterleaved1F1B"),
    "zb-h1": ("torch ScheduleInterleavedZeroBubble, one stage a rank",),
    "interleaved-zb": ("torch ScheduleInterleavedZeroBubble",),
    "zb-v": ("torch ScheduleZBVZeroBubble",),
    "dualpipe-v": ("torch ScheduleDualPipeV", "DeepSeek DualPipe"),
}
"""Who runs each schedule in the order that is known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A schedule on a small pipeline.

    Attributes:
        schedule: which.
        shape: the pipeline.
        made: one step of it.
    """

    schedule: Schedule
    shape: Shape
    made: Timeline

    @property
    def idle(self) -> float:
        """Share of the step in which ranks do nothing, mean of ranks."""
        busy = sum(self.made.busy_s(rank) for rank in range(self.shape.pp))
        return 1 - busy / (self.made.step_s * self.shape.pp)


def sample(schedule: str) -> Sample:
    """4 ranks and 6 micro-batches, or 2 ranks with two chunks each and 4 micro-batches.

    Raises:
        UnknownNameError: no such schedule.
    """
    known = {one.id: one for one in KNOWN}
    if schedule not in known:
        raise unknown_name("schedule", schedule, tuple(known), where="show schedules")
    vpp = 2 if known[schedule].interleaved else 1
    pp, count = (4, 6) if vpp == 1 else (2, 4)
    shape = Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count)
    ones = np.ones((1, pp * vpp))
    return Sample(schedule=known[schedule], shape=shape, made=simulate(order_of(shape), chunk_times(ones, ones, ones, pp=pp)))
