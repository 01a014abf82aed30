"""What transfers over one or two tiers of links take: the parts that the collectives of `collectives` are made of.

share_of, steps_of      c(n), the share of S that a rank sends, and the dependent steps of a ring
local_s                 alpha + hop·steps + c(n)·S / rate, inside one island
inner_part              bytes, steps and link of a collective inside the islands it spans
outer_part              its bytes between islands: over the NIC share of a rank, or the cables above if they take longer
together, protocol_s    both parts at once, with the better of two protocols
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import InvalidValueError
from shardwright.hardware.fabric import Curve, Fabric, Tier
from shardwright.hardware.groups import GroupShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]

LINKS = ("none", "scale-up", "host", "network", "uplink")
"""Kinds of link: inside a scale-up domain, through the host, NICs, cables between places of the network."""
LOCAL_CURVE = {
    "all_reduce": "ring_reduce",
    "all_gather": "gather",
    "reduce_scatter": "scatter",
    "all_to_all": "exchange",
    "send": "send",
}
SOCKET_SHARE = 0.8
"""Of the rate inside a socket. All-reduce of eight RTX 4090 on two sockets reaches 20.6 GB/s, of four 25.3 (public nccl-tests
logs of PCIe boxes with peer access)."""
FLAT_RANKS = 8.0  # the ranks that curves were fitted at; beyond them the rate is taken as constant


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """Groups as arrays of equal length; see `GroupShape` for the fields.

    Attributes:
        size: ranks.
        domains: scale-up domains touched.
        islands: islands touched.
        ranks_per_island: fewest ranks on one.
        ranks_per_domain: fewest ranks on a domain.
        host_share: of the rate through the host, what is left where ranks of one node lie on several sockets.
        ring_s_per_byte, exchange_s_per_byte: of the narrowest cables between places, see `crossings.Crossing`.
    """

    size: Floats
    domains: Floats
    islands: Floats
    ranks_per_island: Floats
    ranks_per_domain: Floats
    host_share: Floats
    ring_s_per_byte: Floats
    exchange_s_per_byte: Floats

    @staticmethod
    def of(shapes: Iterable[GroupShape]) -> GroupTable:
        """The table of a sequence of shapes, in its order."""
        rows = [
            (
                *(s.size, s.domains, s.islands, s.ranks_per_island, s.ranks_per_domain),
                1.0 if s.sockets == 1 else SOCKET_SHARE,
                *(s.crossing.ring_s_per_byte, s.crossing.exchange_s_per_byte),
            )
            for s in shapes
        ]
        columns = np.array(rows, dtype=np.float64).reshape(-1, len(GroupTable.__slots__)).T
        return GroupTable(**dict(zip(GroupTable.__slots__, columns, strict=True)))

    def take(self, index: Ints) -> GroupTable:
        """The rows of an index array."""
        return GroupTable(**{name: getattr(self, name)[index] for name in GroupTable.__slots__})

    def __len__(self) -> int:
        return len(self.size)


def share_of(kind: str, n: Floats) -> Floats:
    """c(n): the share of S that a rank sends."""
    if kind == "send":
        return np.where(n > 1, 1.0, 0.0)
    one: Floats = (n - 1) / np.maximum(n, 1)
    return 2 * one if kind == "all_reduce" else one


def steps_of(kind: str, n: Floats) -> Floats:
    """Dependent steps of a ring: 2(n-1) all-reduce, n-1 otherwise, none for send."""
    if kind == "send":
        return np.zeros_like(n)
    return 2 * (n - 1) if kind == "all_reduce" else n - 1


def needed(tier: Tier | None, name: str, key: str) -> Tier:
    """The tier.

    Raises:
        InvalidValueError: its rate is not known.
    """
    if tier is None:
        raise InvalidValueError(
            f"the {name} rate of the cluster is not known",
            where=f"cluster.{key}",
            hint=f"state {key} in the cluster file, or set cluster.{key}",
        )
    return tier


def rate_of(curve: Curve, tier: Tier, n: Floats) -> Floats:
    """Large-message rate of a rank in a group of n: a mesh of direct links offers n-1 of them."""
    wired: Floats = np.minimum(tier.bytes_per_s, tier.pair_bytes_per_s * (n - 1))
    few: Floats = np.minimum(n, FLAT_RANKS) / FLAT_RANKS
    return curve.efficiency * wired * few**curve.rank_power


def ramp_of(curve: Curve, message: Floats) -> Floats:
    """How many times as long a byte of a message takes as one of a large message."""
    return 1 + (curve.ramp_bytes / message) ** curve.ramp_power


def local_s(kind: str, curve: Curve, tier: Tier, n: Floats, message: Floats, left: Floats) -> Floats:
    """Time inside one island over one tier, of whose rate the share `left` is left.

    Rings up to 8 ranks, then a tree of such rings for the latency.
    """
    steps = steps_of(kind, np.minimum(n, FLAT_RANKS)) + 2 * np.log2(np.maximum(n, FLAT_RANKS) / FLAT_RANKS)
    plain_s = share_of(kind, n) * message / (rate_of(curve, tier, n) * left)
    bytes_s = curve.bulk_step_s * steps + plain_s * ramp_of(curve, message)
    if curve.quick_share > 0:
        bytes_s = np.minimum(bytes_s, plain_s / curve.quick_share)
    return np.asarray(curve.alpha_s + curve.hop_s * steps + bytes_s, dtype=np.float64)


def left_of(link: str, groups: GroupTable) -> Floats:
    """Share of a link's rate that is left to groups which use it from several sockets."""
    return groups.host_share if link == "host" else np.ones(len(groups))


