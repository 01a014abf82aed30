"""What fixes the order of operations of a pipeline, and that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.planner.plans import IntArray
from shardwright.planner.schedules.orders import Order, gpipe_order, interleaved_order, one_f_one_b_order
from shardwright.planner.schedules.orders_apart import dualpipe_v_order, interleaved_zb_order, zb_h1_order, zb_v_order

SINGLE: dict[str, Callable[[int, int], Order]] = {"gpipe": gpipe_order, "1f1b": one_f_one_b_order, "zb-h1": zb_h1_order}
"""Orders with one chunk a rank."""

FOLDED: dict[str, Callable[[int, int], Order]] = {"zb-v": zb_v_order, "dualpipe-v": dualpipe_v_order}
"""Orders with two chunks a rank, stages folded like a V."""

LOOPED = ("interleaved-1f1b", "interleaved-zb")
"""Orders with any number of chunks a rank, in groups of micro-batches."""

SIMULATED = (*SINGLE, *LOOPED, *FOLDED)
"""Schedules whose order of operations is known."""

PAIRED = ("interleaved-1f1b", "dualpipe-v")
"""Those in which a forward and a backward pass may run together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What fixes an order of operations.

    Attributes:
        schedule: one of `SIMULATED`.
        pp, vpp: pipeline ranks, chunks a rank.
        micro_batches: micro-batches.
        group: micro-batches that pass a chunk before the next chunk's turn (`LOOPED` only); pp where none is given.
        paired: whether a forward and a backward pass run together in the steady phase, one of `PAIRED`.
    """

    schedule: str
    pp: int
    vpp: int
    micro_batches: int
    group: int | None = None
    paired: bool = False


def order_of(shape: Shape, exchange: bool = False) -> Order:
    """The order of operations.

    Args:
        shape: what fixes it.
        exchange: whether both ends of a message wait (`timing.Sends.BOTH`); an interleaved pipeline then does a forward and a
            backward pass between two exchanges.

    Raises:
        UnknownNameError: a schedule without one.
        InvalidValueError: chunks or micro-batches that the schedule cannot have.
    """
    if shape.schedule not in SIMULATED:
        raise UnknownNameError(f"schedule {shape.schedule!r}", hint=f"known: {', '.join(SIMULATED)}")
    if shape.paired and shape.schedule not in PAIRED:
        hint = f"{' and '.join(PAIRED)} have them"
        raise InvalidValueError(f"{shape.schedule} with passes that run together", hint=hint)
    order = _order_of(shape)
    together = shape.paired or (exchange and shape.schedule == "interleaved-1f1b")
    return order if together else replace(order, paired=None)


def _order_of(shape: Shape) -> Order:
    if shape.schedule == "interleaved-1f1b":
        return interleaved_order(shape.pp, shape.vpp, shape.micro_batches, shape.group, more=int(shape.paired))
    if shape.schedule == "interleaved-zb":
        return interleaved_zb_order(shape.pp, shape.vpp, shape.micro_batches, shape.group)
    chunks = 2 if shape.schedule in FOLDED else 1
    if shape.vpp != chunks:
        raise InvalidValueError(f"{shape.schedule} with {shape.vpp} chunks a rank", hint=f"it has {chunks}")
    return (SINGLE | FOLDED)[shape.schedule](shape.pp, shape.micro_batches)


def can_exchange(shape: Shape) -> bool:
    """Whether both ends of every message may wait for it (`timing.Sends.BOTH`) without the ranks waiting for each other."""
    looped = shape.schedule == "interleaved-1f1b" and shape.group in {None, shape.pp}
    return shape.pp == 1 or shape.schedule in SINGLE or looped


def torch_group(pp: int, micro_batches: int) -> int:
    """Micro-batches that torch's interleaved schedules pass through a chunk before the next chunk's turn.

    Raises:
        InvalidValueError: a number of micro-batches that torch refuses.
    """
    rounds = max(1, micro_batches // pp)
    if micro_batches % rounds:
        raise InvalidValueError(
            f"{micro_batches} micro-batches on {pp} pipeline ranks", hint=f"torch wants a multiple of {rounds} rounds"
        )
    return micro_batches // rounds


def shapes_of(schedules: Sequence[str], pp: IntArray, vpp: IntArray, micro_batches: IntArray) -> list[tuple[Shape, IntArray]]:
    """Distinct shapes of some plans, and which plans have each.

    Args:
        schedules: schedule of each plan.
        pp: pipeline ranks, [plans].
        vpp: chunks a rank, [plans].
        micro_batches: micro-batches, [plans].
    """
    known = sorted(set(schedules))
    index = np.array([known.index(schedule) for schedule in schedules], dtype=np.int64)
    table = np.stack((index, pp, vpp, micro_batches), axis=1)
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    return [
        (Shape(schedule=known[row[0]], pp=row[1], vpp=row[2], micro_batches=row[3]), np.flatnonzero(which.reshape(-1) == at))
        for at, row in enumerate(distinct.tolist())
    ]
