"""Narrow places of a cluster for a group of ranks, by maximum flow (Ford and Fulkerson 1956).

Two sets of ranks exchange at most the capacity of the least cut between them, the links by which the one side can be taken
from the other: scale-up links, the host path and NICs of nodes, ports and cables of switches.

    cut_between(A, B)   least cut between two sets of ranks
    bisection(R)        between two halves of a group that keep racks, pods, leaves and nodes together
    narrowest_cut(R)    of the cuts that take a leaf, a pod, a rack, a node or a scale-up domain of a group from its rest, the
                        one with the fewest bytes a second for each rank of the smaller side

The flow runs over a contracted graph (`contraction`), so that a cluster of thousands of nodes takes some dozens of vertices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import networkx
import numpy as np
from numpy.typing import NDArray

from shardwright.errors import InvalidValueError
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.contraction import SINK, SOURCE, flow_graph
from shardwright.hardware.groups import placed
from shardwright.hardware.network_levels import levels_of

Ints = NDArray[np.int64]
Sides = tuple[Ints, Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A least cut between two sets of ranks.

    Attributes:
        bytes_per_s: what passes from the one to the other, one way; infinite where no link on some way is known.
        ranks: ranks of the smaller side.
        links: what is cut, by name.
    """

    bytes_per_s: float
    ranks: int
    links: tuple[str, ...]

    @property
    def bytes_per_s_per_rank(self) -> float:
        """Of the smaller side."""
        return self.bytes_per_s / self.ranks


def cut_between(cluster: Cluster, one: Sequence[int] | Ints, other: Sequence[int] | Ints) -> Cut:
    """The least cut between two sets of ranks.

    Raises:
        InvalidValueError: an empty set, a rank in both, or one that the cluster has not.
    """
    first, second = (_checked(cluster, ranks) for ranks in (one, other))
    if np.intersect1d(first, second).size:
        raise InvalidValueError("a rank is on both sides of the cut", hint="give two sets without common ranks")
    graph = flow_graph(cluster, first, second)
    try:
        value, (inside, _) = networkx.minimum_cut(graph, SOURCE, SINK)
    except networkx.NetworkXUnbounded:
        return Cut(bytes_per_s=float("inf"), ranks=min(len(first), len(second)), links=())
    names = {data["link"] for a, b, data in graph.edges(data=True) if a in inside and b not in inside}
    return Cut(bytes_per_s=float(value), ranks=min(len(first), len(second)), links=tuple(sorted(names)))


def bisection(cluster: Cluster, ranks: Sequence[int] | Ints) -> Cut:
    """The cut between two halves of a group, split where the network is: racks, pods, leaves and nodes stay together.

    Raises:
        InvalidValueError: fewer than two ranks, or ranks that the cluster has not.
    """
    group = _several(cluster, ranks)
    node, domain, _, _ = placed(cluster)
    keys = [group, domain[group], node[group], *(level.place[node[group]] for level in levels_of(cluster))]
    ordered = group[np.lexsort(keys)]
    half = len(ordered) // 2
    return cut_between(cluster, ordered[:half], ordered[half:])


def narrowest_cut(cluster: Cluster, ranks: Sequence[int] | Ints) -> Cut:
    """The narrowest of the cuts that take one place of a group from its rest.

    Raises:
        InvalidValueError: fewer than two ranks, or ranks that the cluster has not.
    """
    cuts = [cut_between(cluster, *sides) for sides in _sides(cluster, _several(cluster, ranks))]
    return min(cuts, key=lambda cut: (cut.bytes_per_s_per_rank, -cut.ranks, cut.links))


def _sides(cluster: Cluster, group: Ints) -> Iterator[Sides]:
    """Each place of each level, node and domain against the rest of the group, alike ones once; and a single rank."""
    node, domain = (part[group] for part in placed(cluster)[:2])
    levels = levels_of(cluster)
    kind = np.repeat(np.arange(len(cluster.groups)), [g.gpus for g in cluster.groups])[group]
    plain = [(part, np.zeros(1 + part.max())) for part in (domain, node)]
    yield group[:1], group[1:]
    for part, rate in (*plain, *((level.place[node], level.bytes_per_s) for level in levels)):
        for one in _unlike(part, rate, node, domain, kind):
            inside = part == one
            if not inside.all():
                yield group[inside], group[~inside]


def _unlike(part: Ints, rate: NDArray[np.float64], node: Ints, domain: Ints, kind: Ints) -> Ints:
    """One of each sort of places: same rate, kinds of node, ranks, nodes and domains, and ranks on these nodes at all."""
    places, index, ranks = np.unique(part, return_inverse=True, return_counts=True)
    on_node = np.unique(node, return_inverse=True, return_counts=True)
    columns = [rate[places], ranks, *_spread(index, kind, len(places))]
    for other in (node, domain):
        pairs = np.unique(np.stack([index, other]), axis=1)
        columns.append(np.bincount(pairs[0], minlength=len(places)))
    columns.append(np.bincount(index, weights=on_node[2][on_node[1]], minlength=len(places)))
    return places[np.unique(np.stack(columns), axis=1, return_index=True)[1]]


def _spread(index: Ints, kind: Ints, places: int) -> tuple[Ints, Ints]:
    """Least and greatest kind of node in each place."""
    low, high = np.full(places, kind.max()), np.zeros(places, dtype=np.int64)
    np.minimum.at(low, index, kind)
    np.maximum.at(high, index, kind)
    return low, high


def _several(cluster: Cluster, ranks: Sequence[int] | Ints) -> Ints:
    group = _checked(cluster, ranks)
    if len(group) < 2:
        raise InvalidValueError("a group of one rank has no cut", hint="give two ranks or more")
    return group


def _checked(cluster: Cluster, ranks: Sequence[int] | Ints) -> Ints:
    group = np.unique(np.asarray(ranks, dtype=np.int64))
    if not len(group):
        raise InvalidValueError("a side of the cut is empty", hint="give at least one rank")
    if group[0] < 0 or group[-1] >= cluster.gpus:
        raise InvalidValueError(
            f"ranks {group[0]} to {group[-1]} are not all on {cluster.name}", hint=f"its ranks are 0 to {cluster.gpus - 1}"
        )
    return group
