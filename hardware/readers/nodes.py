"""One kind of node as a mapping of the cluster YAML, from the machine, the scheduler, the fabric and a preset.

Of each field the first source that knows it counts: what the user states, the machine, the fabric, the device, the preset.
A field that none knows is null and asked for.

    node_of -> _device -> _links (scale-up) -> _cards (rails, rates) -> data
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from shardwright.hardware.catalog import load_device, load_node, node_ids
from shardwright.hardware.cluster import Node
from shardwright.hardware.device import Device
from shardwright.hardware.links import fabric_of_device
from shardwright.hardware.readers.base import Adapter
from shardwright.hardware.readers.draft import Unknown
from shardwright.hardware.readers.guess import candidates, goes_with, link_rates
from shardwright.hardware.readers.infiniband import rail_numbers
from shardwright.hardware.readers.merging import with_fabric_rates
from shardwright.hardware.readers.teams import Team
from shardwright.hardware.readers.text import counted
from shardwright.hardware.topology_records import Network, Nic, NodeLayout

MOST_NAMED = 12


@dataclass(slots=True, kw_only=True)
class NodeDraft:
    """A node as far as it is known.

    Attributes:
        data: its mapping; None where nothing is known.
        nics: compute rails.
        unknown: what is open.
        notes: what there is to say.
    """

    data: dict[str, Any] | None = None
    nics: tuple[Nic, ...] = ()
    unknown: list[Unknown] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ask(self, key: str, reason: str, remedy: str) -> None:
        """Adds something that is open."""
        self.unknown.append(Unknown(key=f"groups.{key}", reason=reason, remedy=remedy))


def node_of(
    team: Team,
    *,
    preset: Node | None,
    device: Device | None,
    nic_rate: float | None,
    ports: Sequence[Adapter],
    network: Network | None,
    fabric: str | None,
) -> NodeDraft:
    """The node of a team.

    Args:
        team: equal nodes.
        preset: what the user names for the rest.
        device: what the user names.
        nic_rate: of one card, as the user states it.
        ports: of a usual host of the team, as the fabric sees them.
        network: blocks tell how far a domain reaches over nodes.
        fabric: class of the network.
    """
    draft = NodeDraft()
    if team.gpus is None and preset is None:
        return _nameless(device, nic_rate, ports, fabric, draft)
    gpus = team.gpus or (preset.gpus if preset is not None else 1)
    chip = device or _device(team, preset, draft)
    _compare(team, chip, draft)
    values: dict[str, Any] = {"device": None if chip is None else chip.id, "gpus": gpus}
    values |= _links(team, gpus, chip, preset, network, draft)
    machine = team.machine
    if machine is not None and machine.pcie_bytes_per_s is not None:
        values["host_bytes_per_s"] = machine.pcie_bytes_per_s
    elif chip is None:
        values["host_bytes_per_s"] = None
    values |= _cards(team, preset, nic_rate, ports, draft)
    values["fabric"] = (
        fabric or (None if machine is None else machine.fabric) or (preset and preset.fabric) or "generic-network"
    )
    if values["fabric"] == "generic-network":
        draft.notes.append("the class of the network is not known: fabric is generic-network; write infiniband, roce, efa, ...")
    if team.memory_bytes is not None:
        values["host_memory_bytes"] = team.memory_bytes
    if machine is not None:
        values["sources"] = [machine.source]
    layout = _layout(team, draft)
    draft.data = _on_preset(values, preset, draft) | ({} if layout is None else {"layout": layout.to_dict()})
    return draft


def _nameless(
    device: Device | None, nic_rate: float | None, ports: Sequence[Adapter], fabric: str | None, draft: NodeDraft
) -> NodeDraft:
    """A node of which the network is all that is known: no file describes it."""
    remedy = "add `nvidia-smi topo -m` of one, name it with --node PRESET, or --set cluster.node=PRESET in plan"
    draft.ask("node", "no file describes a node", remedy)
    if not ports and device is None:
        return draft
    values: dict[str, Any] = {"id": "read-node", "device": device and device.id, "gpus": None, "scaleup_domain_gpus": None}
    values |= _cards(Team(count=1), None, nic_rate, ports, draft) if ports else {}
    layout = {"layout": NodeLayout(nics=draft.nics).to_dict()} if draft.nics else {}
    draft.data = values | ({"fabric": fabric} if fabric else {}) | layout
    return draft


# --- device -------------------------------------------------------------------------------------------------------


def _device(team: Team, preset: Node | None, draft: NodeDraft) -> Device | None:
    found = candidates(team.machine, team.gpu_type) if team.gpus is not None else ()
    if len(found) == 1:
        draft.notes.append(f"device {found[0]}: the only preset that goes with what was read")
        return load_device(found[0])
    if preset is not None:
        return preset.device
    some = f"; it can be {', '.join(found)}" if 0 < len(found) <= MOST_NAMED else ""
    draft.ask(
        "node.device", f"no file names the GPUs{some}", "name them with --device PRESET, or --set cluster.device=PRESET in plan"
    )
    return None


def _compare(team: Team, chip: Device | None, draft: NodeDraft) -> None:
    machine = team.machine
    if machine is None or chip is None or goes_with(chip, machine):
        return
    seen = f"{machine.links_of_gpu} {machine.link_kind} links a GPU" if machine.links_of_gpu else "what was read"
    draft.notes.append(f"{chip.id} does not go with {seen} in {machine.source}; the links that were read are used")


# --- scale-up links -----------------------------------------------------------------------------------------------


def _links(
    team: Team, gpus: int, chip: Device | None, preset: Node | None, network: Network | None, draft: NodeDraft
) -> dict[str, Any]:
    """Domain, rates and fabric of the scale-up links."""
    domain = _domain(team, gpus, chip, preset, network, draft)
    if domain is None:
        return {"scaleup_domain_gpus": None, "scaleup_bytes_per_s": None, "scaleup_fabric": None}
    if domain == 1:
        return {"scaleup_domain_gpus": 1, "scaleup_bytes_per_s": None, "scaleup_fabric": "generic-scaleup"}
    machine = team.machine
    devices = (chip.id,) if chip is not None else candidates(machine, team.gpu_type)
    known = None if machine is None else link_rates(machine, devices)
    rate = known.bytes_per_s if known is not None else None
    pair = known.pair_bytes_per_s if known is not None else None
    if rate is None and chip is not None:
        rate = preset.scaleup_bytes_per_s if preset is not None and preset.device == chip else chip.scaleup_bytes_per_s
    if rate is None:
        links = "links" if machine is None or not machine.links_of_gpu else f"the {machine.links_of_gpu} links"
        remedy = "name the device with --device PRESET, or --set cluster.scaleup_bytes_per_s=RATE in plan"
        draft.ask("node.scaleup_bytes_per_s", f"the rate of {links} of a GPU follows from the device", remedy)
    fabric = fabric_of_device(chip) if chip is not None else (known.fabric if known is not None else None)
    values = {"scaleup_domain_gpus": domain, "scaleup_bytes_per_s": rate, "scaleup_fabric": fabric}
    return values | ({"scaleup_pair_bytes_per_s": pair} if pair is not None else {})


def _domain(
    team: Team, gpus: int, chip: Device | None, preset: Node | None, network: Network | None, draft: NodeDraft
) -> int | None:
    islands = team.machine.layout.islands if team.machine is not None else None
    inside = None if islands is None else gcd(*(len(island) for island in islands))
    if inside is not None and inside < gpus:
        return inside
    across = _across_nodes(gpus, chip, preset, network)
    if across is not None:
        draft.notes.append(f"scale-up domains span nodes: {across} GPUs, from the blocks of the network or from presets")
        return across
    if inside is not None:
        return inside
    if preset is not None and preset.gpus == gpus:
        return preset.scaleup_domain_gpus
    if chip is not None and chip.scaleup_bytes_per_s is None:
        return 1
    such = _fitting(team, gpus, chip)
    named = f"--node PRESET (such as {such})" if such else "--node PRESET"
    remedy = f"add `nvidia-smi topo -m`, name the node with {named}, or --set cluster.scaleup_domain_gpus=N in plan"
    draft.ask("node.scaleup_domain_gpus", "the files do not tell which GPUs NVLinks or xGMI join", remedy)
    return None


def _fitting(team: Team, gpus: int, chip: Device | None) -> str | None:
    """The node preset with this device, number of GPUs and number of cards; None without one."""
    cards = len(team.machine.layout.nics) if team.machine is not None else 0
    nodes = (load_node(name) for name in node_ids()) if chip is not None and cards else ()
    return next((n.id for n in nodes if chip is not None and (n.device.id, n.gpus, n.nics) == (chip.id, gpus, cards)), None)


def _across_nodes(gpus: int, chip: Device | None, preset: Node | None, network: Network | None) -> int | None:
    """GPUs of a domain that spans nodes; None for machines whose domains do not."""
    spanning = preset if preset is not None and preset.scaleup_domain_gpus > preset.gpus else None
    if spanning is None and chip is not None and network is not None and network.blocks:
        nodes = (load_node(name) for name in node_ids())
        spanning = next((n for n in nodes if n.device.id == chip.id and n.scaleup_domain_gpus > n.gpus), None)
    if spanning is None:
        return None
    if network is not None and network.blocks:
        return gpus * min(len(block.hosts) for block in network.blocks)
    return spanning.scaleup_domain_gpus if spanning.gpus == gpus else None


# --- cards --------------------------------------------------------------------------------------------------------


def _cards(
    team: Team, preset: Node | None, nic_rate: float | None, ports: Sequence[Adapter], draft: NodeDraft
) -> dict[str, Any]:
    """Number of rails and the rate of the node, and the rails themselves in `NodeDraft.nics`."""
    nics = team.machine.layout.nics if team.machine is not None else ()
    rails = _rails(nics, ports)
    each = nic_rate if nic_rate is not None else _preset_rate(preset)
    rails = tuple(
        dataclasses.replace(nic, bytes_per_s=nic_rate if nic_rate is not None else (nic.bytes_per_s or each)) for nic in rails
    )
    if each is not None and nic_rate is None and rails != _rails(nics, ports):
        draft.notes.append(f"rate of a card, {each / 1e9:g} GB/s: taken from {preset.id if preset is not None else ''}")
    draft.nics = rails
    if rails and all(nic.bytes_per_s is not None for nic in rails):
        return {"nics": len(rails), "internode_bytes_per_s": sum(nic.bytes_per_s or 0.0 for nic in rails)}
    if not rails and preset is not None:
        return {}
    if not rails and nic_rate is not None:
        draft.notes.append("--nic-gbps counts for nothing: no file lists network cards")
    cards = f"the rate of {counted(len(rails), 'network card')}" if rails else "the network of a node"
    ways = "--nic-gbps RATE, " if rails else ""
    remedy = f"{ways}iblinkinfo or ibnetdiscover output, or --set cluster.internode_bytes_per_s=RATE in plan"
    draft.ask("node.internode_bytes_per_s", f"{cards} is in no file", remedy)
    return {"nics": len(rails) or None, "internode_bytes_per_s": None}


def _rails(nics: Sequence[Nic], ports: Sequence[Adapter]) -> tuple[Nic, ...]:
    """Rails of the machine with the rates of the fabric; the fabric's own cards where the machine lists none."""
    if nics or not ports:
        return with_fabric_rates(nics, ports)
    numbers = rail_numbers(ports)
    ordered = sorted(ports, key=lambda port: numbers[port.name]) if numbers is not None else list(ports)
    names = [port.name for port in ordered]
    return tuple(
        Nic(name=port.name if names.count(port.name) == 1 else f"{port.name}:{index}", bytes_per_s=port.bytes_per_s)
        for index, port in enumerate(ordered)
    )


