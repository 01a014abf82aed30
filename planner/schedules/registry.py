"""The pipeline schedules; one line adds one."""

from __future__ import annotations

import numpy as np

from shardwright.planner.schedules import dualpipe_v, gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from shardwright.planner.schedules.base import Schedule

SCHEDULES: tuple[Schedule, ...] = (
    one_f_one_b.SCHEDULE,
    interleaved.SCHEDULE,
    gpipe.SCHEDULE,
    zb_h1.SCHEDULE,
    zb_v.SCHEDULE,
    dualpipe_v.SCHEDULE,
)
SCHEDULE_IDS: tuple[str, ...] = tuple(s.id for s in SCHEDULES)

FOLDED = np.array([schedule.folded for schedule in SCHEDULES])
"""Whether the chunks of each stand on ranks like a V, [schedules]."""


def is_folded(schedule_id: str | None) -> bool:
    """Whether a schedule's chunks stand on ranks like a V."""
    return any(s.folded for s in SCHEDULES if s.id == schedule_id)


def splits_backward(schedule_id: str | None) -> bool:
    """Whether a schedule computes gradients of weights apart from those of inputs."""
    return any(s.splits_backward for s in SCHEDULES if s.id == schedule_id)
