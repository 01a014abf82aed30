"""From readings to the content of a cluster YAML.

    combine -> same_machines, one_network, teams_of -> node_of (each kind of node) -> Draft

What no file says is null and becomes an `Unknown` with its remedy, or is taken from the node preset the user names, and said.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.hardware import checks
from shardwright.hardware.catalog import cluster_from_dict, load_device, load_node
from shardwright.hardware.hostlist import compress
from shardwright.hardware.readers.base import Adapter, Reading
from shardwright.hardware.readers.draft import Draft, Unknown
from shardwright.hardware.readers.infiniband import rail_numbers
from shardwright.hardware.readers.merging import adapters_of, one_network, same_machines
from shardwright.hardware.readers.nodes import NodeDraft, node_of
from shardwright.hardware.readers.teams import Team, teams_of
from shardwright.hardware.readers.text import counted
from shardwright.hardware.topology_records import Network, Nic, Switch

GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoOptions:
    """What a user can add to the files.

    Attributes:
        node: node preset for what the files leave open.
        device: device preset of the GPUs.
        nodes: number of nodes, where the files name no hosts.
        nic_gbps: rate of one compute card in Gb/s.
        name: of the cluster.
    """

    node: str | None = None
    device: str | None = None
    nodes: int | None = None
    nic_gbps: float | None = None
    name: str = "cluster"


def combine(readings: Sequence[Reading], options: TopoOptions) -> Draft:
    """The cluster that the readings describe together.

    Raises:
        ConflictError: the files contradict each other.
        InvalidValueError: an option out of range.
        UnknownNameError: a preset that does not exist.
    """
    checks.shown_name("--name", options.name)
    if options.nic_gbps is not None:
        checks.positive("--nic-gbps", options.nic_gbps)
    preset = None if options.node is None else load_node(options.node)
    device = None if options.device is None else load_device(options.device)
    machines, said = same_machines([machine for reading in readings for machine in reading.machines])
    network, more = one_network([reading.network for reading in readings if reading.network is not None])
    states = [state for reading in readings for state in reading.hosts]
    adapters = [adapter for reading in readings for adapter in reading.adapters]
    ports = adapters_of(adapters)
    crew = teams_of(machines, network, states, ports, options.nodes)
    fabric = next((reading.fabric for reading in readings if reading.fabric), None)
    rate = None if options.nic_gbps is None else options.nic_gbps * GBIT
    nodes = [
        node_of(team, preset=preset, device=device, nic_rate=rate, ports=_usual(team, ports), network=network, fabric=fabric)
        for team in crew.teams
    ]
    network, rails_said = _with_rails(network, nodes, adapters)
    notes = [note for reading in readings for note in reading.notes] + said + more + list(crew.notes) + rails_said
    notes += [note for node in nodes for note in node.notes] + _slow_hosts(crew.teams, ports)
    groups = [_group(team, node) for team, node in zip(crew.teams, nodes, strict=True)]
    data: dict[str, Any] = {"name": options.name, "groups": groups}
    if network is not None:
        data["network"] = network.to_dict()
    if crew.excluded:
        data["excluded"] = [entry.to_dict() for entry in crew.excluded]
    unknown = [item for node in nodes for item in node.unknown] + _open_cables(network)
    draft = Draft(data=data, unknown=tuple(dict.fromkeys(unknown)), notes=tuple(dict.fromkeys(notes)))
    _check(draft)
    return draft


def _group(team: Team, node: NodeDraft) -> dict[str, Any]:
    return {"node": node.data, "count": team.count, **({"hosts": compress(team.hosts)} if team.hosts else {})}


def _usual(team: Team, ports: Mapping[str, Sequence[Adapter]]) -> Sequence[Adapter]:
    """The ports of a host as most of a team have them."""
    shapes = {host: tuple((port.name, port.bytes_per_s) for port in ports[host]) for host in team.hosts if host in ports}
    if not shapes:
        return ()
    usual = Counter(shapes.values()).most_common(1)[0][0]
    return ports[next(host for host, shape in shapes.items() if shape == usual)]


def _slow_hosts(teams: Sequence[Team], ports: Mapping[str, Sequence[Adapter]]) -> list[str]:
    """Hosts whose ports together run below those of most others."""
    notes = []
    for team in teams:
        totals = {host: sum(port.bytes_per_s or 0.0 for port in ports[host]) for host in team.hosts if host in ports}
        usual = Counter(totals.values()).most_common(1)[0][0] if totals else 0.0
        slow = [host for host, total in totals.items() if total < usual]
        if slow:
            notes.append(
                f"{counted(len(slow), 'host')} with less than the usual {usual / 1e9:g} GB/s: {', '.join(slow[:8])}"
                + (", ..." if len(slow) > 8 else "")
            )
    return notes


def _with_rails(
    network: Network | None, nodes: Sequence[NodeDraft], adapters: Sequence[Adapter]
) -> tuple[Network | None, list[str]]:
    """Rails of the switches' ports numbered as the rails of the nodes."""
    cards = rail_numbers(adapters)
    nics = next((node.nics for node in nodes if node.nics), ())
    if network is None or cards is None or not nics:
        return network, []
    by_name = {nic.name: rail for rail, nic in enumerate(nics)}
    if all(name in by_name for name in cards):
        numbers: dict[int, int | None] = {rail: by_name[name] for name, rail in cards.items()}
        notes = []
    elif len(cards) == len(nics):
        numbers = {rail: rail for rail in cards.values()}
        notes = [] if _same_names(nics, cards) else [_in_order(nics, cards)]
    else:
        numbers = dict.fromkeys(cards.values())
        notes = [f"the fabric sees {len(cards)} cards a host, the machine has {len(nics)} rails: rails of ports stay open"]
    return dataclasses.replace(network, switches=tuple(_renumbered(s, numbers) for s in network.switches)), notes


def _same_names(nics: Sequence[Nic], cards: Mapping[str, int]) -> bool:
    return [nic.name for nic in nics] == list(cards)


def _in_order(nics: Sequence[Nic], cards: Mapping[str, int]) -> str:
    first = next(iter(cards))
    return f"the fabric names cards {first} and so on, the machine {nics[0].name} and so on: taken to be in the same order"


def _renumbered(switch: Switch, numbers: Mapping[int, int | None]) -> Switch:
    ports = tuple(
        dataclasses.replace(port, rail=None if port.rail is None else numbers.get(port.rail)) for port in switch.ports
    )
    return dataclasses.replace(switch, ports=ports)


def _open_cables(network: Network | None) -> list[Unknown]:
    """Asks for cables between switches where a file has none."""
    if network is None or all(uplink.links is not None for switch in network.switches for uplink in switch.uplinks):
        return []
    reason = "the number and rate of cables between switches are not in the scheduler's file, so neither is oversubscription"
    remedy = "add ibnetdiscover or iblinkinfo output, or write links and bytes_per_s"
    return [Unknown(key="network.switches.uplinks", reason=reason, remedy=remedy)]


def _check(draft: Draft) -> None:
    """Builds the cluster where nothing that it needs is open; a contradiction is a fault of the files.

    Raises:
        InvalidValueError: a value out of range.
    """
    needed = {"groups.node", "groups.node.device", "groups.node.scaleup_domain_gpus"}
    if not needed.intersection(item.key for item in draft.unknown):
        try:
            cluster_from_dict(draft.data)
        except InvalidValueError as error:
            error.hint = error.hint or "the files describe something that cannot be"
            raise
