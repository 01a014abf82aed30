"""How the groups of a mesh axis lie on a cluster: `group_shape` finds the worst one, exactly.

A group of size n and stride s holds the ranks b, b + s, ..., b + (n-1)·s. Ranks of a cluster lie in scale-up domains, in
nodes, and in *islands*, the larger of the two: what they exchange inside an island never touches the network. With r_i
ranks on island i of I, a collective moves (I-1)/I of its bytes over the network links of an island, of which the group
owns r_i shares, so its cost per byte is (I-1)/I / min_i r_i. The worst group has the largest such cost, then the most
domains, then the fewest ranks on a domain, then the most nodes.

`pair_shape` finds the worst pair of ranks at a distance, wherever it starts: stage 1 sends to stage 2 as 0 does to 1.

Where switches are known (`network_levels`), both also say what the groups of the axis, all at once, make the narrowest cables
between places carry (`crossings`).

`group_shape` walks the ranks of one period of the pattern (`_walked`) rather than all groups, counts runs of equal
island, domain and node along each group (`_runs`), and is cached by the layout of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import InvalidValueError
from shardwright.hardware import checks
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.crossings import NOTHING, Crossing, group_crossing, pair_crossing
from shardwright.hardware.network_levels import Level, levels_of

Ints = NDArray[np.int64]
Layout = tuple[tuple[int, int, int, int, int, tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """How the worst group of an axis lies on the cluster.

    Attributes:
        size: ranks of the group.
        stride: distance between them.
        domains: scale-up domains it touches.
        ranks_per_domain: fewest of its ranks on a domain it touches.
        nodes: nodes it touches.
        ranks_per_node: fewest of its ranks on a node it touches.
        islands: islands (the larger of node and domain) it touches; above 1, the network is used.
        ranks_per_island: fewest of its ranks on an island it touches.
        sockets: most sockets that its ranks on one node lie on, as far as the layout of nodes is known.
        crossing: what all groups of the axis send between places of the network at once.
    """

    size: int
    stride: int
    domains: int
    ranks_per_domain: int
    nodes: int
    ranks_per_node: int
    islands: int
    ranks_per_island: int
    sockets: int = 1
    crossing: Crossing = NOTHING


ALONE = GroupShape(size=1, stride=1, domains=1, ranks_per_domain=1, nodes=1, ranks_per_node=1, islands=1, ranks_per_island=1)
"""A rank by itself."""


def layout_of(cluster: Cluster) -> Layout:
    """What decides where ranks lie, of each group of nodes.

    Node id, nodes, usable GPUs, GPUs, GPUs of a domain, the island and the socket of each GPU; these two are empty where the
    layout of the node is not known.
    """
    kinds: dict[str, int] = {}
    return tuple(
        (
            *(kinds.setdefault(g.node.id, len(kinds)), g.count, g.gpus_per_node, g.node.gpus, g.node.scaleup_domain_gpus),
            _part_of(None if g.node.layout is None else g.node.layout.islands),
            _part_of(None if g.node.layout is None else g.node.layout.sockets),
        )
        for g in cluster.groups
    )


def _part_of(parts: Sequence[Sequence[int]] | None) -> tuple[int, ...]:
    """The part of each local GPU."""
    owner = {gpu: index for index, part in enumerate(parts or ()) for gpu in part}
    return tuple(owner[gpu] for gpu in range(len(owner)))


def group_shape(
    cluster: Cluster,
    size: int,
    stride: int,
    levels: Sequence[Level] | None = None,
    within: NDArray[np.bool_] | None = None,
) -> GroupShape:
    """The worst group of an axis of `size` ranks at distance `stride`, over all groups that fit on the cluster.

    Args:
        cluster: where the ranks run.
        size: ranks of a group.
        stride: distance of its ranks.
        levels: places of its network; found where not given, which takes long on large ones.
        within: ranks; the worst of the groups that lie on them whole counts, [GPUs]; there is one (`some_within`).

    Raises:
        InvalidValueError: size or stride below 1, or more ranks than the cluster has.
    """
    checks.whole("group size", size, 1, 2**40)
    checks.whole("group stride", stride, 1, 2**40)
    if size * stride > cluster.gpus:
        raise InvalidValueError(
            f"groups of {size} ranks at stride {stride} need {size * stride} GPUs; {cluster.name} has {cluster.gpus}",
            hint="use smaller degrees or a larger cluster",
        )
    layout, places = layout_of(cluster), levels_of(cluster) if levels is None else levels
    shape = _shape(layout, size, stride) if within is None or size == 1 else _worst(layout, size, stride, within)
    if size == 1 or not places or shape.islands == 1:
        return shape
    node, _, island, _ = _places(layout, cluster.gpus // (size * stride) * size * stride)
    return replace(shape, crossing=group_crossing(places, node, island, size, stride))


@lru_cache(maxsize=65536)
def _shape(layout: Layout, size: int, stride: int) -> GroupShape:
    if size == 1:
        return replace(ALONE, stride=stride)
    return _worst(layout, size, stride, None)


def _worst(layout: Layout, size: int, stride: int, within: NDArray[np.bool_] | None) -> GroupShape:
    node, domain, island, socket = _places(layout, _walked(layout, size * stride))
    domains, per_domain = _runs(domain, size, stride)
    nodes, per_node = _runs(node, size, stride)
    islands, per_island = _runs(island, size, stride)
    cost = (islands - 1) / (islands * per_island)
    if within is not None:
        cost = np.where(_inside(within, size, stride), cost, -1.0)
    worst = int(np.lexsort((nodes, -per_domain, domains, islands, cost))[-1])
    return GroupShape(
        size=size,
        stride=stride,
        domains=int(domains[worst]),
        ranks_per_domain=int(per_domain[worst]),
        nodes=int(nodes[worst]),
        ranks_per_node=int(per_node[worst]),
        islands=int(islands[worst]),
        ranks_per_island=int(per_island[worst]),
        sockets=int(np.max(_runs(socket, size, stride)[0] - nodes + 1)),
    )


def some_within(within: NDArray[np.bool_], size: int, stride: int) -> bool:
    """Whether some group of an axis lies whole on the ranks that are marked, [GPUs]."""
    return bool(_inside(within, size, stride).any())


def _inside(within: NDArray[np.bool_], size: int, stride: int) -> NDArray[np.bool_]:
    whole = len(within) // (size * stride) * size * stride
    return np.asarray(within[:whole].reshape(-1, size, stride).all(axis=1).reshape(-1))


def pair_shape(cluster: Cluster, distance: int, levels: Sequence[Level] | None = None) -> GroupShape:
    """The worst pair of ranks (x, x + distance) over all x on the cluster: what neighbouring pipeline stages send over.

    `levels` as of `group_shape`.

    Raises:
        InvalidValueError: no two ranks are so far apart.
    """
    checks.whole("distance of ranks", distance, 1, cluster.gpus - 1)
    layout, places = layout_of(cluster), levels_of(cluster) if levels is None else levels
    shape = _pair(layout, distance)
    if not places or shape.islands == 1:
        return shape
    node, _, island, _ = _places(layout, cluster.gpus)
    return replace(shape, crossing=pair_crossing(places, node, island, distance))


@lru_cache(maxsize=65536)
def _pair(layout: Layout, distance: int) -> GroupShape:
    gpus = sum(part[1] * part[2] for part in layout)
    firsts = min(_walked(layout, 1), gpus - distance)
    apart = [place[:firsts] != place[distance : distance + firsts] for place in _places(layout, firsts + distance)]
    node, domain, island, socket = apart
    worst = int(np.lexsort((node, domain, island))[-1])
    nodes, domains, islands = (1 + int(place[worst]) for place in (node, domain, island))
    return GroupShape(
        size=2,
        stride=distance,
        domains=domains,
        ranks_per_domain=3 - domains,
        nodes=nodes,
        ranks_per_node=3 - nodes,
        islands=islands,
        ranks_per_island=3 - islands,
        sockets=1 + int((socket & ~node).any()),
    )


def _walked(layout: Layout, block: int) -> int:
    """Ranks to walk: whole blocks up to one period of the pattern, or up to the end of the cluster."""
    gpus = sum(part[1] * part[2] for part in layout)
    whole = gpus // block * block
    if len(layout) > 1:
        return whole
    _, _, usable, physical, domain, *_ = layout[0]
    return min(whole, math.lcm(block, usable * max(1, domain // physical)))


def placed(cluster: Cluster) -> tuple[Ints, Ints, Ints, Ints]:
    """Node, scale-up domain, island and socket number of every rank, [GPUs]."""
    return _places(layout_of(cluster), cluster.gpus)


def _places(layout: Layout, ranks: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Node, domain, island and socket number of the first `ranks` ranks.

    All rise along the ranks, but for domains and sockets inside nodes whose layout says otherwise.
    """
    nodes: list[Ints] = []
    domains: list[Ints] = []
    sockets: list[Ints] = []
    node = base = in_kind = 0
    last_kind = -1
    for kind, count, usable, physical, domain_gpus, islands, within in layout:
        if kind != last_kind:
            base, in_kind, last_kind = (int(domains[-1].max()) + 1 if domains else 0), 0, kind
        at = np.arange(min(ranks - sum(map(len, nodes)), count * usable), dtype=np.int64)
        if not len(at):
            break
        nodes.append(node + at // usable)
        own = in_kind + at // usable
        if islands and domain_gpus <= physical:
            domains.append(base + own * physical + np.array(islands)[at % usable])
        else:
            domains.append(base + _domain_in_kind(own, at % usable, physical, domain_gpus))
        sockets.append((node + at // usable) * physical + (np.array(within)[at % usable] if within else 0))
        node, in_kind = node + count, in_kind + count
    node_of, domain_of = np.concatenate(nodes), np.concatenate(domains)
    both_change = (np.diff(node_of) != 0) & (np.diff(domain_of) != 0)
    return node_of, domain_of, np.append(0, np.cumsum(both_change)), np.concatenate(sockets)


def _domain_in_kind(node: Ints, gpu: Ints, physical: int, domain_gpus: int) -> Ints:
    if domain_gpus >= physical:
        return node // (domain_gpus // physical)
    return node * (physical // domain_gpus) + gpu // domain_gpus


def _runs(place: Ints, size: int, stride: int) -> tuple[Ints, Ints]:
    """Per group: the number of distinct places and the fewest ranks on one."""
    along = place.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    if (along[:, 1:] < along[:, :-1]).any():
        along = np.sort(along, axis=1)
    change = np.ones(along.shape, dtype=bool)
    change[:, 1:] = along[:, 1:] != along[:, :-1]
    starts = np.flatnonzero(change)
    lengths = np.diff(np.append(starts, along.size))
    firsts = np.searchsorted(starts, np.arange(len(along)) * size)
    return change.sum(axis=1), np.minimum.reduceat(lengths, firsts)
