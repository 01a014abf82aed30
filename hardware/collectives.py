"""Time of collectives over groups of ranks, as pure functions of arrays.

Symbols: n ranks of a group, I islands (nodes, or scale-up domains that span nodes) with r ranks each, S message bytes
counted as nccl-tests does (the full vector; all-to-all: the send buffer of a rank; send: the message), B the rate of a
rank. `Curve` (fabric.py) gives latency and rate of each kind of transfer. With c(n) = 2(n-1)/n for all-reduce and (n-1)/n
for all-gather, reduce-scatter and all-to-all:

    inside an island      t = alpha + hop·steps + c(n)·S / rate                       `local_s`
      in-switch           t = alpha + S / rate                                        `_in_switch_s`
    ring over islands     t = latency + |c(n)·S / local, c(n)·S / (r·network)|_4       `_ring`, `together`
    tree over islands     2·log2(I) steps; a node sends S (I = 2) or 2·S (I > 2)       `_tree`
    in-switch network     as the tree with S per island and two steps                 `_network_in_switch`
    all-to-all            (n-r)/n·S over the rank's own NIC share, the rest inside     `_exchange`
      in two levels       C over the NIC share, then (r-1)/r·S inside the island       `_two_levels`

All ranks of a node run the same collective of their own group at the same time, so a group with r ranks on an island owns
r ranks' shares of its NICs (`Fabric.network` is the share of one rank). Where switches are known, cables between leaves, pods
and racks may take longer than the NICs (`crossings`). The fastest algorithm is taken and named.

Sources: NCCL's tuning model for the shape of the latency terms (NVIDIA/nccl, src/graph/tuning.cc), Thakur et al. 2005 for
the costs of ring and tree, public measurements for the constants (named in each fabric preset).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import unknown_name
from shardwright.hardware.fabric import Fabric, Tier, fabric_of
from shardwright.hardware.transfers import (
    LINKS,
    LOCAL_CURVE,
    Codes,
    Floats,
    GroupTable,
    Ints,
    inner_part,
    inner_reduce,
    left_of,
    local_s,
    needed,
    outer_part,
    protocol_s,
    rails_of,
    ramp_of,
    share_of,
    slower_link,
    steps_of,
)

__all__ = ["ALGORITHMS", "KINDS", "LINKS", "CollectiveTime", "Fabric", "GroupTable", "collective_s", "fabric_of", "wire_bytes"]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
ALGORITHMS = ("none", "ring", "tree", "in-switch", "pairwise", "direct", "two-level")


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
    return np.asarray(share_of(kind, n) * np.asarray(message_bytes, dtype=np.float64), dtype=np.float64)


def collective_s(
    kind: str, groups: GroupTable, message_bytes: Floats, fabric: Fabric, crossing_bytes: Floats | None = None
) -> CollectiveTime:
    """Time of one collective for each row, alone on its links but for its own siblings on the node.

    Args:
        kind: one of `KINDS`.
        groups: [rows].
        message_bytes: S as nccl-tests counts, [rows] or a scalar.
        fabric: the links, from `fabric_of`.
        crossing_bytes: C, of an all-to-all that sends to the rank of the same place on each island and spreads there: bytes
            that a rank sends out of its island, [rows]; None: it sends to every rank by itself.

    Returns:
        Arrays [rows]; groups of one rank and messages of zero bytes take no time.

    Raises:
        UnknownNameError: no such kind.
        InvalidValueError: the groups need a link whose rate the cluster does not state.
    """
    _known(kind)
    message = np.broadcast_to(np.asarray(message_bytes, dtype=np.float64), groups.size.shape)
    crossing = _crossing(kind, groups, message) if crossing_bytes is None else crossing_bytes
    best = _Best.start(len(groups))
    idle = (groups.size <= 1) | (message <= 0)
    for mask, price in ((groups.islands <= 1, _price_local), (groups.islands > 1, _price_network)):
        rows = np.flatnonzero(mask & ~idle)
        if len(rows):
            part = groups.take(rows)
            two_levels = None if crossing_bytes is None else crossing[rows]
            for offer in price(kind, part, message[rows], fabric, two_levels):
                best.offer(rows, offer)
    return best.done(idle, _network_busy_s(kind, groups, message, fabric, crossing))


def _crossing(kind: str, groups: GroupTable, message: Floats) -> Floats:
    """Bytes that leave a rank's island in an all-to-all that sends to every rank by itself."""
    return (groups.size - groups.ranks_per_island) / groups.size * message if kind == "all_to_all" else message


def _network_busy_s(kind: str, groups: GroupTable, message: Floats, fabric: Fabric, crossing: Floats) -> Floats:
    """Bytes that leave the island over the datasheet rate of its NIC shares and of the cables above; 0 inside islands.

    The least that any algorithm sends: it depends on no link but the network, so that faster links elsewhere do not change it.
    """
    outside = np.flatnonzero(groups.islands > 1)
    busy = np.zeros_like(message)
    if fabric.network is None or not len(outside):
        return busy
    part = groups.take(outside)
    n, r, rate = part.size, part.ranks_per_island, fabric.network.bytes_per_s
    if kind == "send":
        seconds = np.maximum(1.0 / rate, part.ring_s_per_byte)
    elif kind == "all_to_all":
        flat = (n - r) / n
        seconds = np.maximum(flat / rate, part.exchange_s_per_byte) * crossing[outside] / (flat * message[outside])
    else:
        twice = 2.0 if kind == "all_reduce" and not fabric.in_switch else 1.0
        sent = twice * (part.islands - 1) / part.islands
        seconds = sent * np.maximum(1.0 / (rails_of(part, fabric) * rate), part.ring_s_per_byte)
    busy[outside] = seconds * message[outside]
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


