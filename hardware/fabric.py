"""What a collective needs to know of a cluster's links: measured curves per fabric, scaled to the node's datasheet rates.

A fabric preset (``presets/fabrics/<id>.yaml``) holds one `Curve` per kind of transfer, fitted to public measurements with
its source, rows and held-out error:

    t(n, S) = alpha + hop · steps(n) + c(n) · S / (efficiency · B · (n/8)^rank_power) · (1 + (ramp_bytes / S)^ramp_power)

with B the one-way datasheet rate of a rank, c(n) the share of S that a rank sends and steps(n) the dependent steps. Over a
network (I/2)^-node_power of its I islands takes the place of (n/8)^rank_power. A second protocol may be told apart: quick
steps at `quick_share` of the rate, for small messages. `Curve` holds the constants, `Tier` a curve set with its rate,
`Fabric` the tiers of a cluster, `fabric_of` builds it. Efficiencies, not rates, are stored, so a what-if on a link rate and a
sibling with cut links keep their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from shardwright import documents
from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware.cluster import Cluster, Node, NodeGroup

LOCAL_CURVES = ("ring_reduce", "gather", "scatter", "exchange", "send")  # and in_switch_reduce where the switch can reduce
RAILS = 8
"""NICs that a ring or tree of one collective drives on an island that spans nodes. All-reduce over racks of 64 and 72 GPUs with
a 400 Gb/s NIC each sends S in 2 racks at 341 to 408 GB/s and 2·S in 20 racks at 406 GB/s (coreweave/nccl-tests README,
oracle-quickstart/oci-hpc-oke logs): eight NICs' worth, whatever the rack holds."""
COPY_SHARE = 0.7
"""Of the rate with peer access, what is left through host memory: eight RTX 4090 reduce at 14.5 and 20.6 GB/s (public
nccl-tests logs of one machine with two drivers)."""
NETWORK_CURVES = ("ring", "tree", "exchange", "send")  # and in_switch where the network can


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Constants of one kind of transfer.

    Attributes:
        alpha_s: start-up time.
        hop_s: time of one dependent step.
        efficiency: share of the datasheet rate that large messages reach (at 8 ranks).
        rank_power: how that share changes with the number of ranks, up to 8.
        ramp_bytes: message at which the rate is half its asymptote (with ramp_power 1).
        ramp_power: how steeply it gets there; at most 1, so that a larger message is never faster.
        min_ranks: fewest ranks for which the algorithm is used.
        post_s: least time of a step inside an island while the network is used (posting of messages by the host).
        node_power: how the share falls with the number of islands beyond two (shared switches); at least 0.
        quick_share: share of the rate that the low-latency protocol reaches; 0 = no protocol told apart.
        bulk_step_s: what a step takes longer with the protocol for large messages.
    """

    alpha_s: float
    hop_s: float
    efficiency: float
    rank_power: float = 0.0
    ramp_bytes: float = 1.0
    ramp_power: float = 1.0
    min_ranks: int = 2
    post_s: float = 0.0
    node_power: float = 0.0
    quick_share: float = 0.0
    bulk_step_s: float = 0.0

    def __post_init__(self) -> None:
        rates = self.efficiency > 0 and 0 < self.ramp_power <= 1 and self.ramp_bytes > 0
        if not rates or min(self.alpha_s, self.hop_s, self.post_s, self.node_power, self.quick_share, self.bulk_step_s) < 0:
            raise InvalidValueError(
                f"curve constants out of range: {self}",
                hint="efficiency > 0, 0 < ramp_power <= 1, latencies and node_power >= 0",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier of links with its curves.

    Attributes:
        preset: id of the fabric preset the curves come from.
        bytes_per_s: one-way rate of a rank.
        pair_bytes_per_s: what a pair of ranks can use of it (mesh of direct links); the same behind a switch.
        curves: by name, see `LOCAL_CURVES` and `NETWORK_CURVES`.
        origin: measured, or modelled where no public measurement was found.
        source: where the curves come from.
    """

    preset: str
    bytes_per_s: float
    pair_bytes_per_s: float
    curves: Mapping[str, Curve]
    origin: str
    source: str

    def __hash__(self) -> int:
        return hash((self.preset, self.bytes_per_s, self.pair_bytes_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The tiers of a cluster; None where the cluster has no such tier, or where its rate is not known.

    Attributes:
        scaleup: links inside a scale-up domain, per rank.
        host: PCIe and host path between domains of a node, per rank.
        network: fabric NICs, the share of one rank (all ranks of a node use the NICs at once).
        in_switch: the network reduces in its switches.
        rails: ranks of an island whose shares of the network one ring or tree drives, at most.
        unknown: what is not known, to be named when it is needed.
    """

    scaleup: Tier | None
    host: Tier | None
    network: Tier | None
    in_switch: bool
    rails: int = RAILS
    unknown: tuple[str, ...] = ()

    def link_name(self, kind: str, place: str = "") -> str:
        """How results name a link: the preset of its curves; cables of the network by what they lead out of.

        Args:
            kind: one of `transfers.LINKS`.
            place: of cables, see `crossings.Crossing`.
        """
        tier = {"scale-up": self.scaleup, "host": self.host, "network": self.network}.get(kind)
        if tier is not None:
            return tier.preset
        return f"uplinks of {place}" if place else kind

    @property
    def sources(self) -> dict[str, str]:
        """Tier → where its curves come from, for the `sources` of a result."""
        tiers = {"scale-up": self.scaleup, "host": self.host, "network": self.network}
        return {name: f"{tier.origin}: {tier.source}" for name, tier in tiers.items() if tier is not None}


def fabric_ids() -> tuple[str, ...]:
    """Ids of all fabric presets, sorted."""
    folder = files("shardwright.hardware").joinpath("presets", "fabrics")
    return tuple(sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")))


def checked_fabrics(node: Node) -> Node:
    """The node, after looking up the fabrics it names.

    Raises:
        UnknownNameError: a fabric that has no preset.
        InvalidValueError: a network named as scale-up fabric, or the other way round.
    """
    for key, curves in (("scaleup_fabric", LOCAL_CURVES), ("fabric", NETWORK_CURVES)):
        _curves_of(getattr(node, key), curves, f"node.{key}")
    return node


def fabric_of(cluster: Cluster) -> Fabric:
    """The links of a cluster; where groups of nodes differ, the slowest of each tier (a collective waits for it).

    Raises:
        UnknownNameError: a node names a fabric preset that does not exist.
    """
    scaleup = [_scaleup(g.node) for g in cluster.groups if g.node.scaleup_domain_gpus > 1]
    host = [_host(g.node) for g in cluster.groups]
    network = [_network(g) for g in cluster.groups]
    unknown = []
    if None in scaleup:
        unknown.append("scaleup_bytes_per_s")
    if None in network:
        unknown.append("internode_bytes_per_s")
    return Fabric(
        scaleup=_slowest(scaleup),
        host=_slowest(host),
        network=_slowest(network),
        in_switch=all(g.node.in_switch_reduction for g in cluster.groups),
        rails=max(RAILS, cluster.gpus_per_node),
        unknown=tuple(unknown),
    )


def _slowest(tiers: list[Tier | None]) -> Tier | None:
    known = [t for t in tiers if t is not None]
    if not known or len(known) < len(tiers):
        return None
    return min(known, key=lambda t: t.bytes_per_s * next(iter(t.curves.values())).efficiency)


def _scaleup(node: Node) -> Tier | None:
    rate = node.scaleup_bytes_per_s
    return None if rate is None else _tier(node.scaleup_fabric, rate, node.scaleup_pair_bytes_per_s, LOCAL_CURVES)


def _host(node: Node) -> Tier | None:
    """Per rank; through host memory, where GPUs cannot read each other's."""
    rate = node.host_bytes_per_s or node.device.pcie_bytes_per_s
    if rate is None:
        return None
    copied = node.layout is not None and node.layout.peer_access is False
    return _tier("pcie", rate * (COPY_SHARE if copied else 1.0), None, LOCAL_CURVES)


def _network(group: NodeGroup) -> Tier | None:
    """The share of one rank: an equal part of the node's NICs, but never more than one NIC or one full node's share."""
    node = group.node
    total = node.internode_bytes_per_s
    if total is None:
        return None
    own = max(total / (node.nics or node.gpus), total / node.gpus)
    return _tier(node.fabric, min(total / group.gpus_per_node, own), None, NETWORK_CURVES)


def _tier(preset: str, rate: float, pair: float | None, names: tuple[str, ...]) -> Tier:
    data = _curves_of(preset, names, "fabric")
    return Tier(
        preset=preset,
        bytes_per_s=rate,
        pair_bytes_per_s=min(pair or rate, rate),
        curves=data["curves"],
        origin=str(data["origin"]),
        source=str(data["source"]) + _held_out(data.get("held_out", {})),
    )


def _held_out(errors: Mapping[str, Mapping[str, float]]) -> str:
    """The span of the median errors of held-out series, messages from 1 MiB, over the kinds of collective."""
    medians = [100 * e.get("median_1mib", e["median"]) for e in errors.values()]
    return f"; median error of held-out series {min(medians):.0f} to {max(medians):.0f} %" if medians else ""


def _curves_of(preset: str, names: tuple[str, ...], place: str) -> Mapping[str, Any]:
    data = _preset(preset, place)
    if any(n not in data["curves"] for n in names):
        fitting = [f for f in fabric_ids() if _preset(f)["kind"] != data["kind"]]
        raise InvalidValueError(
            f"fabric {preset} is a {data['kind']} fabric", where=place, hint="allowed here: " + ", ".join(fitting)
        )
    return data


@lru_cache(maxsize=256)
def _preset(name: str, place: str = "fabric") -> Mapping[str, Any]:
    known = fabric_ids()
    if name not in known:
        raise unknown_name("fabric", name, known, where=place)
    text = files("shardwright.hardware").joinpath("presets", "fabrics", f"{name}.yaml").read_text(encoding="utf-8")
    data = documents.parse_yaml(text, f"presets/fabrics/{name}.yaml").data
    return {**data, "curves": {key: Curve(**value) for key, value in data["curves"].items()}}
