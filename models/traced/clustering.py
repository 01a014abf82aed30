"""Operators to layers: runs of equal blocks, and balanced clusters with small cuts for the rest.

What is no run is divided as Alpa does (arXiv 2201.12023 section 5.2, equation 6): into L clusters of neighbouring operators
of at most (1 + delta) of the mean FLOPs each, such that the largest cut between two clusters is least; among those with that
cut the one with the least sum of squared FLOPs. With c_i the bytes that pass over position i and F the FLOPs before it,

    threshold    least t such that clusters within the limit exist whose borders have c_i <= t       `_threshold`
    clusters     min sum (F_k - F_i)^2 over borders with c_i <= t, by dynamic programming            `_balanced`

`divide` joins both: what stands before the first run is the embedding where it computes little, what stands after the last the
head; a graph whose runs hold less than half of its FLOPs is clusters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.models.traced.operators import Draft
from shardwright.models.traced.repeats import Run

SLACK = 0.5
"""Alpa's delta: a cluster may have half more than the mean."""
MAX_CLUSTERS = 16
MAX_PLACES = 2000
"""Borders that are tried; of more, evenly many are left out."""
COVERED = 0.5
"""Runs that hold less than this share of the FLOPs (a single product behind them left out) do not make the layers."""
SMALL, LARGE = 0.5, 1.5
"""A stretch of less than half a block is no layer of its own, one of more than one and a half is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Borders of layers.

    Attributes:
        layers: first operator and the one behind the last, of each layer.
        embedding: operators before the first layer.
        head: operators behind the last.
    """

    layers: tuple[tuple[int, int], ...]
    embedding: tuple[int, int]
    head: tuple[int, int]


def cut_bytes(drafts: Sequence[Draft], sizes: dict[str, float]) -> np.ndarray:
    """Bytes that pass over each position: of tensors made before it (or fed) and read at or behind it.

    Args:
        drafts: operators in order.
        sizes: bytes of each tensor.
    """
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        for part in draft.inputs:
            last[part.name] = index
        for part in draft.outputs:
            made.setdefault(part.name, index)
    steps = np.zeros(len(drafts) + 2)
    for name, until in last.items():
        first = made.get(name)
        if first is not None and until > first:
            steps[first + 1] += sizes[name]
            steps[until + 1] -= sizes[name]
    return np.cumsum(steps)[: len(drafts) + 1]


def divide(flops: Sequence[int], cuts: np.ndarray, runs: Sequence[Run]) -> Division:
    """The layers of a graph.

    Args:
        flops: of the operators.
        cuts: bytes that pass over each position.
        runs: stretches of equal blocks.
    """
    work = np.concatenate(([0.0], np.cumsum(np.asarray(flops, dtype=np.float64))))
    count = len(flops)
    if sum(float(work[run.end] - work[run.start]) for run in runs) < COVERED * (work[count] - _lone_head(flops, runs)):
        runs = ()
    if not runs:
        products = int(np.count_nonzero(flops))
        whole = clusters(work, cuts, 0, count, max(1, min(MAX_CLUSTERS, products)))
        return Division(layers=tuple(whole), embedding=(0, 0), head=(count, count))
    block = float(np.median([work[run.start + run.period] - work[run.start] for run in runs for _ in range(run.count)]))
    first, last = runs[0].start, runs[-1].end
    embedded = work[first] <= SMALL * block
    headed = work[count] - work[last] <= LARGE * block or int(np.count_nonzero(flops[last:])) <= 1
    layers: list[tuple[int, int]] = [] if embedded else _stretch(work, cuts, 0, first, block)
    for index, run in enumerate(runs):
        layers += [(run.start + i * run.period, run.start + (i + 1) * run.period) for i in range(run.count)]
        until = runs[index + 1].start if index + 1 < len(runs) else last
        layers = _joined(layers, _stretch(work, cuts, run.end, until, block), work, block)
    if not headed:
        layers = _joined(layers, _stretch(work, cuts, last, count, block), work, block)
    return Division(layers=tuple(layers), embedding=(0, first if embedded else 0), head=(last if headed else count, count))


