"""What the switches between nodes leave for the hosts below them.

A *level* divides the hosts of a cluster into *places*; what hosts of two places exchange leaves the one and enters the other
over cables that all hosts of the place share:

    leaf      hosts below the same switches of tier 1 (one leaf, or the leaves of a rail-optimised unit)
    block     racks and groups of racks that the scheduler names
    tier t    hosts that switches up to tier t join

    rate out of a place = Σ cables that lead out of it · rate of a cable        `_rate_out`

Levels below which all hosts lie in one place are left out: nothing crosses there. So are those that divide hosts as a level
before. Where the number or the rate of a cable is not known the rate out of the place is infinite: nothing is charged for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.cluster import Cluster
from shardwright.hardware.topology_records import Network

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Owner = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """One division of the hosts.

    Attributes:
        name: ``leaf``, ``block``, ``tier 2``, ...
        labels: name of each place, a switch or a block of it.
        place: of each node of the cluster in rank order, [nodes].
        bytes_per_s: one way out of each place, [places]; infinite where not known.
    """

    name: str
    labels: tuple[str, ...]
    place: Ints
    bytes_per_s: Floats


def levels_of(cluster: Cluster) -> tuple[Level, ...]:
    """The levels of a cluster, lower ones first; none where it names no hosts or says nothing of its switches."""
    network = cluster.network
    hosts = tuple(host for group in cluster.groups for host in group.hosts)
    if network is None or len(hosts) != cluster.nodes:
        return ()
    made: list[Level] = []
    for name, owner in _divisions(network):
        level = _level(name, owner, network, hosts)
        if len(level.labels) > 1 and not any(np.array_equal(level.place, other.place) for other in made):
            made.append(level)
    return tuple(made)


def _divisions(network: Network) -> list[tuple[str, Owner]]:
    """Name and place of every host and switch (``host/NAME``, ``switch/NAME``) of each level."""
    tiers = sorted({switch.tier for switch in network.switches})
    found = [("leaf", _joined(network, tiers[0]))] if tiers else []
    if network.blocks:
        found.append(("block", _blocks(network)))
    return found + [(f"tier {tier}", _joined(network, tier)) for tier in tiers[1:]]


def _joined(network: Network, tier: int) -> Owner:
    """Places as the parts that switches up to a tier join; cables between switches of tier 1 join nothing on that tier."""
    import networkx

    graph: networkx.Graph[str] = networkx.Graph()
    for switch in network.switches:
        if switch.tier <= tier:
            graph.add_node(f"switch/{switch.name}")
            graph.add_edges_from((f"switch/{switch.name}", f"host/{host}") for port in switch.ports for host in port.hosts)
    low = {switch.name for switch in network.switches if switch.tier <= tier}
    if tier > 1:
        for switch in network.switches:
            ups = (uplink.to for uplink in switch.uplinks if uplink.to in low and switch.name in low)
            graph.add_edges_from((f"switch/{switch.name}", f"switch/{up}") for up in ups)
    return {name: index for index, part in enumerate(networkx.connected_components(graph)) for name in part}


def _blocks(network: Network) -> Owner:
    """Places as blocks; a switch belongs to one where all that hangs below it does."""
    owner = {f"host/{host}": index for index, block in enumerate(network.blocks) for host in block.hosts}
    tier = {switch.name: switch.tier for switch in network.switches}
    below: dict[str, set[int]] = {switch.name: set() for switch in network.switches}
    for switch in network.switches:
        below[switch.name] |= {owner.get(f"host/{host}", -1) for port in switch.ports for host in port.hosts}
    for switch in sorted(network.switches, key=lambda s: s.tier):
        for uplink in switch.uplinks:
            if tier[uplink.to] > switch.tier:
                below[uplink.to] |= below[switch.name]
    return owner | {f"switch/{name}": found.pop() for name, found in below.items() if len(found) == 1}


def _level(name: str, owner: Owner, network: Network, hosts: tuple[str, ...]) -> Level:
    given = [owner.get(f"host/{host}", -1 - index) for index, host in enumerate(hosts)]
    numbers = {place: index for index, place in enumerate(dict.fromkeys(given))}
    own = {key: numbers[place] for key, place in owner.items() if place in numbers}
    return Level(
        name=name,
        labels=_labels(own, network, len(numbers)),
        place=np.array([numbers[place] for place in given], dtype=np.int64),
        bytes_per_s=_rates_out(own, network, len(numbers)),
    )


def _labels(own: Owner, network: Network, places: int) -> tuple[str, ...]:
    """The highest switch of each place, and how many more of that tier there are; of a place without any, a host."""
    switches: dict[int, list[tuple[int, str]]] = {}
    for switch in network.switches:
        place = own.get(f"switch/{switch.name}")
        if place is not None:
            switches.setdefault(place, []).append((switch.tier, switch.name))
    hosts = {place: key.removeprefix("host/") for key, place in own.items() if key.startswith("host/")}
    return tuple(_label(switches[place]) if place in switches else hosts.get(place, "?") for place in range(places))


def _label(switches: list[tuple[int, str]]) -> str:
    top = max(tier for tier, _ in switches)
    names = [name for tier, name in switches if tier == top]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _rates_out(own: Owner, network: Network, places: int) -> Floats:
    """Σ cables between what belongs to a place and what does not, [places]; a place that nothing leads out of loses nothing."""
    rates = np.zeros(places)
    for switch in network.switches:
        here = own.get(f"switch/{switch.name}")
        cables = [(f"switch/{up.to}", up.links, up.bytes_per_s) for up in switch.uplinks]
        cables += [(f"host/{host}", port.links, port.bytes_per_s) for port in switch.ports for host in port.hosts]
        for end, links, rate in cables:
            there = own.get(end)
            for place in {here, there} - {None} if here != there else ():
                rates[place] += np.inf if links is None or rate is None else links * rate
    rates[rates == 0] = np.inf
    return rates
