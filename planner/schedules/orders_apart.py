"""Orders with input and weight gradients apart: ZB-H1, its interleaved form, ZB-V and DualPipe-V.

ZB-H1 (arXiv 2401.10241 section 2.3; torch's `ScheduleInterleavedZeroBubble` with one stage a rank) is 1F1B whose rank r keeps
its weight gradients r passes behind, so that no rank keeps more micro-batches than the first one does. torch's schedule does
the same with several chunks a rank. With w = pp − r − 1 + (vpp − 1)·group, n = M·vpp and every F, I, W counted from 0, the
places on rank r are

    F_k    k + max(0, k − w) + max(0, k − w − r)
    I_j    j + min(n, w + j + 1) + max(0, j − r)
    W_j    after I_(j+r), at 2·n + j once those are done

ZB-V (section 5 there; torch's `ScheduleZBVZeroBubble`) and DualPipe-V (github.com/deepseek-ai/DualPipe; torch's
`ScheduleDualPipeV`) fold the stages: rank r holds chunk 0, stage r, and chunk 1, stage 2·pp − 1 − r. Their orders are written
as words, a letter for the phase and a digit for the chunk, each repeated as often as said; `numbered` counts micro-batches
upwards for every letter and chunk. `W` without a digit is the weight gradient that has waited longest. DualPipe-V may run the
forward pass of one chunk together with the backward pass of the other, written `F0+B1` (`Order.paired`).
"""

from __future__ import annotations

import numpy as np

from shardwright.errors import InvalidValueError
from shardwright.planner.plans import IntArray
from shardwright.planner.schedules.orders import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Order,
    from_lists,
    require,
    turns,
    whole_groups,
)

LETTERS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
Words = list[tuple[str, int]]
OLDEST = -1
"""Chunk of a weight gradient that is whichever has waited longest."""


def zb_h1_order(pp: int, micro_batches: int) -> Order:
    """1F1B with the weight gradients of rank r kept r micro-batches behind."""
    return _lagging(pp, 1, micro_batches, micro_batches)


def interleaved_zb_order(pp: int, vpp: int, micro_batches: int, group: int | None = None) -> Order:
    """ZB-H1 with several chunks a rank.

    Args:
        pp: pipeline ranks.
        vpp: chunks a rank.
        micro_batches: micro-batches.
        group: micro-batches that pass a chunk before the next chunk's turn; pp where none is given.

    Raises:
        InvalidValueError: counts below 1, or groups with which the pipeline would wait for itself.
    """
    return _lagging(pp, vpp, micro_batches, whole_groups(pp, vpp, micro_batches, group))


def _lagging(pp: int, vpp: int, micro_batches: int, group: int) -> Order:
    require(pp, vpp, micro_batches)
    count = micro_batches * vpp
    step, rank = np.arange(count)[None, :], np.arange(pp)[:, None]
    warm_up = np.minimum(pp - 1 - rank + (vpp - 1) * group, count)
    forward = step + np.maximum(0, step - warm_up) + np.maximum(0, step - warm_up - rank)
    backward = step + np.minimum(count, warm_up + step + 1) + np.maximum(0, step - rank)
    behind = step + rank
    follows = behind + np.minimum(count, warm_up + behind + 1) + step + 1
    weight = np.where(behind < count, follows, 2 * count + step)
    phase, stage, batch = (np.zeros((pp, 3 * count), dtype=np.int64) for _ in range(3))
    chunk, micro_batch = turns(vpp, micro_batches, group)
    for place, kind, of in ((forward, FORWARD, chunk), (backward, INPUT, vpp - 1 - chunk), (weight, WEIGHT, vpp - 1 - chunk)):
        phase[rank, place] = kind
        stage[rank, place] = of * pp + rank
        batch[rank, place] = micro_batch
    return Order(pp=pp, vpp=vpp, micro_batches=micro_batches, folded=False, phase=phase, stage=stage, micro_batch=batch)