def _price_local(
    kind: str, groups: GroupTable, message: Floats, fabric: Fabric, _crossing: Floats | None = None
) -> list[_Offer]:
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
        used = needed(tier, code, key)
        n, s, left = groups.size[rows], message[rows], left_of(code, groups.take(rows))
        times[rows] = local_s(kind, used.curves[LOCAL_CURVE[kind]], used, n, s, left)
        link[rows] = LINKS.index(code)
        if kind == "all_reduce":
            switch[rows] = _in_switch_s(used, n, s)
    return [_Offer(time_s=times, algorithm=name, link=link), _Offer(time_s=switch, algorithm="in-switch", link=link)]


def _in_switch_s(tier: Tier, n: Floats, message: Floats) -> Floats:
    """Reduction inside the scale-up switch: each rank sends S once; infinite where the fabric lacks it."""
    curve = tier.curves.get("in_switch_reduce")
    if curve is None:
        return np.full_like(n, np.inf)
    time = curve.alpha_s + message / (curve.efficiency * tier.bytes_per_s) * ramp_of(curve, message)
    return np.where(n >= curve.min_ranks, time, np.inf)


def _price_network(
    kind: str, groups: GroupTable, message: Floats, fabric: Fabric, crossing: Floats | None = None
) -> list[_Offer]:
    """Offers of groups that span islands."""
    net = needed(fabric.network, "network", "internode_bytes_per_s")
    if crossing is not None:
        return [_two_levels(groups, message, crossing, net, fabric)]
    if kind == "all_to_all":
        return [_exchange(groups, message, net, fabric)]
    if kind == "send":
        curve = net.curves["send"]
        outer = outer_part(curve, net, groups, message, message * groups.ring_s_per_byte)
        time = curve.alpha_s + curve.hop_s + outer.bytes_s * ramp_of(curve, message)
        return [_Offer(time_s=time, algorithm="direct", link=outer.link)]
    offers = [_ring(kind, groups, message, net, fabric)]
    if kind == "all_reduce":
        offers.append(_tree(groups, message, net, fabric))
        if fabric.in_switch:
            offers.append(_network_in_switch(groups, message, net, fabric))
    return offers


def _ring(kind: str, groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, n = net.curves["ring"], groups.size
    sent = share_of(kind, n) * message
    inner = inner_part(kind, groups, share_of(kind, n), message, fabric)
    outer = outer_part(curve, net, groups, sent / rails_of(groups, fabric), sent * groups.ring_s_per_byte)
    across = steps_of(kind, groups.islands)
    inside_s = np.maximum(inner.hop_s, curve.post_s) * (steps_of(kind, n) - across)
    moved = protocol_s(curve, inner, outer.bytes_s, message / n, across)
    time = curve.alpha_s + curve.hop_s * across + inside_s + moved
    return _Offer(time_s=time, algorithm="ring", link=slower_link(inner, outer))


def _tree(groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, rails = net.curves["tree"], rails_of(groups, fabric)
    inner = inner_reduce(groups, message, fabric)
    sent = np.where(groups.islands > 2, 2.0, 1.0) * message
    outer = outer_part(curve, net, groups, sent / rails, sent * groups.ring_s_per_byte)
    depth = np.ceil(np.log2(groups.islands))
    moved = protocol_s(curve, inner, outer.bytes_s, message / rails, 2 * depth)
    time = curve.alpha_s + 2 * (curve.hop_s * depth + inner.hop_s * (groups.ranks_per_island - 1)) + moved
    return _Offer(time_s=time, algorithm="tree", link=slower_link(inner, outer))


def _network_in_switch(groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, rails = net.curves["in_switch"], rails_of(groups, fabric)
    inner = inner_reduce(groups, message, fabric)
    outer = outer_part(curve, net, groups, message / rails, message * groups.ring_s_per_byte)
    moved = protocol_s(curve, inner, outer.bytes_s, message / rails, np.full_like(rails, 2.0))
    time = curve.alpha_s + 2 * (curve.hop_s + inner.hop_s * (groups.ranks_per_island - 1)) + moved
    return _Offer(time_s=time, algorithm="in-switch", link=slower_link(inner, outer))


def _exchange(groups: GroupTable, message: Floats, net: Tier, fabric: Fabric) -> _Offer:
    curve, n, r = net.curves["exchange"], groups.size, groups.ranks_per_island
    inner = inner_part("all_to_all", groups, (r - 1) / n, message, fabric)
    outer = outer_part(curve, net, groups, (n - r) / n * message, message * groups.exchange_s_per_byte)
    moved = protocol_s(curve, inner, outer.bytes_s, message / n, n - r)
    time = curve.alpha_s + curve.hop_s * (n - r) + moved
    return _Offer(time_s=time, algorithm="pairwise", link=slower_link(inner, outer))


def _two_levels(groups: GroupTable, message: Floats, crossing: Floats, net: Tier, fabric: Fabric) -> _Offer:
    """To the rank of the same place on each island, whose island spreads what arrives (deepseek-ai/DeepEP)."""
    curve, n, r = net.curves["exchange"], groups.size, groups.ranks_per_island
    inner = inner_part("all_to_all", groups, (r - 1) / r, message, fabric)
    above_s = groups.exchange_s_per_byte * crossing * n / (n - r)
    outer = outer_part(curve, net, groups, crossing, above_s)
    moved = protocol_s(curve, inner, outer.bytes_s, crossing / groups.islands, groups.islands - 1)
    time = curve.alpha_s + curve.hop_s * (groups.islands - 1) + moved
    return _Offer(time_s=time, algorithm="two-level", link=slower_link(inner, outer))
