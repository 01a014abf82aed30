from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError
from shardwright.hardware.catalog import load_cluster, load_node, node_from_dict
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.groups import GroupShape, group_shape, pair_shape

PAIRS = node_from_dict({"base": "dgx-h100", "id": "pairs", "gpus": 4, "scaleup_domain_gpus": 2})
TWO_NODE_DOMAIN = node_from_dict({"base": "gb200-nvl72", "id": "small-rack", "scaleup_domain_gpus": 8})
NODES = [load_node("dgx-h100"), load_node("hgx-h100-4"), load_node("l40s-pcie-4"), PAIRS, TWO_NODE_DOMAIN]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        node = draw(st.sampled_from(NODES))
        groups.append(NodeGroup(node=node, count=draw(st.integers(1, 6)), gpus_per_node=draw(st.integers(1, node.gpus))))
    return Cluster(name="drawn", groups=tuple(groups))


def places(cluster: Cluster) -> list[tuple[int, int, int]]:
    """(node, domain, island) of every rank, by walking the cluster GPU by GPU."""
    found = []
    node = in_kind = domain_base = island_base = 0
    last = None
    for group in cluster.groups:
        if last is not None and group.node.id != last:
            domain_base, island_base, in_kind = domain_base + 10_000, island_base + 10_000, 0
        last = group.node.id
        for _ in range(group.count):
            for gpu in range(group.gpus_per_node):
                physical = in_kind * group.node.gpus + gpu
                domain = domain_base + physical // group.node.scaleup_domain_gpus
                island = island_base + physical // max(group.node.scaleup_domain_gpus, group.node.gpus)
                found.append((node, domain, island))
            node, in_kind = node + 1, in_kind + 1
    return found


def brute_force(cluster: Cluster, size: int, stride: int) -> GroupShape:
    """The worst of all groups, each counted rank by rank."""
    place = places(cluster)
    shapes = []
    for start in range(0, cluster.gpus // (size * stride) * size * stride, size * stride):
        for offset in range(stride):
            ranks = [place[start + offset + i * stride] for i in range(size)]
            node, domain, island = (Counter(r[k] for r in ranks) for k in range(3))
            cost = (len(island) - 1) / (len(island) * min(island.values()))
            key = (cost, len(island), len(domain), -min(domain.values()), len(node))
            shapes.append((key, node, domain, island))
    _, node, domain, island = max(shapes, key=lambda s: s[0])
    return GroupShape(
        size=size,
        stride=stride,
        domains=len(domain),
        ranks_per_domain=min(domain.values()),
        nodes=len(node),
        ranks_per_node=min(node.values()),
        islands=len(island),
        ranks_per_island=min(island.values()),
    )


@given(clusters(), st.integers(1, 24), st.integers(1, 24))
def test_the_worst_group_is_that_of_brute_force(cluster: Cluster, size: int, stride: int) -> None:
    if size * stride > cluster.gpus:
        with pytest.raises(InvalidValueError, match="need"):
            group_shape(cluster, size, stride)
        return
    found, expected = group_shape(cluster, size, stride), brute_force(cluster, size, stride)
    same = ("islands", "ranks_per_island", "domains", "ranks_per_domain", "nodes")
    assert [getattr(found, k) for k in same] == [getattr(expected, k) for k in same]


def test_a_group_inside_a_node() -> None:
    shape = group_shape(load_cluster("dgx-h100:16"), 8, 1)
    assert (shape.domains, shape.nodes, shape.islands, shape.ranks_per_island) == (1, 1, 1, 8)


def test_a_group_of_one_rank_a_node() -> None:
    shape = group_shape(load_cluster("dgx-h100:16"), 16, 8)
    assert (shape.nodes, shape.islands, shape.ranks_per_island) == (16, 16, 1)


def test_a_degree_that_does_not_divide_the_node_crosses_it() -> None:
    cluster = load_cluster("dgx-h100:7")
    assert group_shape(cluster, 7, 1).ranks_per_island == 1
    assert group_shape(cluster, 7, 1).islands == 2
    assert group_shape(cluster, 12, 1).ranks_per_island == 4


def test_usable_gpus_only_fill_the_domain() -> None:
    cluster = load_cluster("dgx-a100-80g:4x7")
    assert group_shape(cluster, 7, 1).islands == 1
    assert group_shape(cluster, 14, 1).ranks_per_island == 7
    rack = load_cluster("gb200-nvl72:36x3")
    assert group_shape(rack, 54, 1).islands == 1
    assert group_shape(rack, 108, 1).islands == 2


def test_a_rack_is_one_domain_of_many_nodes() -> None:
    cluster = load_cluster("gb200-nvl72:36")
    inside, across = group_shape(cluster, 72, 1), group_shape(cluster, 144, 1)
    assert (inside.domains, inside.islands, inside.nodes) == (1, 1, 18)
    assert (across.domains, across.islands, across.ranks_per_island) == (2, 2, 72)
    assert group_shape(cluster, 64, 1).islands == 2


def test_a_box_without_scale_up_has_a_domain_per_gpu() -> None:
    shape = group_shape(load_cluster("l40s-pcie-4:2"), 4, 1)
    assert (shape.domains, shape.islands, shape.nodes, shape.ranks_per_domain) == (4, 1, 1, 1)


def test_large_clusters_and_strides() -> None:
    cluster = load_cluster("dgx-h100:12500")
    assert cluster.gpus == 100_000
    assert group_shape(cluster, 12_500, 8).islands == 12_500
    assert group_shape(cluster, 100_000, 1).ranks_per_island == 8


@pytest.mark.parametrize(("size", "stride"), [(0, 1), (1, 0), (-1, 1), (3, 3)])
def test_impossible_groups_are_refused(size: int, stride: int) -> None:
    with pytest.raises(InvalidValueError):
        group_shape(load_cluster("dgx-h100:1"), size, stride)


def places_of(cluster: Cluster) -> list[tuple[int, int]]:
    """Node and domain of every rank of a cluster of one kind of node, by walking it."""
    group, made = cluster.groups[0], []
    inside = group.node.scaleup_domain_gpus
    for index in range(group.count):
        for gpu in range(group.gpus_per_node):
            domain = index // (inside // group.node.gpus) if inside >= group.node.gpus else 100 * index + gpu // inside
            made.append((index, domain))
    return made


@pytest.mark.parametrize("spec", ["dgx-h100:4", "dgx-h100:5x6", "gb200-nvl72:36", "l40s-pcie-4:3", "dgx1-v100-32g:2"])
@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 8, 11])
def test_the_worst_pair_at_a_distance_is_found_wherever_it_starts(spec: str, distance: int) -> None:
    cluster = load_cluster(spec)
    if distance >= cluster.gpus:
        pytest.skip("no two ranks are so far apart")
    places = places_of(cluster)
    pairs = [(places[x], places[x + distance]) for x in range(len(places) - distance)]
    across = max((a[0] != b[0]) and (a[1] != b[1]) for a, b in pairs)
    shape = pair_shape(cluster, distance)
    assert shape.size == 2
    assert (shape.islands == 2) == across
    assert shape.domains == 1 + max(a[1] != b[1] for a, b in pairs)


def test_a_pair_needs_two_ranks() -> None:
    with pytest.raises(InvalidValueError, match="distance"):
        pair_shape(load_cluster("dgx-h100:1"), 8)
