"""Nodes and clusters: which GPUs share a fast domain, a host and a network.

Ranks are numbered group after group, node after node, GPU after GPU. Three tiers of fabric:

    domain   GPUs that reach each other at scale-up speed; inside a node, or over several nodes (NVL72)
    node     GPUs under one host; where a node holds several domains they meet over PCIe and the host
    network  everything else, at `internode_bytes_per_s` one way per node

`Node` describes one machine, `NodeGroup` equal machines with G usable GPUs each, `Cluster` a sequence of groups. A
domain holds usable GPUs only. `graph` gives the networkx view with one-way bandwidths on its edges.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.documents import digest
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware import checks
from shardwright.hardware.device import Device, make_record
from shardwright.hardware.hostlist import compress
from shardwright.hardware.topology_records import Excluded, Network, NodeLayout

if TYPE_CHECKING:
    import networkx

MAX_NODES = 1_000_000
MAX_GPUS = 10_000_000
MAX_GPUS_PER_NODE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. Bandwidths are one way; None = unknown.

    Attributes:
        id: preset id, such as ``dgx-h100``.
        device: the accelerator it holds.
        gpus: accelerators in it.
        scaleup_domain_gpus: GPUs of one scale-up domain (1: none; above `gpus`: the domain spans nodes).
        scaleup_bytes_per_s: per GPU, all its scale-up links; None without a scale-up fabric.
        scaleup_pair_bytes_per_s: what one pair can use (a single link on a full mesh); None = as the whole.
        scaleup_fabric: id of the fit of the scale-up fabric, such as ``nvlink4``.
        host_bytes_per_s: per GPU through PCIe and the host.
        internode_bytes_per_s: per node, all fabric NICs.
        nics: fabric NICs in the node.
        fabric: id of the network class: infiniband, roce, ethernet, omni-path, slingshot, efa, ...
        in_switch_reduction: the network reduces in its switches (SHARP) and jobs are set up to use it.
        power_w: power of the whole node.
        usd_per_gpu_hour: price.
        price_source: where the price comes from and when it was read.
        host_memory_bytes: memory of the host.
        sources: where the figures come from.
        notes: what a user should know.
        layout: the machine from inside, where a topology was read; presets have none.
    """

    id: str
    device: Device
    gpus: int
    scaleup_domain_gpus: int
    scaleup_bytes_per_s: float | None = None
    scaleup_pair_bytes_per_s: float | None = None
    scaleup_fabric: str = "generic-scaleup"
    host_bytes_per_s: float | None = None
    internode_bytes_per_s: float | None = None
    nics: int | None = None
    fabric: str = "generic-network"
    in_switch_reduction: bool = False
    power_w: float | None = None
    usd_per_gpu_hour: float | None = None
    price_source: str = ""
    host_memory_bytes: int | None = None
    sources: tuple[str, ...] = ()
    notes: str = ""
    layout: NodeLayout | None = None

    def __post_init__(self) -> None:
        checks.identifier("node.id", self.id)
        checks.whole("node.gpus", self.gpus, 1, MAX_GPUS_PER_NODE)
        checks.whole("node.scaleup_domain_gpus", self.scaleup_domain_gpus, 1, 100_000)
        for name in _FLOATS:
            checks.optional_positive(f"node.{name}", getattr(self, name))
        if self.nics is not None:
            checks.whole("node.nics", self.nics, 1, 10_000)
        if self.host_memory_bytes is not None:
            checks.whole("node.host_memory_bytes", self.host_memory_bytes, 1, 2**60)
        small, large = sorted((self.gpus, self.scaleup_domain_gpus))
        if large % small:
            raise ConflictError(
                f"node {self.id}: scale-up domains of {self.scaleup_domain_gpus} GPUs do not go with {self.gpus} GPUs a node",
                where="node.scaleup_domain_gpus",
                hint="one must be a multiple of the other",
            )
        if self.layout is not None:
            self.layout.check(self.gpus)

    @property
    def nodes_per_domain(self) -> int:
        """Nodes that one scale-up domain spans; 1 where it lies inside a node."""
        return max(1, self.scaleup_domain_gpus // self.gpus)

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON values; `from_dict` reads it back to an equal record."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "layout"}
        layout = {} if self.layout is None else {"layout": self.layout.to_dict()}
        return {**plain, "device": self.device.to_dict(), "sources": list(self.sources), **layout}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Node:
        """A node from a mapping of its fields, the device given in full.

        Raises:
            InvalidValueError: a field missing or out of range.
            UnknownNameError: a key that is no field.
        """
        values = dict(data)
        device = values.get("device")
        if isinstance(device, Mapping):
            values["device"] = Device.from_dict(device)
        elif not isinstance(device, Device):
            raise InvalidValueError("node.device is missing", where="node.device", hint="give a device")
        if isinstance(values.get("layout"), Mapping):
            values["layout"] = NodeLayout.from_dict(values["layout"])
        made: Node = make_record(Node, "node", values, _FLOATS, ("sources",))
        return made


_FLOATS = (
    "scaleup_bytes_per_s",
    "scaleup_pair_bytes_per_s",
    "host_bytes_per_s",
    "internode_bytes_per_s",
    "power_w",
    "usd_per_gpu_hour",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes, each with the same number of usable GPUs.

    Attributes:
        node: the machine.
        count: how many.
        gpus_per_node: usable GPUs of each (the first ones).
        hosts: their names in rank order; empty where they have none.
    """

    node: Node
    count: int
    gpus_per_node: int
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.whole("count", self.count, 1, MAX_NODES)
        checks.whole("gpus_per_node", self.gpus_per_node, 1, self.node.gpus)
        if self.hosts and len(self.hosts) != self.count:
            message = f"{len(self.hosts)} host names for {self.count} nodes"
            raise ConflictError(message, where="hosts", hint="name each node once, or leave the names out")

    @property
    def gpus(self) -> int:
        """Usable GPUs of the group."""
        return self.count * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Groups of nodes on one network.

    Attributes:
        name: how it was asked for, or its name in the file.
        groups: in rank order.
        network: the switches between the nodes, where a topology was read; presets have none.
        excluded: hosts and GPUs out of use.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    network: Network | None = None
    excluded: tuple[Excluded, ...] = ()

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidValueError("the cluster has no nodes", where="groups", hint="give at least one group of nodes")
        checks.shown_name("cluster name", self.name)
        checks.whole("nodes of the cluster", self.nodes, 1, MAX_NODES)
        checks.whole("GPUs of the cluster", self.gpus, 1, MAX_GPUS)
        _check_hosts(self)

    @property
    def gpus(self) -> int:
        """Usable GPUs."""
        return sum(g.gpus for g in self.groups)

    @property
    def nodes(self) -> int:
        """Nodes."""
        return sum(g.count for g in self.groups)

    @property
    def gpus_per_node(self) -> int:
        """Usable GPUs of the fullest node."""
        return max(g.gpus_per_node for g in self.groups)

    @property
    def fast_gpus(self) -> int:
        """Usable GPUs of the fullest node, or of the largest scale-up domain where that is more."""
        return max(self.gpus_per_node, min(max(g.node.scaleup_domain_gpus for g in self.groups), self.gpus))

    @property
    def mixed(self) -> bool:
        """More than one kind of node."""
        return any(g.node != self.groups[0].node for g in self.groups[1:])

    @property
    def node(self) -> Node:
        """The node of all groups.

        Raises:
            ConflictError: the cluster has several kinds of node.
        """
        if self.mixed:
            kinds = ", ".join(dict.fromkeys(g.node.id for g in self.groups))
            raise ConflictError(f"cluster {self.name} mixes nodes ({kinds})", where="groups", hint="ask for each group's node")
        return self.groups[0].node

    @property
    def device(self) -> Device:
        """The device of all groups.

        Raises:
            ConflictError: the cluster has several kinds of device.
        """
        first = self.groups[0].node.device
        if any(g.node.device != first for g in self.groups[1:]):
            kinds = ", ".join(dict.fromkeys(g.node.device.id for g in self.groups))
            raise ConflictError(
                f"cluster {self.name} mixes devices ({kinds})", where="groups", hint="ask for each group's device"
            )
        return first

    @property
    def digest(self) -> str:
        """The sha256 of the canonical JSON of `to_dict`."""
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `catalog.cluster_from_dict` reads it back to an equal record."""
        network = {} if self.network is None else {"network": self.network.to_dict()}
        excluded = {"excluded": [entry.to_dict() for entry in self.excluded]} if self.excluded else {}
        return {"name": self.name, "groups": [_group_dict(g) for g in self.groups], **network, **excluded}

    def truncated(self, gpus: int) -> Cluster:
        """The cluster of the first `gpus` usable GPUs.

        Raises:
            InvalidValueError: not between 1 and the GPUs there are.
        """
        checks.whole("gpus", gpus, 1, self.gpus)
        if gpus == self.gpus:
            return self
        return dataclasses.replace(self, name=f"{self.name} first {gpus}", groups=tuple(_first(self.groups, gpus)))

    def in_equal_blocks(self) -> Cluster:
        """The cluster as schedulers hand it out where a scale-up domain spans nodes and one is not enough.

        A job that does not fill whole domains gets equal blocks of nodes, one a domain (Slurm's ``--segment``): the largest
        power of two of nodes that divides it. Rank groups then meet no odd boundary. Other clusters stay as they are.
        """
        if self.mixed or self.gpus_per_node != self.node.gpus:
            return self
        domain, gpus = self.node.scaleup_domain_gpus, self.gpus
        if domain <= self.node.gpus or gpus <= domain or gpus % domain == 0:
            return self
        blocks = [self.node.gpus * 2**power for power in range(domain.bit_length()) if self.node.gpus * 2**power <= domain]
        block = max((size for size in blocks if gpus % size == 0), default=domain)
        return self.with_node_values({"scaleup_domain_gpus": block}) if block != domain else self

    def with_node_values(self, changes: Mapping[str, Any]) -> Cluster:
        """The same cluster with fields of every node (or ``device.*`` of its device) replaced: a what-if.

        Raises:
            UnknownNameError: a key that is no field of a node.
            InvalidValueError: a value out of range.
        """
        groups = tuple(dataclasses.replace(g, node=_changed(g.node, changes)) for g in self.groups)
        return dataclasses.replace(self, groups=groups)

    def graph(self, *, folded: bool = False) -> networkx.DiGraph[str]:
        """The networkx view; see `shardwright.hardware.topology.cluster_graph`."""
        from shardwright.hardware.topology import cluster_graph

        return cluster_graph(self, folded=folded)


def _check_hosts(cluster: Cluster) -> None:
    named = [host for group in cluster.groups for host in group.hosts]
    twice = next((host for host, count in Counter(named).items() if count > 1), None) if named else None
    if twice is not None:
        raise ConflictError(f"host {twice} is named twice", where="groups.hosts", hint="name each node once")
    out = {entry.host for entry in cluster.excluded if not entry.gpus}.intersection(named)
    if out:
        hint = "take it from the hosts and lower the count, or from the excluded ones"
        raise ConflictError(f"host {min(out)} is in a group and excluded", where="excluded", hint=hint)


def _group_dict(group: NodeGroup) -> dict[str, Any]:
    hosts = {"hosts": compress(group.hosts)} if group.hosts else {}
    return {"node": group.node.to_dict(), "count": group.count, "gpus_per_node": group.gpus_per_node, **hosts}


def _first(groups: tuple[NodeGroup, ...], gpus: int) -> list[NodeGroup]:
    taken: list[NodeGroup] = []
    left = gpus
    for group in groups:
        whole = min(group.count, left // group.gpus_per_node)
        left -= whole * group.gpus_per_node
        if whole:
            taken.append(dataclasses.replace(group, count=whole, hosts=group.hosts[:whole]))
        if whole < group.count:
            break
    if left:
        taken.append(NodeGroup(node=group.node, count=1, gpus_per_node=left, hosts=group.hosts[whole : whole + 1]))
    return taken


def _changed(node: Node, changes: Mapping[str, Any]) -> Node:
    own = {k: v for k, v in changes.items() if not k.startswith("device.")}
    inner = {k.removeprefix("device."): v for k, v in changes.items() if k.startswith("device.")}
    device = Device.from_dict({**node.device.to_dict(), **inner}) if inner else node.device
    return Node.from_dict({**node.to_dict(), **own, "device": device})
