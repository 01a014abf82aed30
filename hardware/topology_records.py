"""What a cluster says of its own wiring: one machine from inside, and the switches between machines.

    NodeLayout   islands, PCIe switches and sockets as groups of local GPU numbers; `Nic` = one compute rail
    Network      `Switch`es with the hosts on their ports (`HostPorts`) and their cables upwards (`Uplink`);
                 `Block`s of hosts as a scheduler names them
    Excluded     hosts or GPUs out of use

Bandwidths are bytes a second, one way; None = unknown. Presets have none of these records. They are written to and read
from the cluster YAML (`to_dict`, `from_dict`), host names there in the short form of `shardwright.hardware.hostlist`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.hardware import checks
from shardwright.hardware.hostlist import NAME, compress, expand

Groups = tuple[tuple[int, ...], ...]
KINDS = ("tree", "blocks")
MAX_LINKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network card that carries training traffic.

    Attributes:
        name: as the node calls it, such as ``mlx5_0``.
        bytes_per_s: rate of the card, one way.
        gpus: the GPUs it is the nearest card of.
        socket: index of the socket it hangs on.
    """

    name: str
    bytes_per_s: float | None = None
    gpus: tuple[int, ...] = ()
    socket: int | None = None

    def __post_init__(self) -> None:
        checks.shown_name("node.layout.nics.name", self.name)
        checks.optional_positive("node.layout.nics.bytes_per_s", self.bytes_per_s)
        if self.socket is not None:
            checks.whole("node.layout.nics.socket", self.socket, 0, 1023)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        return {"name": self.name, "bytes_per_s": self.bytes_per_s, "gpus": list(self.gpus), "socket": self.socket}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Nic:
        """A card from a mapping of its fields."""
        values = _known(Nic, "node.layout.nics", data)
        return Nic(**{**values, "gpus": tuple(values.get("gpus") or ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """One machine from inside. Groups are partitions of its GPUs, by local number from 0; None = unknown.

    Attributes:
        islands: GPUs that reach each other over scale-up links; a GPU without such links is an island of its own.
        link_counts: links between every pair, [gpu][gpu], where pairs of one island differ (meshes without switch).
        pcie_switches: GPUs below one PCIe switch.
        sockets: GPUs of one socket or memory domain.
        peer_access: GPUs can read each other's memory over PCIe.
        nics: compute rails in the order of the GPUs they serve; rail r is ``nics[r]``.
        idle_nics: names of cards that carry no training traffic (management, storage, bridges).
    """

    islands: Groups | None = None
    link_counts: Groups | None = None
    pcie_switches: Groups | None = None
    sockets: Groups | None = None
    peer_access: bool | None = None
    nics: tuple[Nic, ...] = ()
    idle_nics: tuple[str, ...] = ()

    PARTITIONS: ClassVar[tuple[str, ...]] = ("islands", "pcie_switches", "sockets")

    def check(self, gpus: int) -> None:
        """Compares the layout with the number of GPUs of its node.

        Raises:
            ConflictError: groups that are no partition of the GPUs, a matrix of another size, a rail that serves a GPU or
                hangs on a socket that the node has not.
        """
        for name in self.PARTITIONS:
            groups = getattr(self, name)
            if groups is not None and Counter(gpu for group in groups for gpu in group) != Counter(range(gpus)):
                hint = f"name each of 0 to {gpus - 1} in one group"
                raise ConflictError(f"the groups do not hold each of {gpus} GPUs once", where=f"node.layout.{name}", hint=hint)
        counts = self.link_counts
        if counts is not None and (len(counts) != gpus or any(len(row) != gpus for row in counts)):
            raise ConflictError(f"the matrix is not {gpus} x {gpus}", where="node.layout.link_counts", hint="a row a GPU")
        for nic in self.nics:
            if any(not 0 <= gpu < gpus for gpu in nic.gpus):
                raise ConflictError(
                    f"{nic.name} serves a GPU outside 0 to {gpus - 1}", where="node.layout.nics.gpus", hint="count GPUs from 0"
                )
            if nic.socket is not None and nic.socket >= len(self.sockets or ()):
                raise ConflictError(
                    f"{nic.name} hangs on socket {nic.socket}, which is not listed",
                    where="node.layout.nics.socket",
                    hint="count from 0",
                )

    def rails_of(self, gpu: int) -> tuple[int, ...]:
        """The rails that serve a GPU."""
        return tuple(rail for rail, nic in enumerate(self.nics) if gpu in nic.gpus)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        made: dict[str, Any] = {name: _lists(getattr(self, name)) for name in self.PARTITIONS}
        if self.link_counts is not None:
            made["link_counts"] = _lists(self.link_counts)
        nics = [nic.to_dict() for nic in self.nics]
        return {**made, "peer_access": self.peer_access, "nics": nics, "idle_nics": list(self.idle_nics)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> NodeLayout:
        """A layout from a mapping of its fields.

        Raises:
            UnknownNameError: a key that is no field.
            InvalidValueError: a value out of range.
        """
        values = _known(NodeLayout, "node.layout", data)
        groups = {name: _groups(values.get(name)) for name in (*NodeLayout.PARTITIONS, "link_counts")}
        nics = tuple(Nic.from_dict(nic) for nic in values.get("nics") or ())
        return NodeLayout(
            **groups, peer_access=values.get("peer_access"), nics=nics, idle_nics=tuple(values.get("idle_nics") or ())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """Cables from a switch to one of the next tier, listed once, at their lower end.

    Attributes:
        to: name of the upper switch.
        links: cables.
        bytes_per_s: rate of one, one way.
    """

    to: str
    links: int | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.links is not None:
            checks.whole("network.switches.uplinks.links", self.links, 1, MAX_LINKS)
        checks.optional_positive("network.switches.uplinks.bytes_per_s", self.bytes_per_s)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        return {"to": self.to, "links": self.links, "bytes_per_s": self.bytes_per_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPorts:
    """Hosts that hang on a switch in the same way.

    Attributes:
        hosts: their names.
        rail: index into `NodeLayout.nics`; None = all rails, or not known which.
        links: links of each host to this switch.
        bytes_per_s: rate of one, one way.
    """

    hosts: tuple[str, ...]
    rail: int | None = None
    links: int | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.rail is not None:
            checks.whole("network.switches.ports.rail", self.rail, 0, 10_000)
        if self.links is not None:
            checks.whole("network.switches.ports.links", self.links, 1, MAX_LINKS)
        checks.optional_positive("network.switches.ports.bytes_per_s", self.bytes_per_s)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        return {
            "hosts": compress(self.hosts),
            "rail": self.rail,
            "links": self.links,
            "bytes_per_s": self.bytes_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch of the network between nodes.

    Attributes:
        name: as the fabric calls it.
        tier: 1 for a switch with hosts, one more for each level above.
        ports: hosts on it.
        uplinks: cables to the next tier.
    """

    name: str
    tier: int = 1
    ports: tuple[HostPorts, ...] = ()
    uplinks: tuple[Uplink, ...] = ()

    def __post_init__(self) -> None:
        checks.shown_name("network.switches.name", self.name)
        checks.whole("network.switches.tier", self.tier, 1, 64)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        made: dict[str, Any] = {"name": self.name, "tier": self.tier}
        if self.ports:
            made["ports"] = [port.to_dict() for port in self.ports]
        if self.uplinks:
            made["uplinks"] = [uplink.to_dict() for uplink in self.uplinks]
        return made

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Switch:
        """A switch from a mapping of its fields."""
        values = _known(Switch, "network.switches", data)
        ports = [_known(HostPorts, "network.switches.ports", port) for port in values.get("ports") or ()]
        uplinks = [_known(Uplink, "network.switches.uplinks", uplink) for uplink in values.get("uplinks") or ()]
        values["ports"] = tuple(
            HostPorts(**{**p, "hosts": host_names(p.get("hosts"), "network.switches.ports")}) for p in ports
        )
        values["uplinks"] = tuple(Uplink(**uplink) for uplink in uplinks)
        return Switch(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Hosts that a scheduler treats as one rack or scale-up domain.

    Attributes:
        name: of the block.
        hosts: in it.
    """

    name: str
    hosts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        return {"name": self.name, "hosts": compress(self.hosts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Switches between the nodes, each named once.

    Attributes:
        kind: ``tree`` where switches are known, ``blocks`` where only groups of hosts are.
        switches: lower tiers first.
        blocks: racks or scale-up domains.
        block_sizes: sizes in nodes that the scheduler hands out.
    """

    kind: Literal["tree", "blocks"] = "tree"
    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    block_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kind of network", str(self.kind), KINDS, where="network.kind")
        tiers = {switch.name: switch.tier for switch in self.switches}
        twice = [name for name, count in Counter(s.name for s in self.switches).items() if count > 1]
        if twice:
            raise ConflictError(f"switch {twice[0]} is listed twice", where="network.switches", hint="keep one of them")
        for switch in self.switches:
            for uplink in switch.uplinks:
                if uplink.to not in tiers:
                    raise unknown_name("switch", uplink.to, tiers, where="network.switches.uplinks.to")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host on a switch or in a block, once, in order of appearance."""
        on_ports = (host for switch in self.switches for port in switch.ports for host in port.hosts)
        in_blocks = (host for block in self.blocks for host in block.hosts)
        return tuple(dict.fromkeys((*on_ports, *in_blocks)))

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        made: dict[str, Any] = {"kind": self.kind}
        if self.switches:
            made["switches"] = [switch.to_dict() for switch in self.switches]
        if self.blocks:
            made["blocks"] = [block.to_dict() for block in self.blocks]
        return {**made, "block_sizes": list(self.block_sizes)} if self.block_sizes else made

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Network:
        """A network from a mapping of its fields.

        Raises:
            UnknownNameError: a key that is no field, an uplink to a switch that is not listed.
            InvalidValueError: a value out of range, a host list that cannot be read.
            ConflictError: a switch listed twice.
        """
        values = _known(Network, "network", data)
        blocks = [_known(Block, "network.blocks", block) for block in values.get("blocks") or ()]
        return Network(
            kind=values.get("kind", "tree"),
            switches=tuple(Switch.from_dict(switch) for switch in values.get("switches") or ()),
            blocks=tuple(Block(name=b["name"], hosts=host_names(b.get("hosts"), "network.blocks.hosts")) for b in blocks),
            block_sizes=tuple(values.get("block_sizes") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A host out of use, or some of its GPUs. Hosts out of use are not counted among the nodes of a cluster.

    Attributes:
        host: its name.
        gpus: only these of its GPUs; empty = the whole host.
        reason: why.
    """

    host: str
    gpus: tuple[int, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not NAME.fullmatch(self.host):
            raise InvalidValueError(f"{str(self.host)[:40]!r} is no host name", where="excluded.host", hint="one name an entry")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal record."""
        gpus = {"gpus": list(self.gpus)} if self.gpus else {}
        return {"host": self.host, **gpus, "reason": self.reason}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Excluded:
        """An entry from a mapping of its fields."""
        values = _known(Excluded, "excluded", data)
        return Excluded(**{**values, "gpus": tuple(values.get("gpus") or ())})


def host_names(value: object, place: str) -> tuple[str, ...]:
    """Host names given as a host list or as a sequence of such.

    Raises:
        InvalidValueError: neither, or a list that cannot be read.
    """
    if isinstance(value, str):
        return expand(value, place=place)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(name for item in value for name in expand(item, place=place))
    raise InvalidValueError("hosts are missing", where=place, hint="write hosts: node[001-016]")


def _known(record: type[Any], place: str, data: Mapping[str, Any]) -> dict[str, Any]:
    fields = record.__dataclass_fields__
    for key in data:
        if key not in fields:
            raise unknown_name("key", str(key), fields, where=f"{place}.{key}")
    return dict(data)


def _groups(value: Sequence[Sequence[int]] | None) -> Groups | None:
    return None if value is None else tuple(tuple(group) for group in value)


def _lists(groups: Groups | None) -> list[list[int]] | None:
    return None if groups is None else [list(group) for group in groups]
