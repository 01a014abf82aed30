"""Micro-batches whose activations a rank keeps, from its order of operations alone.

A rank works one operation at a time, so what it keeps changes only at its own operations, whenever they happen:

    live(o) = forward passes up to o, o included, − last gradients (whole backward pass or weight gradient) before o

of each chunk (`live`). Its greatest value is that of the simulated `Timeline` for any times.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, WEIGHT, Order


def live(order: Order) -> IntArray:
    """Micro-batches kept during each operation, [pp, longest, vpp]; 0 beyond a rank's last operation."""
    chunk = np.arange(order.vpp) == (order.stage // order.pp)[:, :, None]
    kept = (order.phase == FORWARD)[:, :, None] & chunk
    freed = ((order.phase == BACKWARD) | (order.phase == WEIGHT))[:, :, None] & chunk
    counts = np.cumsum(kept, axis=1) - np.cumsum(freed, axis=1) + freed
    return np.where(order.present[:, :, None], counts, 0)


def peak_live(order: Order) -> IntArray:
    """Most chunks of micro-batches that each rank keeps at once, [pp]."""
    return np.asarray(live(order).sum(axis=2).max(axis=1))


def peak_bytes(order: Order, chunk_bytes: FloatArray) -> FloatArray:
    """Most bytes that each rank keeps at once, [pp].

    Args:
        order: what each rank does, in order.
        chunk_bytes: what one micro-batch leaves on each of a rank's chunks, [pp, vpp].
    """
    return np.asarray((live(order) * chunk_bytes[:, None, :]).sum(axis=2).max(axis=1))
