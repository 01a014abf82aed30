"""Micro-batches whose activations a rank keeps, from its order of operations alone.

A rank works one operation at a time, so what it keeps changes only at its own operations, whenever they happen:

    live(o) = forward passes up to o, o included, − last gradients (whole backward pass or weight gradient) before o

of each chunk (`live`). Its greatest value is that of the simulated `Timeline` for any times. Where gradients are apart, some of
those have their input gradient already (`waiting`) and keep less: the inputs of products with weights, and gradients.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order


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


def waiting(order: Order) -> IntArray:
    """Those of them of which only the weight gradient is still to be done or being done, [pp, longest, vpp]."""
    chunk = np.arange(order.vpp) == (order.stage // order.pp)[:, :, None]
    made, freed = ((order.phase == phase)[:, :, None] & chunk for phase in (INPUT, WEIGHT))
    counts = np.cumsum(made, axis=1) - made - np.cumsum(freed, axis=1) + freed
    return np.where(order.present[:, :, None], counts, 0)


def peak_waiting(order: Order) -> IntArray:
    """Most chunks of micro-batches that wait for their weight gradient on each rank, [pp]."""
    return np.asarray(waiting(order).sum(axis=2).max(axis=1))


def peak_bytes(order: Order, chunk_bytes: FloatArray, waiting_bytes: FloatArray | None = None) -> FloatArray:
    """Most bytes that each rank keeps at once, [pp].

    Args:
        order: what each rank does, in order.
        chunk_bytes: what one micro-batch leaves on each of a rank's chunks, [pp, vpp].
        waiting_bytes: what is still kept of it once only its weight gradient is to be done; all of it where None.
    """
    kept = live(order) * chunk_bytes[:, None, :]
    if waiting_bytes is not None:
        kept = kept - waiting(order) * (chunk_bytes - waiting_bytes)[:, None, :]
    return np.asarray(kept.sum(axis=2).max(axis=1))
