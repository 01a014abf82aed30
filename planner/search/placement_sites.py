"""Where nodes are: the groups of hosts below each tier of switches, and what leads out of them.

Hosts that hang on the same switches of a tier form a *group* of that tier (a leaf, or the leaves of a rail-optimised unit; a
pod; a rack or block where a scheduler names only those). What hosts of two groups exchange leaves the one and enters the other
over uplinks; `Level` holds their one-way rate for each group:

    uplink = Σ over the switches of the group of Σ links · rate                `_uplink`

Where cables or rates are not known, a group is taken to lose nothing on its way up (the sum of its hosts' NICs): then only the
bytes that cross can be compared. Tiers below which all hosts lie together are left out: nothing crosses there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.cluster import Cluster
from shardwright.hardware.topology_records import Network

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tier of groups.

    Attributes:
        name: ``tier 1``, ``tier 2``, ..., or ``block``.
        group: of each host, [hosts], numbered from 0 in order of appearance.
        uplink_bytes_per_s: one way out of each group, [groups].
        known: the rates are stated, not assumed to be those of the hosts.
    """

    name: str
    group: Ints
    uplink_bytes_per_s: Floats
    known: bool

    @property
    def groups(self) -> int:
        """How many groups."""
        return len(self.uplink_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """The hosts of a cluster in rank order.

    Attributes:
        hosts: names.
        gpus: usable GPUs of each, [hosts].
        nic_bytes_per_s: of all fabric NICs of each, one way, [hosts]; infinite where not known.
        domain: scale-up domain of each, [hosts]; hosts of one domain exchange without NICs.
        levels: lower tiers first, each group within one of the next.
    """

    hosts: tuple[str, ...]
    gpus: Ints
    nic_bytes_per_s: Floats
    domain: Ints
    levels: tuple[Level, ...]


def sites_of(cluster: Cluster) -> Sites | None:
    """The sites of a cluster; None where it names no hosts or says nothing of its switches.

    Hosts some of whose GPUs are out of use are left out where too few are left for their group.
    """
    named = [host for group in cluster.groups for host in group.hosts]
    if cluster.network is None or len(named) != cluster.nodes:
        return None
    able = np.array([host not in _short_of_gpus(cluster) for host in named])
    hosts = tuple(host for host, usable in zip(named, able, strict=True) if usable)
    counts = [group.count for group in cluster.groups]
    rates = [group.node.internode_bytes_per_s or np.inf for group in cluster.groups]
    nic = np.repeat(np.array(rates, dtype=np.float64), counts)[able]
    return Sites(
        hosts=hosts,
        gpus=np.repeat(np.array([group.gpus_per_node for group in cluster.groups]), counts)[able],
        nic_bytes_per_s=nic,
        domain=_domains(cluster, named)[able],
        levels=_levels(cluster.network, hosts, nic),
    )


def _short_of_gpus(cluster: Cluster) -> frozenset[str]:
    """Hosts with fewer GPUs in use than their group counts on."""
    out = {entry.host: len(entry.gpus) for entry in cluster.excluded if entry.gpus}
    return frozenset(
        host for group in cluster.groups for host in group.hosts if group.node.gpus - out.get(host, 0) < group.gpus_per_node
    )


def _domains(cluster: Cluster, hosts: Sequence[str]) -> Ints:
    """Scale-up domains that span nodes: the scheduler's blocks where it names them, else nodes in order."""
    blocks = {
        host: index for index, block in enumerate(cluster.network.blocks if cluster.network else ()) for host in block.hosts
    }
    spans = np.repeat([group.node.nodes_per_domain for group in cluster.groups], [group.count for group in cluster.groups])
    places = np.arange(len(hosts))
    named = np.array([blocks.get(host, -1) for host in hosts])
    return np.where(spans == 1, places, np.where(named >= 0, len(hosts) + named, 2 * len(hosts) + places // spans))


def _levels(network: Network, hosts: tuple[str, ...], nic: Floats) -> tuple[Level, ...]:
    made: list[Level] = []
    above: dict[str, frozenset[str]] = {host: frozenset() for host in hosts}
    for switch in network.switches:
        for host in (host for port in switch.ports for host in port.hosts if host in above):
            above[host] |= {switch.name}
    upward = {switch.name: frozenset(uplink.to for uplink in switch.uplinks) for switch in network.switches}
    tier = 1
    while any(above.values()) and len(set(above.values())) > 1:
        made.append(_level(f"tier {tier}", list(above.values()), network, nic))
        above = {host: frozenset(up for name in names for up in upward[name]) for host, names in above.items()}
        tier += 1
    if not made and len(network.blocks) > 1:
        blocks = {host: block.name for block in network.blocks for host in block.hosts}
        made.append(_level("block", [frozenset({blocks.get(host, "")}) for host in hosts], network, nic))
    return tuple(made)


def _level(name: str, above: list[frozenset[str]], network: Network, nic: Floats) -> Level:
    numbers: dict[frozenset[str], int] = {}
    group = np.array([numbers.setdefault(names, len(numbers)) for names in above], dtype=np.int64)
    own = np.bincount(group, weights=nic)
    stated = [_uplink(names, network) for names in numbers]
    rates = np.array([own[index] if rate is None else rate for index, rate in enumerate(stated)])
    return Level(name=name, group=group, uplink_bytes_per_s=rates, known=None not in stated)


def _uplink(names: frozenset[str], network: Network) -> float | None:
    """One-way rate out of a group of switches; None where a cable or rate is not known, or where nothing leads up."""
    uplinks = [uplink for switch in network.switches if switch.name in names for uplink in switch.uplinks]
    rates = [(uplink.links or 0) * (uplink.bytes_per_s or 0.0) for uplink in uplinks]
    return float(sum(rates)) if rates and all(rates) else None
