"""Networks by shape: switches for the nodes of a cluster, from a few parameters.

    tree        leaves of `hosts` nodes below one spine, or below pods of `places` leaves below a core
    rails       units of `hosts` nodes; NIC i of every node of a unit on its leaf i, all leaves below one spine
    dragonfly   routers of `hosts` nodes, groups of `places` routers meshed by `local_links` cables a pair, groups meshed by
                `global_links` cables a pair
    torus       a router a node in a grid of `dims`, joined to its neighbours round each ring

    cables up of a leaf = its cables down / `oversubscription`, of a pod = its rate / `place_oversubscription`

Presets lie in ``presets/networks``. `with_network` names the nodes of a cluster and puts them on such switches in their order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from shardwright import documents
from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware import checks
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.topology_records import Block, HostPorts, Network, Switch, Uplink

KINDS = ("tree", "rails", "dragonfly", "torus")
DEFAULT_LINK = 50e9


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """Parameters of a network; see the module for what each kind reads.

    Attributes:
        kind: tree, rails, dragonfly or torus.
        hosts: nodes on a leaf, unit or router.
        oversubscription: cables down over cables up of a leaf, at least 1.
        places: leaves of a pod (tree; 0 = no pods), routers of a group (dragonfly).
        place_oversubscription: rate into a pod from below over the rate out of it.
        local_links, global_links: cables between two routers of a group, between two groups.
        dims: nodes along each ring of a torus.
        link_bytes_per_s: one cable, one way; None = a NIC of the first node.
        source: where the shape comes from.
    """

    kind: Literal["tree", "rails", "dragonfly", "torus"]
    hosts: int = 1
    oversubscription: float = 1.0
    places: int = 0
    place_oversubscription: float = 1.0
    local_links: int = 1
    global_links: int = 1
    dims: tuple[int, ...] = ()
    link_bytes_per_s: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kind of network", str(self.kind), KINDS, where="network.kind")
        for name, low in (("hosts", 1), ("places", 0), ("local_links", 1), ("global_links", 1)):
            checks.whole(f"network.{name}", getattr(self, name), low, 100_000)
        for name in ("oversubscription", "place_oversubscription"):
            if checks.positive(f"network.{name}", getattr(self, name)) < 1:
                raise InvalidValueError(
                    f"network.{name} is below 1", where=f"network.{name}", hint="cables down over cables up"
                )
        checks.optional_positive("network.link_bytes_per_s", self.link_bytes_per_s)
        for length in self.dims:
            checks.whole("network.dims", length, 1, 100_000)
        if self.kind == "dragonfly" and self.places < 1:
            raise InvalidValueError("a dragonfly needs routers in a group", where="network.places", hint="state network.places")


def network_ids() -> tuple[str, ...]:
    """Ids of all network presets, sorted."""
    folder = files("shardwright.hardware").joinpath("presets", "networks")
    return tuple(sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")))


@lru_cache(maxsize=64)
def load_network(name: str) -> NetworkShape:
    """The network preset of a name.

    Raises:
        UnknownNameError: no such preset (nearest names offered).
    """
    known = network_ids()
    if name not in known:
        raise unknown_name("network preset", name, known, where="network.like")
    text = files("shardwright.hardware").joinpath("presets", "networks", f"{name}.yaml").read_text(encoding="utf-8")
    return shape_from(documents.parse_yaml(text, f"presets/networks/{name}.yaml").data)


def shape_from(values: Mapping[str, Any], base: NetworkShape | None = None) -> NetworkShape:
    """A shape from a mapping of its fields, or `base` with these changed.

    Raises:
        UnknownNameError: a key that is no field.
        InvalidValueError: a value out of range, or no kind.
    """
    known = [field.name for field in dataclasses.fields(NetworkShape)]
    for key in values:
        if key not in known:
            raise unknown_name("key", str(key), known, where=f"network.{key}")
    given = {**values, **({"dims": tuple(values["dims"])} if "dims" in values else {})}
    if base is not None:
        return dataclasses.replace(base, **given)
    if "kind" not in given:
        raise InvalidValueError("the network has no kind", where="network.kind", hint="allowed are " + ", ".join(KINDS))
    return NetworkShape(**given)


def with_network(cluster: Cluster, shape: NetworkShape) -> Cluster:
    """The cluster with its nodes on the switches of a shape; nodes without names are named node1, node2, ...

    Raises:
        InvalidValueError: a torus that has not as many places as the cluster has nodes.
    """
    named = _named(cluster)
    hosts = tuple(host for group in named.groups for host in group.hosts)
    node = cluster.groups[0].node
    nics = node.nics or node.gpus
    nic = None if node.internode_bytes_per_s is None else node.internode_bytes_per_s / nics
    build = {"tree": _tree, "rails": _rails, "dragonfly": _dragonfly, "torus": _torus}[shape.kind]
    return dataclasses.replace(named, network=build(shape, hosts, nics, nic))


def _named(cluster: Cluster) -> Cluster:
    width = len(str(cluster.nodes))
    groups, first = [], 1
    for group in cluster.groups:
        names = group.hosts or tuple(f"node{first + i:0{width}d}" for i in range(group.count))
        groups.append(dataclasses.replace(group, hosts=names))
        first += group.count
    return dataclasses.replace(cluster, groups=tuple(groups))


def _chunks(hosts: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [hosts[k : k + size] for k in range(0, len(hosts), size)]


def _upward(cables: float, oversubscription: float) -> int:
    return max(1, round(cables / oversubscription))


def _tree(shape: NetworkShape, hosts: tuple[str, ...], nics: int, nic: float | None) -> Network:
    rate = shape.link_bytes_per_s or nic
    parts = _chunks(hosts, shape.hosts)
    pods = math.ceil(len(parts) / shape.places) if shape.places else 1
    up = _upward(shape.hosts * nics, shape.oversubscription)
    leaves = [
        Switch(
            name=f"leaf{k}",
            ports=(HostPorts(hosts=part, links=nics, bytes_per_s=nic),),
            uplinks=(Uplink(to=f"pod{k // shape.places}" if shape.places else "spine", links=up, bytes_per_s=rate),),
        )
        for k, part in enumerate(parts)
    ]
    if not shape.places:
        return Network(switches=(*leaves, Switch(name="spine", tier=2)))
    out = Uplink(to="core", links=_upward(up * shape.places, shape.place_oversubscription), bytes_per_s=rate)
    middle = [Switch(name=f"pod{k}", tier=2, uplinks=(out,)) for k in range(pods)]
    return Network(switches=(*leaves, *middle, Switch(name="core", tier=3)))


def _rails(shape: NetworkShape, hosts: tuple[str, ...], nics: int, nic: float | None) -> Network:
    up = Uplink(to="spine", links=_upward(shape.hosts, shape.oversubscription), bytes_per_s=shape.link_bytes_per_s or nic)
    leaves = [
        Switch(
            name=f"unit{k}-rail{rail}",
            ports=(HostPorts(hosts=part, rail=rail, links=1, bytes_per_s=nic),),
            uplinks=(up,),
        )
        for k, part in enumerate(_chunks(hosts, shape.hosts))
        for rail in range(nics)
    ]
    return Network(switches=(*leaves, Switch(name="spine", tier=2)))


def _dragonfly(shape: NetworkShape, hosts: tuple[str, ...], nics: int, nic: float | None) -> Network:
    """Cables between two groups start at one router of each, in turn; each pair is listed once."""
    rate = shape.link_bytes_per_s or nic
    parts = _chunks(hosts, shape.hosts)
    groups = [list(range(k, min(k + shape.places, len(parts)))) for k in range(0, len(parts), shape.places)]
    cables: dict[int, list[Uplink]] = {k: [] for k in range(len(parts))}
    for routers in groups:
        for index, router in enumerate(routers):
            cables[router] += [_to(other, shape.local_links, rate) for other in routers[index + 1 :]]
    for one in range(len(groups)):
        for other in range(one + 1, len(groups)):
            here, there = groups[one][other % len(groups[one])], groups[other][one % len(groups[other])]
            cables[here].append(_to(there, shape.global_links, rate))
    switches = [
        Switch(name=f"router{k}", ports=(HostPorts(hosts=p, links=nics, bytes_per_s=nic),), uplinks=tuple(cables[k]))
        for k, p in enumerate(parts)
    ]
    blocks = [
        Block(name=f"group{k}", hosts=tuple(host for router in routers for host in parts[router]))
        for k, routers in enumerate(groups)
    ]
    return Network(switches=tuple(switches), blocks=tuple(blocks))


def _to(router: int, links: int, rate: float | None) -> Uplink:
    return Uplink(to=f"router{router}", links=links, bytes_per_s=rate)


def _torus(shape: NetworkShape, hosts: tuple[str, ...], nics: int, nic: float | None) -> Network:
    """Routers in the order of the last ring first; blocks are the slices across the first ring."""
    if math.prod(shape.dims) != len(hosts) or not shape.dims:
        places = "x".join(map(str, shape.dims)) or "no"
        raise InvalidValueError(
            f"a torus of {places} places does not hold {len(hosts)} nodes once each", where="network.dims", hint="set dims"
        )
    rate = shape.link_bytes_per_s or nic
    strides = [math.prod(shape.dims[k + 1 :]) for k in range(len(shape.dims))]
    switches = []
    for index, host in enumerate(hosts):
        at = [index // stride % length for stride, length in zip(strides, shape.dims, strict=True)]
        ups = []
        for place, stride, length in zip(at, strides, shape.dims, strict=True):
            last = place == length - 1
            if not last or length > 2:
                ups.append(_to(index - place * stride if last else index + stride, 1, rate))
        ports = (HostPorts(hosts=(host,), links=nics, bytes_per_s=nic),)
        switches.append(Switch(name=f"router{index}", ports=ports, uplinks=tuple(ups)))
    slices = [Block(name=f"slice{k}", hosts=part) for k, part in enumerate(_chunks(hosts, strides[0]))]
    return Network(switches=tuple(switches), blocks=tuple(slices) if len(slices) > 1 else ())
