import networkx
import pytest

from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.cluster import Cluster, NodeGroup


def _kinds(graph: networkx.DiGraph) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, kind in graph.nodes(data="kind"):
        found[kind] = found.get(kind, 0) + 1
    return found


def test_gpus_reach_each_other_over_domain_host_and_fabric() -> None:
    graph = load_cluster("dgx-h100:2x7").graph()
    assert _kinds(graph) == {"fabric": 1, "host": 2, "nic": 2, "gpu": 14, "domain": 2}
    assert graph.edges["gpu0", "domain0"]["bytes_per_s"] == 450e9
    assert graph.edges["nic1", "fabric"]["bytes_per_s"] == 400e9
    assert graph.edges["gpu0", "host0"] == {"bytes_per_s": 64e9, "link": "pcie"}
    assert networkx.shortest_path(graph, "gpu0", "gpu6") == ["gpu0", "domain0", "gpu6"] or graph.has_edge("gpu6", "host0")
    assert "fabric" in networkx.shortest_path(graph, "gpu0", "gpu7")
    assert all(graph.has_edge(b, a) for a, b in graph.edges)


def test_a_rack_shares_one_domain() -> None:
    graph = load_cluster("gb200-nvl72:20").graph()
    assert _kinds(graph) == {"fabric": 1, "host": 20, "nic": 20, "gpu": 80, "domain": 2}
    assert "fabric" not in networkx.shortest_path(graph, "gpu0", "gpu71")


def test_a_box_without_scale_up_has_no_domain() -> None:
    assert "domain" not in _kinds(load_cluster("l40s-pcie-4:2").graph())


def test_domains_agree_with_those_that_groups_count() -> None:
    from shardwright.hardware.groups import group_shape

    for name in ("dgx-h100:3", "gb200-nvl72:20", "gb200-nvl72:19x3", "jean-zay-v100-32g:2"):
        cluster = load_cluster(name)
        assert _kinds(cluster.graph())["domain"] == group_shape(cluster, cluster.gpus, 1).domains


def test_mixed_nodes_do_not_share_domains() -> None:
    racks, boxes = load_cluster("gb200-nvl72:20").groups[0], load_cluster("dgx-h100:3").groups[0]
    graph = Cluster(name="mixed", groups=(racks, boxes, racks)).graph()
    assert _kinds(graph)["domain"] == 2 + 3 + 2
    assert graph.nodes["gpu80"]["device"] == "h100-sxm5-80g"


@pytest.mark.parametrize(("name", "hosts"), [("dgx-h100:1000", 1), ("gb200-nvl72:1000", 18)])
def test_the_folded_view_draws_a_group_once(name: str, hosts: int) -> None:
    graph = load_cluster(name).graph(folded=True)
    assert _kinds(graph)["host"] == hosts
    assert graph.nodes["host0"]["count"] == 1000


def test_groups_of_equal_nodes_continue_a_rack() -> None:
    group = load_cluster("gb200-nvl72:9").groups[0]
    cluster = Cluster(name="split", groups=(group, NodeGroup(node=group.node, count=9, gpus_per_node=2)))
    assert _kinds(cluster.graph())["domain"] == 1


def test_switches_and_cables_are_drawn_where_they_are_known():
    from shardwright.hardware.network_presets import load_network, with_network

    graph = with_network(load_cluster("dgx-h100:4"), load_network("fat-tree-4to1")).graph()
    assert _kinds(graph) == {"switch": 2, "host": 4, "nic": 4, "gpu": 32, "domain": 4}
    assert graph.edges["nic0", "leaf0"] == {"bytes_per_s": 400e9, "link": "network"}
    assert graph.edges["leaf0", "spine"]["bytes_per_s"] == 600e9
    assert graph.nodes["spine"]["tier"] == 2
    assert networkx.shortest_path(graph, "gpu0", "gpu8")[1:4] == ["host0", "nic0", "leaf0"]


def test_rails_and_pcie_switches_are_drawn_where_the_layout_is_known():
    import dataclasses

    from shardwright.hardware.network_presets import load_network, with_network
    from shardwright.hardware.topology_records import Nic, NodeLayout

    pairs = tuple((2 * k, 2 * k + 1) for k in range(4))
    layout = NodeLayout(pcie_switches=pairs, nics=tuple(Nic(name=f"mlx5_{g}", bytes_per_s=50e9, gpus=(g,)) for g in range(8)))
    group = load_cluster("dgx-h100:2").groups[0]
    made = dataclasses.replace(group, node=dataclasses.replace(group.node, layout=layout))
    graph = with_network(Cluster(name="lab", groups=(made,)), load_network("rail-optimised")).graph()
    assert _kinds(graph) == {"switch": 9, "host": 2, "nic": 16, "gpu": 16, "domain": 2, "pcie": 8}
    assert graph.has_edge("nic1.3", "unit0-rail3")
    assert not graph.has_edge("nic1.3", "unit0-rail4")
    assert networkx.shortest_path(graph, "gpu0", "host0") == ["gpu0", "pcie0.0", "host0"]
