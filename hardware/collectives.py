"""Time of collectives over groups of ranks, as pure functions of arrays.

Symbols: n ranks of a group, I islands (nodes, or scale-up domains that span nodes) with r ranks each, S message bytes
counted as nccl-tests does (the full vector; all-to-all: the send buffer of a rank; send: the message), B the rate of a
rank. `Curve` (fabric.py) gives latency and rate of each kind of transfer. With c(n) = 2(n-1)/n for all-reduce and (n-1)/n
for all-gather, reduce-scatter and all-to-all:

    inside an island      t = alpha + hop·steps + c(n)·S / rate                       `_local_s`
      in-switch           t = alpha + S / rate                                        `_in_switch_s`
    ring over islands     t = latency + |c(n)·S / local, c(n)·S / (r·network)|_4       `_ring`, `_together`
    tree over islands     2·log2(I) steps; a node sends S (I = 2) or 2·S (I > 2)       `_tree`
    in-switch network     as the tree with S per island and two steps                 `_network_in_switch`
    all-to-all            (n-r)/n·S over the rank's own NIC share, the rest inside     `_exchange`

All ranks of a node run the same collective of their own group at the same time, so a group with r ranks on an island owns
r ranks' shares of its NICs (`Fabric.network` is the share of one rank). The fastest algorithm is taken and named.

Sources: NCCL's tuning model for the shape of the latency terms (NVIDIA/nccl, src/graph/tuning.cc), Thakur et al. 2005 for
the costs of ring and tree, public measurements for the constants (named in each fabric preset).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware.fabric import Curve, Fabric, Tier, fabric_of
from shardwright.hardware.groups import GroupShape

__all__ = ["ALGORITHMS", "KINDS", "LINKS", "CollectiveTime", "Fabric", "GroupTable", "collective_s", "fabric_of", "wire_bytes"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
ALGORITHMS = ("none", "ring", "tree", "in-switch", "pairwise", "direct")
LINKS = ("none", "scale-up", "host", "network")
_LOCAL_CURVE = {
    "all_reduce": "ring_reduce",
    "all_gather": "gather",
    "reduce_scatter": "scatter",
    "all_to_all": "exchange",
    "send": "send",
}
_FLAT_RANKS = 8.0  # the ranks that curves were fitted at; beyond them the rate is taken as constant


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """Groups as arrays of equal length; see `GroupShape` for the fields.

    Attributes:
        size: ranks.
        domains: scale-up domains touched.
        islands: islands touched.
        ranks_per_island: fewest ranks on one.
        ranks_per_domain: fewest ranks on a domain.
    """

    size: Floats
    domains: Floats
    islands: Floats
    ranks_per_island: Floats
    ranks_per_domain: Floats

    @staticmethod
    def of(shapes: Iterable[GroupShape]) -> GroupTable:
        """The table of a sequence of shapes, in its order."""
        rows = [(s.size, s.domains, s.islands, s.ranks_per_island, s.ranks_per_domain) for s in shapes]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 5).T
        size, domains, islands, per_island, per_domain = columns
        return GroupTable(size=size, domains=domains, islands=islands, ranks_per_island=per_island, ranks_per_domain=per_domain)

    def take(self, index: Ints) -> GroupTable:
        """The rows of an index array."""
        return GroupTable(
            size=self.size[index],
            domains=self.domains[index],
            islands=self.islands[index],
            ranks_per_island=self.ranks_per_island[index],
            ranks_per_domain=self.ranks_per_domain[index],
        )

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """What a batch of collectives costs.

    Attributes:
        time_s: seconds.
        algorithm: index into `ALGORITHMS`.
        link: index into `LINKS`: the link that takes most of the time.
        network_s: of it, seconds in which the rank's share of the network is busy for sure, whatever else it waits for.
    """

    time_s: Floats
    algorithm: Codes
    link: Codes
    network_s: Floats


def wire_bytes(kind: str, size: Floats | float, message_bytes: Floats | float) -> Floats:
    """Bytes that one rank sends: 2(n-1)/n·S all-reduce, (n-1)/n·S gather, scatter and all-to-all, S send; 0 for n = 1.

    Args:
        kind: one of `KINDS`.
        size: ranks, any shape.
        message_bytes: S, broadcast against `size`.

    Raises:
        UnknownNameError: no such kind.
    """
    _known(kind)
    n = np.asarray(size, dtype=np.float64)
    return np.asarray(_share(kind, n) * np.asarray(message_bytes, dtype=np.float64), dtype=np.float64)


def collective_s(kind: str, groups: GroupTable, message_bytes: Floats, fabric: Fabric) -> CollectiveTime:
    """Time of one collective for each row, alone on its links but for its own siblings on the node.

    Args:
        kind: one of `KINDS`.
        groups: [rows].
        message_bytes: S as nccl-tests counts, [rows] or a scalar.
        fabric: the links, from `fabric_of`.

    Returns:
        Arrays [rows]; groups of one rank and messages of zero bytes take no time.

    Raises:
        UnknownNameError: no such kind.
        InvalidValueError: the groups need a link whose rate the cluster does not state.
    """
    _known(kind)
    message = np.broadcast_to(np.asarray(message_bytes, dtype=np.float64), groups.size.shape)
    best = _Best.start(len(groups))
    idle = (groups.size <= 1) | (message <= 0)
    for mask, price in ((groups.islands <= 1, _price_local), (groups.islands > 1, _price_network)):
        rows = np.flatnonzero(mask & ~idle)
        if len(rows):
            part = groups.take(rows)
            for offer in price(kind, part, message[rows], fabric):
                best.offer(rows, offer)
    return best.done(idle, _network_busy_s(kind, groups, message, fabric))


def _network_busy_s(kind: str, groups: GroupTable, message: Floats, fabric: Fabric) -> Floats:
    """Bytes that leave the island over the datasheet rate of its NIC shares; 0 inside islands.

    The least that any algorithm sends: it depends on no link but the network, so that faster links elsewhere do not change it.
    """
    outside = np.flatnonzero(groups.islands > 1)
    busy = np.zeros_like(message)
    if fabric.network is None or not len(outside):
        return busy
    part = groups.take(outside)
    n, r = part.size, part.ranks_per_island
    if kind == "send":
        share = np.ones_like(n)
    elif kind == "all_to_all":
        share = (n - r) / n
    else:
        twice = 2.0 if kind == "all_reduce" and not fabric.in_switch else 1.0
        share = twice * (part.islands - 1) / part.islands / _rails(part, fabric)
    busy[outside] = share * message[outside] / fabric.network.bytes_per_s
    return busy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    time_s: Floats
    algorithm: str
    link: Codes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    time_s: Floats
    algorithm: Codes
    link: Codes

    @staticmethod
    def start(rows: int) -> _Best:
        return _Best(time_s=np.full(rows, np.inf), algorithm=np.zeros(rows, dtype=np.int8), link=np.zeros(rows, dtype=np.int8))

    def offer(self, rows: Ints, offer: _Offer) -> None:
        better = offer.time_s < self.time_s[rows]
        chosen = rows[better]
        self.time_s[chosen] = offer.time_s[better]
        self.algorithm[chosen] = ALGORITHMS.index(offer.algorithm)
        self.link[chosen] = offer.link[better]

    def done(self, idle: NDArray[np.bool_], network_s: Floats) -> CollectiveTime:
        self.time_s[idle] = 0.0
        busy = np.minimum(network_s, self.time_s)
        return CollectiveTime(time_s=self.time_s, algorithm=self.algorithm, link=self.link, network_s=busy)


def _known(kind: str) -> None:
    if kind not in KINDS:
        raise unknown_name("collective", kind, KINDS)


def _share(kind: str, n: Floats) -> Floats:
    """c(n): the share of S that a rank sends."""
    if kind == "send":
        return np.where(n > 1, 1.0, 0.0)
    one: Floats = (n - 1) / np.maximum(n, 1)
    return 2 * one if kind == "all_reduce" else one


def _steps(kind: str, n: Floats) -> Floats:
    """Dependent steps of a ring: 2(n-1) all-reduce, n-1 otherwise, none for send."""
    if kind == "send":
        return np.zeros_like(n)
    return 2 * (n - 1) if kind == "all_reduce" else n - 1


def _need(tier: Tier | None, name: str, key: str) -> Tier:
    if tier is None:
        raise InvalidValueError(
            f"the {name} rate of the cluster is not known",
            where=f"cluster.{key}",
            hint=f"state {key} in the cluster file, or set cluster.{key}",
        )
    return tier


def _rate(curve: Curve, tier: Tier, n: Floats) -> Floats:
    """Large-message rate of a rank in a group of n: a mesh of direct links offers n-1 of them."""
    wired: Floats = np.minimum(tier.bytes_per_s, tier.pair_bytes_per_s * (n - 1))
    few: Floats = np.minimum(n, _FLAT_RANKS) / _FLAT_RANKS
    return curve.efficiency * wired * few**curve.rank_power


def _ramp(curve: Curve, message: Floats) -> Floats:
    return 1 + (curve.ramp_bytes / message) ** curve.ramp_power


def _local_s(kind: str, curve: Curve, tier: Tier, n: Floats, message: Floats) -> Floats:
    """Time inside one island over one tier; rings up to 8 ranks, then a tree of such rings for the latency."""
    steps = _steps(kind, np.minimum(n, _FLAT_RANKS)) + 2 * np.log2(np.maximum(n, _FLAT_RANKS) / _FLAT_RANKS)
    time: Floats = (
        curve.alpha_s + curve.hop_s * steps + _share(kind, n) * message / _rate(curve, tier, n) * _ramp(curve, message)
    )
    return time


def _links(code: str, rows: int) -> Codes:
    return np.full(rows, LINKS.index(code), dtype=np.int8)


def _price_local(kind: str, groups: GroupTable, message: Floats, fabric: Fabric) -> list[_Offer]:
    """Offers of groups that stay on one island: over the scale-up fabric if on one domain, else through the host."""
    inside = groups.domains <= 1
    name = {"all_to_all": "pairwise", "send": "direct"}.get(kind, "ring")
    times, link = np.full(len(groups), np.inf), np.zeros(len(groups), dtype=np.int8)
    switch = np.full(len(groups), np.inf)
    for mask, tier, code, key in (
        (inside, fabric.scaleup, "scale-up", "scaleup_bytes_per_s"),
        (~inside, fabric.host, "host", "host_bytes_per_s"),
    ):
        rows = np.flatnonzero(mask)
        if not len(rows):
            continue
        used = _need(tier, code, key)
        n, s = groups.size[rows], message[rows]
        times[rows] = _local_s(kind, used.curves[_LOCAL_CURVE[kind]], used, n, s)
        link[rows] = LINKS.index(code)
        if kind == "all_reduce":
            switch[rows] = _in_switch_s(used, n, s)
    return [_Offer(time_s=times, algorithm=name, link=link), _Offer(time_s=switch, algorithm="in-switch", link=link)]


def _in_switch_s(tier: Tier, n: Floats, message: Floats) -> Floats:
    """Reduction inside the scale-up switch: each rank sends S once; infinite where the fabric lacks it."""
    curve = tier.curves.get("in_switch_reduce")
    if curve is None:
        return np.full_like(n, np.inf)
    time = curve.alpha_s + message / (curve.efficiency * tier.bytes_per_s) * _ramp(curve, message)
    return np.where(n >= curve.min_ranks, time, np.inf)


def _price_network(kind: str, groups: GroupTable, message: Floats, fabric: Fabric) -> list[_Offer]:
    """Offers of groups that span islands."""
    net = _need(fabric.network, "network", "internode_bytes_per_s")
    if kind == "all_to_all":
        return [_exchange(groups, message, net, fabric)]
    if kind == "send":
        curve = net.curves["send"]
        time = curve.alpha_s + curve.hop_s + message / (curve.efficiency * net.bytes_per_s) * _ramp(curve, message)
        return [_Offer(time_s=time, algorithm="direct", link=_links("network", len(groups)))]
    offers = [_ring(kind, groups, message, net, fabric)]
    if kind == "all_reduce":
        offers.append(_tree(groups, message, net, fabric))
        if fabric.in_switch:
            offers.append(_network_in_switch(groups, message, net, fabric))
    return offers


def _inner_tiers(groups: GroupTable, fabric: Fabric) -> list[tuple[Ints, Tier, str]]:
    """(rows, tier, link) of the rows with several ranks on an island: on one domain, or on several of one host."""
    several = groups.ranks_per_island > 1
    on_one_domain = groups.domains <= groups.islands
    found: list[tuple[Ints, Tier, str]] = []
    for mask, tier, link, key in (
        (several & on_one_domain, fabric.scaleup, "scale-up", "scaleup_bytes_per_s"),
        (several & ~on_one_domain, fabric.host, "host", "host_bytes_per_s"),
    ):
        rows = np.flatnonzero(mask)
        if len(rows):
            found.append((rows, _need(tier, link, key), link))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    """The part of a collective inside the islands: bandwidth time, time of a step, link; zero where ranks are alone."""

    bytes_s: Floats
    hop_s: Floats
    link: Codes


def _inner(kind: str, groups: GroupTable, share: Floats, message: Floats, fabric: Fabric) -> _Inner:
    bytes_s, hop_s, link = np.zeros_like(message), np.zeros_like(message), _links("network", len(groups))
    for rows, tier, name in _inner_tiers(groups, fabric):
        curve, s = tier.curves[_LOCAL_CURVE[kind]], message[rows]
        bytes_s[rows] = share[rows] * s / _rate(curve, tier, groups.ranks_per_island[rows]) * _ramp(curve, s)
        hop_s[rows] = curve.hop_s
        link[rows] = LINKS.index(name)
    return _Inner(bytes_s=bytes_s, hop_s=hop_s, link=link)


def _inner_reduce(groups: GroupTable, message: Floats, fabric: Fabric) -> _Inner:
    """Reducing and spreading a vector inside the islands: twice over a ring or tree, or once through the switch."""
    inner = _inner("all_reduce", groups, np.full_like(message, 2.0), message, fabric)
    for rows, tier, _ in _inner_tiers(groups, fabric):
        curve = tier.curves.get("in_switch_reduce")
        if curve is None:
            continue
        switched = message[rows] / (curve.efficiency * tier.bytes_per_s) * _ramp(curve, message[rows])
        able = groups.ranks_per_island[rows] >= curve.min_ranks
        inner.bytes_s[rows] = np.where(able, np.minimum(switched, inner.bytes_s[rows]), inner.bytes_s[rows])
    return inner


def _slower(inner: _Inner, outer: Floats) -> Codes:
    return np.where(outer >= inner.bytes_s, LINKS.index("network"), inner.link).astype(np.int8)


def _together(inner: _Inner, outer: Floats) -> Floats:
    """Time of two pipelined stages: the slower one where they differ, more where they are alike (4-norm).

    The power is chosen by published logs: ten nodes of 8 H100 gather at 317 GB/s where the NICs alone reach 390 and NVLink
    alone 345; with 4 GPUs a node at 195 of 197.
    """
    return np.sqrt(np.hypot(inner.bytes_s**2, outer**2))


def _outer_s(curve: Curve, net: Tier, islands: Floats, sent: Floats) -> Floats:
    """Time of `sent` bytes a rank over its NIC share, all at the rate of large messages."""
    share = curve.efficiency * (islands / 2.0) ** -curve.node_power
    return sent / (share * net.bytes_per_s)


def _protocol_s(curve: Curve, inner: _Inner, outer: Floats, per_message: Floats, steps: Floats) -> Floats:
    """Time of the bytes with the better protocol: for large messages, or quick steps at a part of the rate."""
    bulk = curve.bulk_step_s * steps + _together(inner, outer * _ramp(curve, per_message))
    if curve.quick_share == 0:
        return bulk
    return np.minimum(bulk, _together(inner, outer / curve.quick_share))


def _rails(groups: GroupTable, fabric: Fabric) -> Floats:
    """Ranks of an island whose NIC shares one ring or tree drives at once."""
    return np.minimum(groups.ranks_per_island, fabric.rails)


def _ring(kind: str, groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, n = net.curves["ring"], groups.size
    inner = _inner(kind, groups, _share(kind, n), message, fabric)
    outer = _outer_s(curve, net, groups.islands, _share(kind, n) * message / _rails(groups, fabric))
    across = _steps(kind, groups.islands)
    inside_s = np.maximum(inner.hop_s, curve.post_s) * (_steps(kind, n) - across)
    time = curve.alpha_s + curve.hop_s * across + inside_s + _protocol_s(curve, inner, outer, message / n, across)
    return _Offer(time_s=time, algorithm="ring", link=_slower(inner, outer))


def _tree(groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, r, rails = net.curves["tree"], groups.ranks_per_island, _rails(groups, fabric)
    inner = _inner_reduce(groups, message, fabric)
    outer = _outer_s(curve, net, groups.islands, np.where(groups.islands > 2, 2.0, 1.0) * message / rails)
    depth = np.ceil(np.log2(groups.islands))
    moved = _protocol_s(curve, inner, outer, message / rails, 2 * depth)
    time = curve.alpha_s + 2 * (curve.hop_s * depth + inner.hop_s * (r - 1)) + moved
    return _Offer(time_s=time, algorithm="tree", link=_slower(inner, outer))


def _network_in_switch(groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, r, rails = net.curves["in_switch"], groups.ranks_per_island, _rails(groups, fabric)
    inner = _inner_reduce(groups, message, fabric)
    outer = _outer_s(curve, net, groups.islands, message / rails)
    moved = _protocol_s(curve, inner, outer, message / rails, np.full_like(r, 2.0))
    time = curve.alpha_s + 2 * (curve.hop_s + inner.hop_s * (r - 1)) + moved
    return _Offer(time_s=time, algorithm="in-switch", link=_slower(inner, outer))


def _exchange(groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, n, r = net.curves["exchange"], groups.size, groups.ranks_per_island
    inner = _inner("all_to_all", groups, (r - 1) / n, message, fabric)
    outer = _outer_s(curve, net, groups.islands, (n - r) / n * message)
    time = curve.alpha_s + curve.hop_s * (n - r) + _protocol_s(curve, inner, outer, message / n, n - r)
    return _Offer(time_s=time, algorithm="pairwise", link=_slower(inner, outer))
