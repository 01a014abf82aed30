"""Networks by shape: how many switches and cables, and cluster files that name them."""

import pytest

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.hardware.catalog import cluster_from_dict, load_cluster, read_cluster, write_cluster
from shardwright.hardware.network_levels import levels_of
from shardwright.hardware.network_presets import load_network, network_ids, shape_from, with_network


def cables(network):
    return sum(up.links for switch in network.switches for up in switch.uplinks)


@pytest.mark.parametrize("name", [name for name in network_ids() if name != "torus"])
def test_every_preset_has_a_source_and_carries_all_nodes(name):
    shape = load_network(name)
    assert shape.source
    cluster = with_network(load_cluster("dgx-h100:50"), shape)
    assert sorted(cluster.network.hosts) == sorted(cluster.groups[0].hosts)
    assert len(levels_of(cluster)) >= 1


def test_a_tree_has_the_cables_of_its_oversubscription():
    for ratio in (1, 2, 4):
        network = with_network(
            load_cluster("dgx-h100:16"), shape_from({"kind": "tree", "hosts": 4, "oversubscription": ratio})
        ).network
        assert cables(network) == 16 * 8 / ratio
        assert len(network.switches) == 4 + 1


def test_rails_hang_on_leaves_of_their_own():
    network = with_network(load_cluster("dgx-h100:64"), load_network("rail-optimised")).network
    assert len(network.switches) == 2 * 8 + 1
    assert {port.rail for switch in network.switches for port in switch.ports} == set(range(8))
    assert all(port.links == 1 for switch in network.switches for port in switch.ports)


def test_groups_of_a_dragonfly_are_joined_each_to_each():
    network = with_network(
        load_cluster("dgx-h100:24"), shape_from({"kind": "dragonfly", "hosts": 2, "places": 3, "global_links": 5})
    ).network
    groups = {host: block.name for block in network.blocks for host in block.hosts}
    of = {switch.name: groups[switch.ports[0].hosts[0]] for switch in network.switches}
    between = [(of[s.name], of[up.to], up.links) for s in network.switches for up in s.uplinks if of[s.name] != of[up.to]]
    assert len(between) == 4 * 3 / 2
    assert {links for _, _, links in between} == {5}
    inside = [up for s in network.switches for up in s.uplinks if of[s.name] == of[up.to]]
    assert len(inside) == 4 * 3
    levels = {
        level.name: level
        for level in levels_of(
            with_network(
                load_cluster("dgx-h100:24"), shape_from({"kind": "dragonfly", "hosts": 2, "places": 3, "global_links": 5})
            )
        )
    }
    assert levels["block"].bytes_per_s.tolist() == [3 * 5 * 50e9] * 4


def test_every_router_of_a_torus_has_its_neighbours():
    cluster = with_network(load_cluster("dgx-h100:24"), shape_from({"kind": "torus", "dims": [2, 3, 4]}))
    assert cables(cluster.network) == 24 + 24 + 12  # rings of 4 and of 3, and lines of 2
    with pytest.raises(InvalidValueError, match="does not hold 25"):
        with_network(load_cluster("dgx-h100:25"), shape_from({"kind": "torus", "dims": [2, 3, 4]}))


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"kind": "star"}, UnknownNameError, "star"),
        ({"hosts": 3}, InvalidValueError, "kind"),
        ({"kind": "tree", "hosts": 0}, InvalidValueError, "hosts"),
        ({"kind": "tree", "oversubscription": 0.5}, InvalidValueError, "below 1"),
        ({"kind": "dragonfly"}, InvalidValueError, "routers"),
        ({"kind": "tree", "leaf": 4}, UnknownNameError, "leaf"),
    ],
)
def test_mistakes_in_shapes_are_named(values, error, text):
    with pytest.raises(error, match=text):
        shape_from(values)


def test_cluster_files_name_a_network(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(
        "groups:\n  - {node: dgx-h100, count: 8}\nnetwork: {like: fat-tree, but: {hosts: 2, oversubscription: 4}}\n"
    )
    cluster = read_cluster(path)
    assert levels_of(cluster)[0].bytes_per_s.tolist() == [200e9] * 4
    assert cluster_from_dict(cluster.to_dict()) == cluster
    again = tmp_path / "again.yaml"
    again.write_text(write_cluster(cluster))
    assert read_cluster(again) == cluster


@pytest.mark.parametrize(
    ("network", "error"),
    [
        ("{like: fat-trees}", UnknownNameError),
        ("{like: fat-tree, but: {oversubscriptions: 4}}", UnknownNameError),
        ("{like: fat-tree, blocks: [{name: a, hosts: node1}]}", ConflictError),
        ("{like: fat-tree, but: {oversubscription: 0.1}}", InvalidValueError),
    ],
)
def test_mistakes_in_files_are_named(tmp_path, network, error):
    path = tmp_path / "lab.yaml"
    path.write_text(f"groups:\n  - {{node: dgx-h100, count: 8}}\nnetwork: {network}\n")
    with pytest.raises(error) as caught:
        read_cluster(path)
    assert "network" in caught.value.where or "3" in caught.value.where