def link_codes(code: str, rows: int) -> Codes:
    """The code of a link for so many rows."""
    return np.full(rows, LINKS.index(code), dtype=np.int8)


def inner_tiers(groups: GroupTable, fabric: Fabric) -> list[tuple[Ints, Tier, str]]:
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
            found.append((rows, needed(tier, link, key), link))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """The part of a collective inside the islands: bandwidth time, time of a step, link; zero where ranks are alone."""

    bytes_s: Floats
    hop_s: Floats
    link: Codes


def inner_part(kind: str, groups: GroupTable, share: Floats, message: Floats, fabric: Fabric) -> Inner:
    """The part of a collective inside the islands, where each rank sends `share` of the message there."""
    bytes_s, hop_s, link = np.zeros_like(message), np.zeros_like(message), link_codes("network", len(groups))
    for rows, tier, name in inner_tiers(groups, fabric):
        curve, s = tier.curves[LOCAL_CURVE[kind]], message[rows]
        rate = rate_of(curve, tier, groups.ranks_per_island[rows]) * left_of(name, groups.take(rows))
        bytes_s[rows] = share[rows] * s / rate * ramp_of(curve, s)
        hop_s[rows] = curve.hop_s
        link[rows] = LINKS.index(name)
    return Inner(bytes_s=bytes_s, hop_s=hop_s, link=link)


def inner_reduce(groups: GroupTable, message: Floats, fabric: Fabric) -> Inner:
    """Reducing and spreading a vector inside the islands: twice over a ring or tree, or once through the switch."""
    inner = inner_part("all_reduce", groups, np.full_like(message, 2.0), message, fabric)
    for rows, tier, _ in inner_tiers(groups, fabric):
        curve = tier.curves.get("in_switch_reduce")
        if curve is None:
            continue
        switched = message[rows] / (curve.efficiency * tier.bytes_per_s) * ramp_of(curve, message[rows])
        able = groups.ranks_per_island[rows] >= curve.min_ranks
        inner.bytes_s[rows] = np.where(able, np.minimum(switched, inner.bytes_s[rows]), inner.bytes_s[rows])
    return inner


def slower_link(inner: Inner, outer: Outer) -> Codes:
    """The link of the part that takes longer."""
    return np.where(outer.bytes_s >= inner.bytes_s, outer.link, inner.link)


def together(inner: Inner, outer: Floats) -> Floats:
    """Time of two pipelined stages: the slower one where they differ, more where they are alike (4-norm).

    The power is chosen by published logs: ten nodes of 8 H100 gather at 317 GB/s where the NICs alone reach 390 and NVLink
    alone 345; with 4 GPUs a node at 195 of 197.
    """
    return np.sqrt(np.hypot(inner.bytes_s**2, outer**2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """The part of a collective between islands: time of its bytes at the rate of large messages, and the link that sets it."""

    bytes_s: Floats
    link: Codes


def outer_part(curve: Curve, net: Tier, groups: GroupTable, sent: Floats, above_s: Floats) -> Outer:
    """Time of `sent` bytes a rank over its NIC share, or of what takes `above_s` on the cables above, if that is longer."""
    share = curve.efficiency * (groups.islands / 2.0) ** -curve.node_power
    nic_s = sent / net.bytes_per_s
    link = np.where(above_s > nic_s, LINKS.index("uplink"), LINKS.index("network")).astype(np.int8)
    return Outer(bytes_s=np.maximum(nic_s, above_s) / share, link=link)


def protocol_s(curve: Curve, inner: Inner, outer_s: Floats, per_message: Floats, steps: Floats) -> Floats:
    """Time of the bytes with the better protocol: for large messages, or quick steps at a part of the rate."""
    bulk = curve.bulk_step_s * steps + together(inner, outer_s * ramp_of(curve, per_message))
    if curve.quick_share == 0:
        return bulk
    return np.minimum(bulk, together(inner, outer_s / curve.quick_share))


def rails_of(groups: GroupTable, fabric: Fabric) -> Floats:
    """Ranks of an island whose NIC shares one ring or tree drives at once."""
    return np.minimum(groups.ranks_per_island, fabric.rails)
