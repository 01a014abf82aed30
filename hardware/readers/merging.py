"""Joins what several files say of the same thing.

same_machines    descriptions of one machine by several tools become one: the file given first wins, others fill what
                 it leaves open, and a disagreement is said
one_network      switches of several files side by side; a tree without rates yields to one with rates; blocks are kept
adapters_of      ports by host
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from shardwright.errors import ConflictError
from shardwright.hardware.readers.base import Adapter, Machine
from shardwright.hardware.topology_records import Network, Nic, NodeLayout, Switch

_FILLED = ("link_kind", "links", "links_of_gpu", "pci_id", "compute_capability", "pcie_bytes_per_s", "fabric")
_COMPARED = ("islands", "pcie_switches", "sockets")


def same_machines(machines: Sequence[Machine]) -> tuple[list[Machine], list[str]]:
    """Machines with the descriptions of different tools joined, and notes.

    Descriptions of one tool are of different machines; those of several tools without host name are taken for one.

    Raises:
        ConflictError: two tools count different numbers of GPUs.
    """
    made: list[Machine] = []
    notes: list[str] = []
    for machine in machines:
        twin = next((index for index, other in enumerate(made) if _may_be_same(other, machine)), None)
        if twin is None:
            made.append(machine)
            continue
        if made[twin].gpus != machine.gpus:
            message = f"{made[twin].source} has {made[twin].gpus} GPUs, {machine.source} has {machine.gpus}"
            raise ConflictError(message, where="FILES", hint="give files of the same kind of machine")
        made[twin], said = _joined(made[twin], machine)
        notes += said
    return made, notes


def _may_be_same(a: Machine, b: Machine) -> bool:
    return _tool(a) != _tool(b) and (a.host == b.host or None in (a.host, b.host)) and _tool(b) not in a.source


def _tool(machine: Machine) -> str:
    return machine.source.partition(" (")[0]


def _joined(first: Machine, second: Machine) -> tuple[Machine, list[str]]:
    layout, notes = _layouts(first, second)
    values = {name: getattr(first, name) or getattr(second, name) for name in _FILLED}
    direct = first.direct if first.links_of_gpu is not None else second.direct
    joined = dataclasses.replace(
        first, **values, direct=direct, layout=layout, host=first.host or second.host, source=f"{first.source}, {second.source}"
    )
    return joined, notes


def _layouts(first: Machine, second: Machine) -> tuple[NodeLayout, list[str]]:
    own, other = first.layout, second.layout
    notes = [
        f"{name} differ between {first.source} and {second.source}; those of the first are kept (layout.{name})"
        for name in _COMPARED
        if None not in (getattr(own, name), getattr(other, name)) and _sorted(own, name) != _sorted(other, name)
    ]
    filled: dict[str, Any] = {name: getattr(own, name) for name in (*_COMPARED, "link_counts", "peer_access")}
    filled = {name: value if value is not None else getattr(other, name) for name, value in filled.items()}
    if own.islands is not None:
        filled["link_counts"] = own.link_counts
    rates = {nic.name: nic.bytes_per_s for nic in other.nics}
    nics = tuple(dataclasses.replace(nic, bytes_per_s=nic.bytes_per_s or rates.get(nic.name)) for nic in own.nics)
    cards = own if nics else other
    if nics and other.nics and len(nics) != len(other.nics):
        notes.append(f"{first.source} has {len(nics)} compute cards, {second.source} {len(other.nics)}; the first is kept")
    return _within_sockets(NodeLayout(**filled, nics=nics or other.nics, idle_nics=cards.idle_nics)), notes


def _sorted(layout: NodeLayout, name: str) -> list[tuple[int, ...]]:
    return sorted(tuple(sorted(group)) for group in getattr(layout, name))


def _within_sockets(layout: NodeLayout) -> NodeLayout:
    """Drops sockets of cards where the sockets of the layout come from elsewhere and have other numbers."""
    known = len(layout.sockets or ())
    nics = tuple(n if n.socket is None or n.socket < known else dataclasses.replace(n, socket=None) for n in layout.nics)
    return dataclasses.replace(layout, nics=nics)


def one_network(networks: Sequence[Network]) -> tuple[Network | None, list[str]]:
    """The networks of several files as one, and notes.

    Raises:
        ConflictError: two files define a switch or a block in different ways.
    """
    if not networks:
        return None, []
    trees = [network for network in networks if network.switches]
    rated = [network for network in trees if _has_rates(network)]
    notes = []
    if rated and len(rated) < len(trees):
        notes.append("switches are taken from the file that has rates; those of the scheduler's tree are left out")
        trees = rated
    switches: dict[str, Switch] = {}
    for network in trees:
        for switch in network.switches:
            if switches.setdefault(switch.name, switch) != switch:
                message = f"switch {switch.name} differs between the files"
                raise ConflictError(message, where="FILES", hint="give one file of each network")
    blocks = {block.name: block for network in networks for block in network.blocks}
    if len(blocks) < len({(block.name, block.hosts) for network in networks for block in network.blocks}):
        raise ConflictError("a block differs between the files", where="FILES", hint="give one file of each network")
    sizes = next((network.block_sizes for network in networks if network.block_sizes), ())
    kind: Literal["tree", "blocks"] = "tree" if switches else "blocks"
    return Network(kind=kind, switches=tuple(switches.values()), blocks=tuple(blocks.values()), block_sizes=sizes), notes


def _has_rates(network: Network) -> bool:
    return any(port.links is not None for switch in network.switches for port in switch.ports)


def adapters_of(adapters: Iterable[Adapter]) -> dict[str, list[Adapter]]:
    """Ports by host."""
    made: dict[str, list[Adapter]] = defaultdict(list)
    for adapter in adapters:
        made[adapter.host].append(adapter)
    return dict(made)


def with_fabric_rates(nics: Sequence[Nic], ports: Sequence[Adapter]) -> tuple[Nic, ...]:
    """Cards with the rates that the fabric gives: by name, else the one rate that all ports of the host have."""
    named = {port.name: port.bytes_per_s for port in ports}
    rates = {port.bytes_per_s for port in ports}
    same = rates.pop() if len(rates) == 1 else None
    return tuple(dataclasses.replace(nic, bytes_per_s=named.get(nic.name) or same or nic.bytes_per_s) for nic in nics)