def zb_v_order(pp: int, micro_batches: int) -> Order:
    """ZB-V; with fewer than 2·pp − 1 micro-batches, the order for so many without those that are not there."""
    require(pp, 2, micro_batches)
    count = max(2 * pp - 1, micro_batches)
    ranks = [numbered(_zb_v(pp, rank, count), micro_batches) for rank in range(pp)]
    return from_lists(pp, 2, micro_batches, ranks)


def _zb_v(pp: int, rank: int, count: int) -> Words:
    full = count - (2 * pp - rank - 1)
    return [
        ("F0", 2 * (pp - rank) - 1),
        ("F1 F0", rank),
        ("F1 I1 W1", pp - rank),
        ("F0 I0 W0 F1 I1 W1", full),
        ("I0 W0 F1 I1 W1", count - pp - full),
        ("I0 I1", rank),
        ("I0 W0", pp - rank),
        ("W1", rank),
        ("W0", rank),
    ]


def dualpipe_v_order(pp: int, micro_batches: int) -> Order:
    """DualPipe-V.

    Raises:
        InvalidValueError: fewer than 2·pp micro-batches.
    """
    require(pp, 2, micro_batches)
    if micro_batches < 2 * pp:
        raise InvalidValueError(
            f"DualPipe-V with {micro_batches} micro-batches on {pp} ranks", hint=f"it needs {2 * pp} micro-batches or more"
        )
    ranks = [numbered(_dualpipe_v(pp, rank, micro_batches), micro_batches) for rank in range(pp)]
    return from_lists(pp, 2, micro_batches, ranks)


def _dualpipe_v(pp: int, rank: int, micro_batches: int) -> Words:
    after = pp - rank - 1
    half = (rank + 1) // 2
    whole = [("B1 B0", half)] if rank % 2 else [("B1 B0", half), ("B1 I0", 1)]
    apart = rank + 1 - half - (0 if rank % 2 else 1)
    main = micro_batches - 2 * pp + rank + 1
    return [
        ("F0", 2 * after),
        ("F0 F1", rank + 1),
        ("I1 W F1", after),
        *([("F0 B1 F1+B0", 1), ("F0+B1 F1+B0", main - 1)] if after == 0 else [("F0+B1 F1+B0", main)]),
        ("B1 F1+B0", after),
        *whole,
        ("I1 I0", apart),
        ("W I0", after),
        ("W", rank + 1),
    ]


def numbered(words: Words, micro_batches: int) -> IntArray:
    """Operations of a rank, as `orders.from_lists` reads them; micro-batches that are not there are left out.

    Args:
        words: operations of a rank, and how often each group of them is repeated.
        micro_batches: micro-batches there are.
    """
    phase, chunk, pairs = np.concatenate([np.tile(_spelled(group), max(times, 0)) for group, times in words], axis=1)
    counted, micro_batch = np.where(phase == BACKWARD, INPUT, phase), np.zeros_like(phase)
    for kind in (FORWARD, INPUT, WEIGHT):
        for own in (0, 1):
            at = np.flatnonzero((counted == kind) & (chunk == own))
            micro_batch[at] = np.arange(len(at))
    late = np.flatnonzero(chunk == OLDEST)
    first = np.flatnonzero(phase == INPUT)[: len(late)]
    chunk[late], micro_batch[late] = chunk[first], micro_batch[first]
    return np.asarray(np.stack((phase, chunk, micro_batch, pairs), axis=1)[micro_batch < micro_batches])


def _spelled(group: str) -> IntArray:
    """Phase, chunk, and whether it runs together with the next, of each word of a group, [3, words]."""
    words = [(word[:2], word.endswith("+")) for word in group.replace("+", "+ ").split()]
    return np.array([(LETTERS[word[0]], int(word[1]) if word[1:] else OLDEST, pairs) for word, pairs in words]).T
