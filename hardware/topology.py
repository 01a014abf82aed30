"""The networkx view of a cluster: what is wired to what, with one-way bandwidths.

Vertices (attribute `kind`): ``gpu`` per usable GPU, ``domain`` per scale-up domain, ``pcie`` per PCIe switch where the layout
of a node is known, ``host`` per node, ``nic`` per rail where rails are known, else per node (its fabric NICs together), and
``switch`` per switch where the cluster names them, else one ``fabric``. Edges carry `bytes_per_s` one way (None = unknown) and
`link`. In the folded view each group of equal nodes is drawn once, its `count` on the host vertex, and no switches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.hardware.cluster import Cluster, Node, NodeGroup

if TYPE_CHECKING:
    import networkx


def cluster_graph(cluster: Cluster, *, folded: bool = False) -> networkx.DiGraph[str]:
    """Builds the graph.

    Args:
        cluster: what to draw.
        folded: one node (or one domain, where it spans nodes) for each group instead of all.

    Returns:
        A directed graph, each link as two edges.
    """
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph(name=cluster.name)
    switched = set() if folded else _on_switches(cluster)
    names = [host for group in cluster.groups for host in group.hosts]
    if not names or not set(names) <= switched:
        graph.add_node("fabric", kind="fabric")
    node = rank = domain = 0
    previous: Node | None = None
    in_kind = 0
    for group in cluster.groups:
        if previous is not None and group.node != previous:
            domain, in_kind = domain + -(-in_kind // previous.nodes_per_domain) * _domains_inside(previous), 0
        drawn = min(group.count, group.node.nodes_per_domain) if folded else group.count
        for index in range(drawn):
            base = domain + (in_kind + index) // group.node.nodes_per_domain * _domains_inside(group.node)
            in_fabric = not group.hosts or group.hosts[index] not in switched
            _add_node(graph, group, node + index, rank + index * group.gpus_per_node, base, in_fabric=in_fabric)
        if folded:
            graph.nodes[f"host{node}"]["count"] = group.count
        previous, in_kind = group.node, in_kind + group.count
        node, rank = node + group.count, rank + group.gpus
    if switched:
        _add_switches(graph, cluster)
    return graph


def _on_switches(cluster: Cluster) -> set[str]:
    switches = () if cluster.network is None else cluster.network.switches
    return {host for switch in switches for port in switch.ports for host in port.hosts}


def _domains_inside(node: Node) -> int:
    return max(1, node.gpus // node.scaleup_domain_gpus)


def _add_node(graph: networkx.DiGraph[str], group: NodeGroup, index: int, rank: int, domain: int, *, in_fabric: bool) -> None:
    node, host = group.node, f"host{index}"
    graph.add_node(host, kind="host", node=node.id, count=1)
    for name, bytes_per_s in _nics(node, index):
        graph.add_node(name, kind="nic", nics=node.nics if name == f"nic{index}" else 1)
        _link(graph, host, name, bytes_per_s, "pcie")
        if in_fabric:
            _link(graph, name, "fabric", bytes_per_s, "network")
    for gpu in range(group.gpus_per_node):
        name = f"gpu{rank + gpu}"
        graph.add_node(name, kind="gpu", rank=rank + gpu, device=node.device.id)
        _link(graph, name, _above(graph, node, index, gpu), _host_rate(node), "pcie")
        if node.scaleup_domain_gpus > 1:
            switch = f"domain{domain + gpu // node.scaleup_domain_gpus}"
            graph.add_node(switch, kind="domain")
            _link(graph, name, switch, node.scaleup_bytes_per_s, "scale-up")


def _host_rate(node: Node) -> float | None:
    return node.host_bytes_per_s or node.device.pcie_bytes_per_s


def _nics(node: Node, index: int) -> list[tuple[str, float | None]]:
    """Rails by number where they are known, else all cards of the node as one."""
    if node.layout is None or not node.layout.nics:
        return [(f"nic{index}", node.internode_bytes_per_s)]
    return [(f"nic{index}.{rail}", nic.bytes_per_s) for rail, nic in enumerate(node.layout.nics)]


def _above(graph: networkx.DiGraph[str], node: Node, index: int, gpu: int) -> str:
    """What a GPU hangs on: its PCIe switch, which hangs on the host, or the host."""
    switches = None if node.layout is None else node.layout.pcie_switches
    own = next((k for k, gpus in enumerate(switches or ()) if gpu in gpus), None)
    if own is None:
        return f"host{index}"
    name = f"pcie{index}.{own}"
    if name not in graph:
        graph.add_node(name, kind="pcie")
        _link(graph, name, f"host{index}", _host_rate(node), "pcie")
    return name


def _add_switches(graph: networkx.DiGraph[str], cluster: Cluster) -> None:
    """Switches, the NICs on their ports, and the cables between them."""
    names = {host: index for index, host in enumerate(host for group in cluster.groups for host in group.hosts)}
    switches = () if cluster.network is None else cluster.network.switches
    graph.add_nodes_from((switch.name, {"kind": "switch", "tier": switch.tier}) for switch in switches)
    for switch in switches:
        for port in switch.ports:
            for index in (names[host] for host in port.hosts if host in names):
                _join(graph, _plug(graph, index, port.rail), switch.name, port.links, port.bytes_per_s)
        for uplink in switch.uplinks:
            _join(graph, switch.name, uplink.to, uplink.links, uplink.bytes_per_s)


def _plug(graph: networkx.DiGraph[str], index: int, rail: int | None) -> str:
    """The NIC of a node on a port; the host where rails are known, but not which one hangs there."""
    wanted = (f"nic{index}.{rail}", f"nic{index}", f"host{index}")
    return next(name for name in wanted if name in graph)


def _join(graph: networkx.DiGraph[str], a: str, b: str, links: int | None, bytes_per_s: float | None) -> None:
    """Adds cables to those that join two vertices already."""
    rate = None if links is None or bytes_per_s is None else links * bytes_per_s
    before = graph.edges[a, b]["bytes_per_s"] if graph.has_edge(a, b) else 0.0
    _link(graph, a, b, None if rate is None or before is None else before + rate, "network")


def _link(graph: networkx.DiGraph[str], a: str, b: str, bytes_per_s: float | None, link: str) -> None:
    graph.add_edge(a, b, bytes_per_s=bytes_per_s, link=link)
    graph.add_edge(b, a, bytes_per_s=bytes_per_s, link=link)
