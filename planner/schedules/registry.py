"""The pipeline schedules; one line adds one."""

from __future__ import annotations

from shardwright.planner.schedules import gpipe, interleaved, one_f_one_b
from shardwright.planner.schedules.base import Schedule

SCHEDULES: tuple[Schedule, ...] = (one_f_one_b.SCHEDULE, interleaved.SCHEDULE, gpipe.SCHEDULE)
SCHEDULE_IDS: tuple[str, ...] = tuple(s.id for s in SCHEDULES)
