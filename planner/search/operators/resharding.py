"""Time to bring a tensor from the layout in which it was written to one in which it is read, and its gradient back.

Axis by axis, with b the bytes on a rank at that moment and n the ranks of the axis:

    S → R    all-gather of n·b           P → R    all-reduce of b            S → S'   all-to-all of b
    R → S    a slice, nothing sent       P → S    reduce-scatter of b        equal    nothing

The gradient goes the other way: from what the consumer gives (`layouts.gradient_read`) to what the producer wants
(`gradient_written`). Axes are taken in the order that is fastest; where all of them do the same, they may also do it together
as one group. Gathers before a product, and scatters after one, overlap with it as far as the stack does so (`Exposed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.operators.layouts import (
    PARTIAL,
    WHOLE,
    Codes,
    as_read,
    divisor,
    gradient_read,
    gradient_written,
)
from shardwright.planner.search.operators.mesh import MeshLinks

Floats = NDArray[np.float64]

STAY, SLICE, GATHER, SCATTER, REDUCE, EXCHANGE = range(6)
KINDS = {GATHER: "all_gather", SCATTER: "reduce_scatter", REDUCE: "all_reduce", EXCHANGE: "all_to_all"}
WORDS = ("-", "slice", "all-gather", "reduce-scatter", "all-reduce", "all-to-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """Times between layouts of one tensor, [written layouts, read layouts].

    Attributes:
        forward_s: of the tensor.
        backward_s: of its gradient.
        again_s: of the part of the forward time that gathers, which a backward pass may need once more.
    """

    forward_s: Floats
    backward_s: Floats
    again_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Shares of gathers and scatters that computing does not hide: 1 where no product stands beside them."""

    gather: float = 1.0
    scatter: float = 1.0


def reshard(
    links: MeshLinks, whole_bytes: float, written: Codes, read: Codes, *, before: float = 1.0, after: float = 1.0
) -> Resharding:
    """Times between all layouts of a tensor.

    Args:
        links: the mesh.
        whole_bytes: of the tensor, not divided.
        written: layouts of its producer, [P, axes].
        read: layouts of its consumers, [Q, axes].
        before: share of what is moved beside the consumer that it does not hide.
        after: share of what is moved beside the producer that it does not hide.
    """
    sources, targets = _pairs(written, as_read(read))
    forward = _moved(links, whole_bytes, sources, targets, Exposed(gather=before, scatter=after))
    back = _moved(links, whole_bytes, *_pairs_back(written, read), Exposed(gather=after, scatter=before))
    gathers = np.where((moves(sources, targets) == GATHER).any(axis=-1), forward, 0.0)
    return Resharding(forward_s=forward, backward_s=back, again_s=gathers)


def moves(source: Codes, target: Codes) -> NDArray[np.int8]:
    """What each axis does, codes of `WORDS`, for layouts of one shape [..., axes]."""
    made = np.full(source.shape, STAY, dtype=np.int8)
    divided, wanted = source >= 0, target >= 0
    made[(source == WHOLE) & wanted] = SLICE
    made[divided & (target == WHOLE)] = GATHER
    made[(source == PARTIAL) & wanted] = SCATTER
    made[(source == PARTIAL) & (target == WHOLE)] = REDUCE
    made[divided & wanted & (source != target)] = EXCHANGE
    return made


def _pairs(sources: Codes, targets: Codes) -> tuple[Codes, Codes]:
    shape = (len(sources), len(targets), sources.shape[1])
    return np.broadcast_to(sources[:, None], shape), np.broadcast_to(targets[None], shape)


def _pairs_back(written: Codes, read: Codes) -> tuple[Codes, Codes]:
    wanted, given = _pairs(gradient_written(written), gradient_read(read))
    return given, wanted


def _moved(links: MeshLinks, whole_bytes: float, source: Codes, target: Codes, exposed: Exposed) -> Floats:
    """Seconds of the fastest order of axes, [P, Q]."""
    step = moves(source, target)
    held = whole_bytes / divisor(source, links.sizes)
    orders = list(permutations(range(source.shape[-1])))
    messages = np.stack([_messages(order, step, held, links.sizes) for order in orders])
    seconds = _priced(links, np.broadcast_to(step, messages.shape), messages, exposed)
    best = seconds.sum(axis=-1).min(axis=0)
    return np.asarray(np.minimum(best, _as_one(links, step, held, exposed)))


def _messages(order: tuple[int, ...], step: NDArray[np.int8], held: Floats, sizes: tuple[int, ...]) -> Floats:
    """Message of each axis as nccl-tests counts, when axes are taken in an order, [P, Q, axes]."""
    made, now = np.zeros(step.shape), held.copy()
    for axis in order:
        kind, ranks = step[..., axis], float(sizes[axis])
        made[..., axis] = np.where(kind == GATHER, now * ranks, now)
        now = np.where(kind == GATHER, now * ranks, np.where((kind == SCATTER) | (kind == SLICE), now / ranks, now))
    return made


def _priced(links: MeshLinks, step: NDArray[np.int8], messages: Floats, exposed: Exposed) -> Floats:
    seconds = np.zeros(messages.shape)
    axis = np.broadcast_to(np.arange(messages.shape[-1]), messages.shape)
    for kind, name in KINDS.items():
        rows = step == kind
        share = {GATHER: exposed.gather, SCATTER: exposed.scatter}.get(kind, 1.0)
        seconds[rows] = share * links.seconds(name, axis[rows], messages[rows])
    return seconds


def _as_one(links: MeshLinks, step: NDArray[np.int8], held: Floats, exposed: Exposed) -> Floats:
    """Seconds where all axes do the same and do it as one group; infinite elsewhere, [P, Q]."""
    best = np.full(held.shape, np.inf)
    axes = tuple(range(step.shape[-1]))
    for kind in (GATHER, SCATTER, REDUCE):
        rows = (step == kind).all(axis=-1)
        if len(axes) > 1 and rows.any():
            ranks = float(np.prod(links.sizes)) if kind == GATHER else 1.0
            share = {GATHER: exposed.gather, SCATTER: exposed.scatter}.get(kind, 1.0)
            best[rows] = share * links.together(KINDS[kind], axes, held[rows] * ranks)
    return best
