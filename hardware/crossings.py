"""What the groups of an axis send through the cables that lead out of a place (a leaf, a pod, a rack) all at once.

With R_p the one-way rate out of place p (`network_levels`), a collective of S bytes whose rings send c(n)·S at every hop takes

    rings        c(n)·S · max over p of X_p / R_p       X_p: hops that leave p, over the rings of all groups together
    all-to-all       S · max over p of E_p / R_p        E_p: Σ over groups of k·(n - k)/n, k of its n ranks inside p
    pairs            S · max over p of P_p / R_p        P_p: pairs (x, x + distance) of which one end is in p

at least on those cables; the maximum is taken over the places of all levels. Rings go round the ranks of a group in rank
order, as NCCL's go round nodes. Hops inside an island (a node, or a scale-up domain that spans nodes) leave nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.network_levels import Level

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The narrowest cables that an axis uses.

    Attributes:
        place: what they lead out of, such as ``leaf3``; empty where nothing is crossed.
        ring_s_per_byte: seconds for each byte that a ring (a pair) sends at a hop.
        exchange_s_per_byte: seconds for each byte of a rank's buffer in an all-to-all.
    """

    place: str = ""
    ring_s_per_byte: float = 0.0
    exchange_s_per_byte: float = 0.0


NOTHING = Crossing()
"""Of groups that stay on one island, and of networks that nothing is known of."""


def group_crossing(levels: Sequence[Level], node: Ints, island: Ints, size: int, stride: int) -> Crossing:
    """What the groups of `size` ranks at distance `stride` cross.

    Args:
        levels: of the cluster.
        node: of each rank, whole blocks of size · stride of them, [ranks].
        island: of each rank, [ranks].
        size: ranks of a group.
        stride: distance of its ranks.
    """
    nodes, islands = (_along(place, size, stride) for place in (node, island))
    apart = islands != np.roll(islands, -1, axis=1)
    return _narrowest([(level, _ring_load(level, nodes, apart), _exchange_load(level, nodes, size)) for level in levels])


def pair_crossing(levels: Sequence[Level], node: Ints, island: Ints, distance: int) -> Crossing:
    """What all pairs of ranks at a distance cross at once; arguments as of `group_crossing`."""
    low, high = slice(None, len(node) - distance), slice(distance, None)
    apart = island[low] != island[high]
    found = []
    for level in levels:
        one, other = level.place[node[low]], level.place[node[high]]
        crossing = apart & (one != other)
        sent = np.bincount(one[crossing], minlength=len(level.labels))
        received = np.bincount(other[crossing], minlength=len(level.labels))
        load = np.maximum(sent, received)
        found.append((level, load, load))
    return _narrowest(found)


def _along(place: Ints, size: int, stride: int) -> Ints:
    return place.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)


def _ring_load(level: Level, nodes: Ints, apart: NDArray[np.bool_]) -> NDArray[np.float64]:
    """X_p: hops that leave each place, [places]."""
    places = level.place[nodes]
    leaving = apart & (places != np.roll(places, -1, axis=1))
    return np.bincount(places[leaving], minlength=len(level.labels)).astype(np.float64)


def _exchange_load(level: Level, nodes: Ints, size: int) -> NDArray[np.float64]:
    """E_p of each place, [places]."""
    count = len(level.labels)
    code = np.arange(len(nodes))[:, None] * count + level.place[nodes]
    found, inside = np.unique(code, return_counts=True)
    return np.bincount(found % count, weights=inside * (size - inside) / size, minlength=count).astype(np.float64)


def _narrowest(loads: Sequence[tuple[Level, NDArray[np.float64], NDArray[np.float64]]]) -> Crossing:
    """The place that takes longest, and for each kind the longest of all places."""
    worst, place, exchange = 0.0, "", 0.0
    for level, ring, every in loads:
        seconds = ring / level.bytes_per_s
        if seconds.max() > worst:
            worst, place = float(seconds.max()), level.labels[int(seconds.argmax())]
        exchange = max(exchange, float((every / level.bytes_per_s).max()))
    return Crossing(place=place, ring_s_per_byte=worst, exchange_s_per_byte=exchange)