def _lone_head(flops: Sequence[int], runs: Sequence[Run]) -> float:
    """FLOPs of the one product behind the last run, if it is one: the output over a vocabulary, however large."""
    behind = [each for each in flops[runs[-1].end :] if each] if runs else []
    return float(behind[0]) if len(behind) == 1 else 0.0


def clusters(work: np.ndarray, cuts: np.ndarray, low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Operators low to high in `count` balanced clusters with small cuts."""
    if count <= 1 or high - low <= count:
        return [(low, high)] if high > low else []
    own, total = np.diff(work[low : high + 1]), float(work[high] - work[low])
    limit = max((1 + SLACK) * total / count, float(own.max()))
    inside = work[low : high + 1], cuts[low : high + 1]
    while _fewest(*inside, float(cuts.max()), limit) > count:
        limit *= 1 + SLACK / 2
    threshold = _threshold(*inside, limit, count)
    inner = [i for i in range(low + 1, high) if cuts[i] <= threshold]
    inner = inner[:: len(inner) // MAX_PLACES + 1]
    borders = _balanced(work, [low, *inner, high], count, limit)
    return list(pairwise(borders))


def _stretch(work: np.ndarray, cuts: np.ndarray, low: int, high: int, block: float) -> list[tuple[int, int]]:
    """What is no run, in clusters about as large as a block."""
    if high <= low:
        return []
    ratio = float(work[high] - work[low]) / block if block else 1.0
    return clusters(work, cuts, low, high, int(min(MAX_CLUSTERS, max(1, round(ratio)))) if ratio > LARGE else 1)


def _joined(
    layers: list[tuple[int, int]], more: list[tuple[int, int]], work: np.ndarray, block: float
) -> list[tuple[int, int]]:
    """Layers and what follows them; a small stretch becomes a part of the layer before it."""
    if len(more) == 1 and layers and work[more[0][1]] - work[more[0][0]] < SMALL * block:
        return [*layers[:-1], (layers[-1][0], more[0][1])]
    return [*layers, *more]


def _threshold(work: np.ndarray, cuts: np.ndarray, limit: float, count: int) -> float:
    """The least cut with which at most `count` clusters keep the limit."""
    values = np.unique(cuts[1:-1])
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if _fewest(work, cuts, float(values[middle]), limit) <= count:
            high = middle
        else:
            low = middle + 1
    return float(values[low])


def _fewest(work: np.ndarray, cuts: np.ndarray, threshold: float, limit: float) -> int:
    """The fewest clusters within the limit whose borders have at most the threshold; many where there are none."""
    borders = [0, *(i for i in range(1, len(cuts) - 1) if cuts[i] <= threshold), len(cuts) - 1]
    made, start, previous = 1, 0, 0
    for border in borders[1:]:
        if work[border] - work[start] > limit:
            if previous == start or work[border] - work[previous] > limit:
                return len(cuts)
            start, made = previous, made + 1
        previous = border
    return made


def _balanced(work: np.ndarray, places: list[int], count: int, limit: float) -> list[int]:
    """The borders of at most `count` clusters between the places with the least sum of squared FLOPs."""
    at = work[places]
    square = np.square(np.maximum(at[None, :] - at[:, None], 0.0))
    square[np.tril_indices(len(places))] = np.inf
    square[(at[None, :] - at[:, None]) > limit * (1 + 1e-12)] = np.inf
    best, origins = square[0], []
    for _ in range(min(count, len(places) - 1) - 1):
        reached = best[:, None] + square
        origin = reached.argmin(axis=0)
        fewer = best <= reached[origin, np.arange(len(places))]
        origins.append(np.where(fewer, -1, origin))
        best = np.where(fewer, best, reached[origin, np.arange(len(places))])
    borders, place = [len(places) - 1], len(places) - 1
    for origin in reversed(origins):
        if origin[place] >= 0:
            place = int(origin[place])
            borders.append(place)
    return [places[0], *(places[i] for i in reversed(borders))]
