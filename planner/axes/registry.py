"""The parallel axes whose collectives run inside layers, innermost first; one line adds an axis."""

from __future__ import annotations

from shardwright.planner.axes import context, expert, tensor
from shardwright.planner.axes.base import ParallelAxis

AXES: tuple[ParallelAxis, ...] = (tensor.AXIS, context.AXIS, expert.AXIS)
