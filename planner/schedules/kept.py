"""Micro-batches kept at the peak, in closed form; equal to what the simulation keeps (`memory`).

`peak_sum` is the most that rank r keeps of all its chunks at once, `peak_chunks` the most of each chunk (the peaks of two
chunks need not fall together), `peak_waiting` the most of which only the weight gradient is still to be done. With M
micro-batches, groups of g, w = 2·(pp − r − 1) + (vpp − 1)·g forward passes first (one more where passes run together) and

    n(k, c) = ⌊k / (g·vpp)⌋·g + min(max(k mod (g·vpp) − c·g, 0), g)      passes of chunk c among the first k forward passes

                 sum of rank r                      chunk c of rank r                          waiting
    GPipe        M                                  M                                          0
    1F1B         min(M, pp − r)                     the same                                   0
    interleaved  min(w + 1, M·vpp)                  n(min(w + 1 + (vpp − 1 − c)·g, M·vpp), c)   0          M a multiple of g
    ZB-H1        min(M, pp)                         the same                                   min(M, r + 1)
      its loops  min(pp + (vpp − 1)·g, M·vpp)       n(min(pp + (2·vpp − 2 − c)·g, M·vpp), c)   min(M·vpp, r + 1)  as above
    ZB-V         min(M + min(M, r + 1), 2·pp)       min(M, 2·pp − r), min(M, r + 1)            2·r + 1    M >= 2·pp − 1
    DualPipe-V   2·pp + 1                           2·pp − r, r + 1                            r + 1

The conditions on the right are those of the columns for chunks of interleaved 1F1B and of weight gradients of ZB-V.
"""

from __future__ import annotations

import numpy as np

from shardwright.errors import InvalidValueError
from shardwright.planner.plans import IntArray
from shardwright.planner.schedules.shape import LOOPED, Shape


def peak_sum(shape: Shape) -> IntArray:
    """Most chunks of micro-batches that each rank keeps at once, [pp]."""
    if shape.schedule in LOOPED:
        return np.asarray(np.minimum(_lead(shape), shape.micro_batches * shape.vpp))
    sums = np.asarray(peak_chunks(shape).sum(axis=1))
    return np.minimum(sums, 2 * shape.pp) if shape.schedule == "zb-v" else sums


def peak_chunks(shape: Shape) -> IntArray:
    """Most micro-batches that each rank keeps of each of its chunks, [pp, vpp].

    Raises:
        InvalidValueError: interleaved micro-batches that do not fill their groups, which have no closed form.
    """
    count, pp, rank = shape.micro_batches, shape.pp, np.arange(shape.pp)
    if shape.schedule in LOOPED:
        return _looped(shape)
    columns = {
        "gpipe": (np.full(pp, count),),
        "1f1b": (pp - rank,),
        "zb-h1": (np.full(pp, pp),),
        "zb-v": (2 * pp - rank, rank + 1),
        "dualpipe-v": (2 * pp - rank, rank + 1),
    }
    return np.asarray(np.minimum(np.stack(columns[shape.schedule], axis=1), count))


def peak_waiting(shape: Shape) -> IntArray:
    """Most chunks of micro-batches of each rank of which only the weight gradient is still to be done, [pp].

    Raises:
        InvalidValueError: ZB-V with fewer than 2·pp − 1 micro-batches, for which there is no closed form.
    """
    rank = np.arange(shape.pp)
    if shape.schedule == "zb-v" and shape.micro_batches < 2 * shape.pp - 1:
        raise _no_form(shape, f"{2 * shape.pp - 1} micro-batches or more")
    lagging = np.minimum(shape.micro_batches * shape.vpp, rank + 1)
    forms = {"zb-h1": lagging, "interleaved-zb": lagging, "zb-v": 2 * rank + 1, "dualpipe-v": rank + 1}
    return forms.get(shape.schedule, 0 * rank)


def _no_form(shape: Shape, needed: str) -> InvalidValueError:
    made = f"no closed form of what {shape.schedule} keeps of {shape.micro_batches} micro-batches"
    return InvalidValueError(made, hint=f"give {needed}, or count by memory.live")


def _lead(shape: Shape) -> IntArray:
    """Forward passes of each rank by when its first last gradient is done."""
    behind = shape.pp - 1 - np.arange(shape.pp)
    first = 2 * behind + 1 + int(shape.paired) if shape.schedule == "interleaved-1f1b" else 0 * behind + shape.pp
    return first + (shape.vpp - 1) * (shape.group or shape.pp)


def _looped(shape: Shape) -> IntArray:
    group, passes = shape.group or shape.pp, shape.micro_batches * shape.vpp
    if shape.micro_batches % group:
        raise _no_form(shape, f"a multiple of {group}")
    chunk = np.arange(shape.vpp)
    done = np.minimum(_lead(shape)[:, None] + (shape.vpp - 1 - chunk) * group, passes)
    turns, rest = np.divmod(done, group * shape.vpp)
    return np.asarray(turns * group + np.clip(rest - chunk * group, 0, group))