def _preset_rate(preset: Node | None) -> float | None:
    if preset is None or preset.internode_bytes_per_s is None or preset.nics is None:
        return None
    return preset.internode_bytes_per_s / preset.nics


# --- layout and preset --------------------------------------------------------------------------------------------


def _layout(team: Team, draft: NodeDraft) -> NodeLayout | None:
    layout = team.machine.layout if team.machine is not None else None
    if layout is None:
        return NodeLayout(nics=draft.nics) if draft.nics else None
    made = dataclasses.replace(layout, nics=draft.nics)
    alone = layout.islands is not None and len(layout.islands) == team.gpus and (team.gpus or 0) > 1
    if alone and layout.peer_access is None:
        reason = "whether GPUs read each other's memory over PCIe is in no file (consumer cards do not)"
        draft.ask("node.layout.peer_access", reason, "see `nvidia-smi topo -p2p r`, and write true or false")
    return made


def _on_preset(values: dict[str, Any], preset: Node | None, draft: NodeDraft) -> dict[str, Any]:
    """The values alone, or on top of a preset with what it supplies said."""
    if preset is None:
        chip = values["device"] or "gpu"
        return {"id": f"read-{chip}-{values['gpus']}", **values}
    known = {key: value for key, value in values.items() if value is not None and getattr(preset, key, None) != value}
    known = {key: value for key, value in known.items() if key != "device" or value != preset.device.id}
    supplied = [
        key
        for key in (
            "device",
            "scaleup_bytes_per_s",
            "host_bytes_per_s",
            "internode_bytes_per_s",
            "fabric",
            "power_w",
            "usd_per_gpu_hour",
        )
        if key not in known and getattr(preset, key) is not None
    ]
    draft.notes.append(f"taken from {preset.id}, or equal to it: {', '.join(supplied)}")
    return {"base": preset.id, "id": f"{preset.id}-read", "gpus": values["gpus"], **known}
