"""The networkx view of a cluster: what is wired to what, with one-way bandwidths.

Vertices (attribute `kind`): ``gpu`` per usable GPU, ``domain`` per scale-up domain, ``host`` per node, ``nic`` per node (its
fabric NICs together) and one ``fabric``. Edges carry `bytes_per_s` one way (None = unknown) and `link`. In the folded
view each group of equal nodes is drawn once, its `count` on the host vertex.
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
            _add_node(graph, group, node + index, rank + index * group.gpus_per_node, base)
        if folded:
            graph.nodes[f"host{node}"]["count"] = group.count
        previous, in_kind = group.node, in_kind + group.count
        node, rank = node + group.count, rank + group.gpus
    return graph


def _domains_inside(node: Node) -> int:
    return max(1, node.gpus // node.scaleup_domain_gpus)


def _add_node(graph: networkx.DiGraph[str], group: NodeGroup, index: int, rank: int, domain: int) -> None:
    node = group.node
    host, nic = f"host{index}", f"nic{index}"
    graph.add_node(host, kind="host", node=node.id, count=1)
    graph.add_node(nic, kind="nic", nics=node.nics)
    _link(graph, host, nic, node.internode_bytes_per_s, "pcie")
    _link(graph, nic, "fabric", node.internode_bytes_per_s, "network")
    for gpu in range(group.gpus_per_node):
        name = f"gpu{rank + gpu}"
        graph.add_node(name, kind="gpu", rank=rank + gpu, device=node.device.id)
        _link(graph, name, host, node.host_bytes_per_s or node.device.pcie_bytes_per_s, "pcie")
        if node.scaleup_domain_gpus > 1:
            switch = f"domain{domain + gpu // node.scaleup_domain_gpus}"
            graph.add_node(switch, kind="domain")
            _link(graph, name, switch, node.scaleup_bytes_per_s, "scale-up")


def _link(graph: networkx.DiGraph[str], a: str, b: str, bytes_per_s: float | None, link: str) -> None:
    graph.add_edge(a, b, bytes_per_s=bytes_per_s, link=link)
    graph.add_edge(b, a, bytes_per_s=bytes_per_s, link=link)
