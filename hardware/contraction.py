"""The graph that maximum flows between two sets of ranks run over, equal parts of the cluster joined.

Nodes, switches and scale-up domains that span nodes get colours: at first their kind and how many ranks of either side they
hold, then as well the colours of their neighbours and the rates of the links to them, until nothing changes (`_colours`). The
parts of one colour become one vertex, capacities added. The division is equitable, so that the mean of a flow over equal parts
is a flow again, and least cuts keep their value (Ramana, Scheinerman and Ullman 1994, fractional isomorphism).

Inside a node, GPUs of either side reach the switch of their scale-up domain and, through PCIe, the host; the host reaches the
NICs, the NICs the leaves. Flow runs from side one to side two only. A rate that is not known bounds nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import networkx
import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.cluster import Cluster, Node
from shardwright.hardware.groups import placed

Ints = NDArray[np.int64]
Vertex = tuple[str, int | str]
Held = tuple[tuple[int, int, int], ...]
SOURCE, SINK = "source", "sink"
FABRIC: Vertex = ("fabric", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A cluster by nodes and switches.

    Attributes:
        held: of each node, (domain inside it, ranks of side one, of side two); the domain is -1 where it spans nodes.
        node: of each node, its kind.
        links: capacity between two parts, each pair once; None = not known.
        colour: what a part is, before its neighbours are looked at.
    """

    held: Mapping[int, Held]
    node: Mapping[int, Node]
    links: Mapping[tuple[Vertex, Vertex], float | None]
    colour: Mapping[Vertex, object]


def flow_graph(cluster: Cluster, one: Ints, other: Ints) -> networkx.DiGraph[str]:
    """The contracted graph: edges with `capacity` (left out where not known) and `link`, from `SOURCE` to `SINK`."""
    parts = _parts(cluster, one, other)
    colour = _colours(parts)
    members: dict[int, list[Vertex]] = defaultdict(list)
    for vertex, index in colour.items():
        members[index].append(vertex)
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    _add_links(graph, parts, colour, members)
    for index, vertices in members.items():
        if vertices[0][0] == "host":
            _add_node(graph, parts, index, vertices, colour)
    return graph


def _parts(cluster: Cluster, one: Ints, other: Ints) -> _Parts:
    node, domain, _, _ = placed(cluster)
    side = np.zeros(cluster.gpus, dtype=np.int64)
    side[one], side[other] = 1, 2
    kinds = np.repeat(np.arange(len(cluster.groups)), [g.count for g in cluster.groups])
    spans = np.array([g.node.nodes_per_domain > 1 for g in cluster.groups])[kinds[node]]
    code = np.stack([node, np.where(spans, -1, domain), side])
    held: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    columns, counts = np.unique(code, axis=1, return_counts=True)
    for (host, inner, which), count in zip(columns.T.tolist(), counts.tolist(), strict=True):
        if which:
            held[host][inner][which - 1] += count
    inside: dict[int, Held] = {
        host: tuple((at, found[inner][0], found[inner][1]) for at, inner in enumerate(sorted(found)))
        for host, found in held.items()
    }
    links = _links(cluster)
    first = {int(n): int(d) for n, d in zip(node[::-1], domain[::-1], strict=True)}
    spanning = {int(n) for n in np.unique(node[spans])}
    links |= {(("host", n), ("domain", first[n])): 0.0 for n in spanning}
    colour: dict[Vertex, object] = {vertex: vertex[0] for pair in links for vertex in pair if vertex[0] != "host"}
    tiers = {} if cluster.network is None else {s.name: s.tier for s in cluster.network.switches}
    colour |= {("switch", name): ("switch", tier) for name, tier in tiers.items()}
    colour |= {
        ("host", n): ("host", int(kinds[n]), n in spanning, tuple(sorted(h[1:] for h in inside.get(n, ()))))
        for n in range(cluster.nodes)
    }
    own = {n: cluster.groups[int(kinds[n])].node for n in range(cluster.nodes)}
    return _Parts(held=inside, node=own, links=links, colour=colour)


def _links(cluster: Cluster) -> dict[tuple[Vertex, Vertex], float | None]:
    """Ports and cables; nodes that no switch names meet in one fabric that bounds nothing."""
    names = [host for group in cluster.groups for host in group.hosts]
    number = {host: index for index, host in enumerate(names)} if len(names) == cluster.nodes else {}
    found: dict[tuple[Vertex, Vertex], float | None] = {}

    def add(pair: tuple[Vertex, Vertex], links: int | None, rate: float | None) -> None:
        known = None if links is None or rate is None else links * rate
        before = found.get(pair, 0.0)
        found[pair] = None if known is None or before is None else before + known

    on_switch: set[int] = set()
    for switch in cluster.network.switches if cluster.network is not None else ():
        for port in switch.ports:
            for host in (number[name] for name in port.hosts if name in number):
                on_switch.add(host)
                add((("host", host), ("switch", switch.name)), port.links, port.bytes_per_s)
        for uplink in switch.uplinks:
            add((("switch", switch.name), ("switch", uplink.to)), uplink.links, uplink.bytes_per_s)
    for host in range(cluster.nodes):
        if host not in on_switch:
            add((("host", host), FABRIC), None, None)
    return found


