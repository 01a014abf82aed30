"""Parameters at rest: where they are held, what their gradients and gathers cost, by one level an axis.

On an axis that does not divide a parameter while it is used, the parameter (p bytes an element), its gradient (g) and its
optimizer states (o) may be

    replicated    gradients all-reduced                                               (once a step)
    states        gradients reduce-scattered, updated parameters all-gathered         (once a step)   o / n
    fully         parameters all-gathered for each pass, gradients reduce-scattered   (every pass)    p, g, o / n

(ZeRO 0, 1 and 3 of arXiv 1910.02054, operator by operator and axis by axis). Gradients need a reduction only on axes where
ranks saw different data (`layouts.BROADCAST`); where all did the same work, they hold the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.operators.layouts import BROADCAST, Codes
from shardwright.planner.search.operators.mesh import MeshLinks

Floats = NDArray[np.float64]

REPLICATED, STATES, FULLY, DIVIDED = 0, 1, 2, -1
LEVELS = {"replicated": REPLICATED, "states": STATES, "fully": FULLY}
LEVEL_WORDS = ("replicated", "states sharded", "sharded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What parameters take by level, arrays [options].

    Attributes:
        levels: level of each axis, `DIVIDED` where the axis divides the parameter already, [options, axes].
        strategy: row of the strategy each option belongs to.
        states_bytes: parameters, gradients and optimizer states.
        gathered_bytes: what a pass gathers and does not keep.
        gather_s: gathers of one pass.
        gather_once_s: gathers of updated parameters, once a step.
        reduce_s: reductions of every backward pass.
        reduce_once_s: reductions once a step.
        update_bytes: memory traffic of the update.
    """

    levels: NDArray[np.int8]
    strategy: NDArray[np.int64]
    states_bytes: Floats
    gathered_bytes: Floats
    gather_s: Floats
    gather_once_s: Floats
    reduce_s: Floats
    reduce_once_s: Floats
    update_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """Bytes of states and how they are sent.

    Attributes:
        parameter_bytes, gradient_bytes, optimizer_bytes: an element.
        held_gradient_bytes: of gradients kept, an element.
        doubled_bytes: that fully sharded parameters hold less, an element.
        sharded_traffic, traffic: memory traffic of the update, bytes an element of sharded states and of parameters.
        bucket_bytes: of a message of many parameters.
        levels: levels that each axis allows.
    """

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    held_gradient_bytes: float
    doubled_bytes: float
    sharded_traffic: float
    traffic: float
    bucket_bytes: float
    levels: tuple[tuple[int, ...], ...]


def held(links: MeshLinks, codes: Codes, elements: Floats, trained: Floats, facts: StateFacts) -> Held:
    """All levels of the parameters of an operator.

    Args:
        links: the mesh.
        codes: layout in which parameters are used, the worst of them an axis, [strategies, axes].
        elements: of all its parameters on a rank while they are used, [strategies].
        trained: those of them that are trained, [strategies].
        facts: bytes, and levels allowed.
    """
    rows = [(at, levels) for at in range(len(codes)) for levels in _options(codes[at], elements[at] > 0, links, facts)]
    strategy = np.array([at for at, _ in rows], dtype=np.int64)
    levels = np.array([options for _, options in rows], dtype=np.int8).reshape(len(rows), codes.shape[1])
    seen = (codes[strategy] == BROADCAST) & (np.asarray(links.sizes) > 1)
    size = np.asarray(links.sizes, dtype=np.float64)
    whole, own = elements[strategy], trained[strategy]
    fully = np.where(levels == FULLY, size, 1.0).prod(axis=1)
    sharded = np.where(levels >= STATES, size, 1.0).prod(axis=1)
    held_bytes = facts.held_gradient_bytes - facts.doubled_bytes * (fully > 1)
    states = facts.parameter_bytes * whole / fully + held_bytes * own / fully
    kinds, kind = np.unique(np.concatenate([levels, seen.astype(np.int8)], axis=1), axis=0, return_inverse=True)
    each = [_exchange(links, tuple(row[: len(size)]), tuple(row[len(size) :] > 0), facts) for row in kinds]
    gather, once, reduce, reduce_once = np.array(each).reshape(len(kinds), 4)[kind.reshape(-1)].T
    return Held(
        levels=levels,
        strategy=strategy,
        states_bytes=states + facts.optimizer_bytes * own / sharded,
        gathered_bytes=np.where(fully > 1, facts.parameter_bytes * whole + facts.gradient_bytes * own, 0.0),
        gather_s=gather * whole,
        gather_once_s=once * own,
        reduce_s=reduce * own,
        reduce_once_s=reduce_once * own,
        update_bytes=facts.sharded_traffic * own / sharded + facts.traffic * own / fully,
    )


def _options(codes: NDArray[np.int8], present: bool, links: MeshLinks, facts: StateFacts) -> list[tuple[int, ...]]:
    each = [
        (DIVIDED,) if code >= 0 or ranks == 1 or not present else levels
        for code, ranks, levels in zip(codes, links.sizes, facts.levels, strict=True)
    ]
    return list(product(*each))


def _exchange(
    links: MeshLinks, levels: tuple[int, ...], seen: tuple[bool, ...], facts: StateFacts
) -> tuple[float, float, float, float]:
    """Seconds an element: gathers of a pass, once a step, reductions of a pass, once a step."""
    fully = tuple(a for a, level in enumerate(levels) if level == FULLY)
    states = tuple(a for a, level in enumerate(levels) if level == STATES)
    gather = _rate(links, "all_gather", fully, facts) * facts.parameter_bytes
    share = float(np.prod([links.sizes[a] for a in fully], initial=1))
    once = _rate(links, "all_gather", states, facts) * facts.parameter_bytes / share
    scattered = tuple(a for a in fully if seen[a])
    reduce = _rate(links, "reduce_scatter", scattered, facts) * facts.gradient_bytes
    later = tuple(a for a in states if seen[a])
    reduce_once = _rate(links, "reduce_scatter", later, facts) * facts.gradient_bytes / share
    left = tuple(a for a, level in enumerate(levels) if level == REPLICATED and seen[a])
    share *= float(np.prod([links.sizes[a] for a in states], initial=1))
    reduce_once += _rate(links, "all_reduce", left, facts) * facts.gradient_bytes / share
    return gather, once, reduce, reduce_once


def _rate(links: MeshLinks, kind: str, axes: tuple[int, ...], facts: StateFacts) -> float:
    return links.rate(kind, axes, facts.bucket_bytes) if axes else 0.0