def _colours(parts: _Parts) -> dict[Vertex, int]:
    """The coarsest equitable division that tells apart what `parts.colour` does."""
    near: dict[Vertex, list[tuple[Vertex, float | None]]] = {vertex: [] for vertex in parts.colour}
    for (a, b), rate in parts.links.items():
        near[a].append((b, rate))
        near[b].append((a, rate))
    colour = _numbered(parts.colour)
    while True:
        finer = _numbered(
            {v: (colour[v], frozenset(Counter((colour[u], rate) for u, rate in near[v]).items())) for v in colour}
        )
        if len(set(finer.values())) == len(set(colour.values())):
            return colour
        colour = finer


def _numbered(labels: Mapping[Vertex, object]) -> dict[Vertex, int]:
    numbers: dict[object, int] = {}
    return {vertex: numbers.setdefault(label, len(numbers)) for vertex, label in labels.items()}


def _add_links(
    graph: networkx.DiGraph[str], parts: _Parts, colour: Mapping[Vertex, int], members: Mapping[int, list[Vertex]]
) -> None:
    """Links between parts of two colours, added up; links between parts of one colour lead nowhere new."""
    total: dict[tuple[int, int], float | None] = {}
    example: dict[tuple[int, int], tuple[Vertex, Vertex]] = {}
    for (a, b), rate in parts.links.items():
        if colour[a] == colour[b] or b[0] == "domain":
            continue
        ends = (a, b) if colour[a] < colour[b] else (b, a)
        pair = colour[ends[0]], colour[ends[1]]
        before = total.get(pair, 0.0)
        total[pair] = None if rate is None or before is None else before + rate
        example.setdefault(pair, ends)
    for (one, other), rate in total.items():
        a, b = example[one, other]
        name = f"{_shown(a, members[one])} to {_shown(b, members[other])}"
        here, there = (f"nic {index}" if v[0] == "host" else f"part {index}" for v, index in ((a, one), (b, other)))
        _both_ways(graph, here, there, rate, name)


def _shown(vertex: Vertex, members: list[Vertex]) -> str:
    if vertex[0] == "host":
        return f"ports of {len(members)} nodes" if len(members) > 1 else "ports of 1 node"
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    return f"{vertex[1] or vertex[0]}{more}"


def _add_node(
    graph: networkx.DiGraph[str], parts: _Parts, index: int, members: list[Vertex], colour: Mapping[Vertex, int]
) -> None:
    """The insides of the nodes of one colour, joined."""
    first, count = int(members[0][1]), len(members)
    node = parts.node[first]
    some = f"{count} nodes" if count > 1 else "1 node"
    _both_ways(graph, f"host {index}", f"nic {index}", _times(count, node.internode_bytes_per_s), f"NICs of {some}")
    host_rate = node.host_bytes_per_s or node.device.pcie_bytes_per_s
    for at, own, others in parts.held.get(first, ()):
        inner = f"domain {index}.{at}"
        spanning = next((b for a, b in parts.links if a == members[0] and b[0] == "domain"), None)
        if spanning is not None:
            inner = f"part {colour[spanning]}"
        for ranks, outward in ((own, True), (others, False)):
            if not ranks:
                continue
            gpus = f"gpus {index}.{at}.{int(outward)}"
            _side(graph, gpus, outward)
            if node.scaleup_domain_gpus > 1:
                _one_way(graph, gpus, inner, outward, _times(count * ranks, node.scaleup_bytes_per_s), f"scale-up of {some}")
            _one_way(graph, gpus, f"host {index}", outward, _times(count * ranks, host_rate), f"host path of {some}")


def _times(count: int, rate: float | None) -> float | None:
    return None if rate is None else count * rate


def _side(graph: networkx.DiGraph[str], gpus: str, outward: bool) -> None:
    if outward:
        graph.add_edge(SOURCE, gpus, link="GPUs")
    else:
        graph.add_edge(gpus, SINK, link="GPUs")


def _one_way(graph: networkx.DiGraph[str], gpus: str, to: str, outward: bool, rate: float | None, link: str) -> None:
    ends = (gpus, to) if outward else (to, gpus)
    if rate is None:
        graph.add_edge(*ends, link=link)
    else:
        graph.add_edge(*ends, link=link, capacity=rate)


def _both_ways(graph: networkx.DiGraph[str], a: str, b: str, rate: float | None, link: str) -> None:
    for one, other in ((a, b), (b, a)):
        _one_way(graph, one, other, True, rate, link)
