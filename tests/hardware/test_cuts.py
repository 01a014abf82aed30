"""Least cuts against the graph with every GPU drawn, and against what fabrics are built to give."""

import dataclasses

import network_cases as cases
import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError
from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cuts import bisection, cut_between, narrowest_cut
from shardwright.hardware.network_presets import load_network, shape_from, with_network

FEW = settings(max_examples=40)
SPECS = ["dgx-h100:4x3", "gb200-nvl72:20x2", "l40s-pcie-4:3", "dgx-a100-80g:3x2"]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    cluster = load_cluster(draw(st.sampled_from(SPECS))).with_node_values({"internode_bytes_per_s": 40e9})
    shape = draw(
        st.sampled_from(
            [
                {"kind": "tree", "hosts": 2, "oversubscription": 2},
                {"kind": "tree", "hosts": 1, "places": 2, "place_oversubscription": 4},
                {"kind": "rails", "hosts": 2, "oversubscription": 2},
                {"kind": "dragonfly", "hosts": 1, "places": 2},
                None,
            ]
        )
    )
    return cluster if shape is None else with_network(cluster, shape_from(shape))


@st.composite
def cases_of_two_sides(draw: st.DrawFn) -> tuple[Cluster, list[int], list[int]]:
    cluster = draw(clusters())
    sides = draw(st.lists(st.integers(0, 2), min_size=cluster.gpus, max_size=cluster.gpus))
    one, other = ([rank for rank, side in enumerate(sides) if side == k] for k in (1, 2))
    return cluster, one or [0], [r for r in other if r != 0] or [cluster.gpus - 1]


def drawn_flow(cluster: Cluster, one: list[int], other: list[int]) -> float:
    """The same over the graph of all GPUs. GPUs pass nothing on for others there either: edges into a source are left out."""
    graph = networkx.DiGraph()
    for a, b, data in cluster.graph().edges(data=True):
        if not (b.startswith("gpu") and int(b[3:]) not in other) and not (a.startswith("gpu") and int(a[3:]) not in one):
            graph.add_edge(a, b, **({} if data["bytes_per_s"] is None else {"capacity": data["bytes_per_s"]}))
    graph.add_edges_from([("source", f"gpu{r}") for r in one] + [(f"gpu{r}", "sink") for r in other])
    return float(networkx.maximum_flow_value(graph, "source", "sink"))


@FEW
@given(cases_of_two_sides())
def test_joining_equal_parts_changes_no_cut(case: tuple[Cluster, list[int], list[int]]) -> None:
    cluster, one, other = case
    if set(one) & set(other):
        return
    assert cut_between(cluster, one, other).bytes_per_s == pytest.approx(drawn_flow(cluster, one, other))


@FEW
@given(clusters(), st.randoms(use_true_random=False))
def test_relabelling_equal_nodes_changes_no_cut(cluster: Cluster, random) -> None:
    """Which of the nodes of equal leaves are taken does not matter, nor which GPUs of a node."""
    per_node = cluster.gpus_per_node
    nodes = list(range(cluster.nodes))
    first = [nodes[0] * per_node]
    for rank in range(per_node):
        again = cut_between(cluster, [rank], [r for r in range(cluster.gpus) if r // per_node != 0])
        assert again.bytes_per_s == cut_between(cluster, first, [r for r in range(cluster.gpus) if r // per_node]).bytes_per_s


@FEW
@given(st.integers(0, 3), st.lists(st.integers(0, 63), min_size=2, max_size=20, unique=True))
def test_removing_a_cable_never_widens_a_cut(at: int, ranks: list[int]) -> None:
    cluster = cases.tree(8, 2, 4.0)
    switches = list(cluster.network.switches)
    one = switches[at].uplinks[0]
    switches[at] = dataclasses.replace(switches[at], uplinks=(dataclasses.replace(one, links=one.links - 1),))
    worse = dataclasses.replace(cluster, network=dataclasses.replace(cluster.network, switches=tuple(switches)))
    half = len(ranks) // 2
    assert (
        cut_between(worse, ranks[:half], ranks[half:]).bytes_per_s
        <= cut_between(cluster, ranks[:half], ranks[half:]).bytes_per_s
    )
    assert narrowest_cut(worse, ranks).bytes_per_s_per_rank <= narrowest_cut(cluster, ranks).bytes_per_s_per_rank


def test_one_node_is_as_wide_as_its_switch() -> None:
    """DGX H100: 3.6 TB/s bisection both ways (NVIDIA), so 1.8 one way, and the host path beside it."""
    cut = bisection(load_cluster("dgx-h100:1"), range(8))
    assert cut.bytes_per_s == 4 * (450e9 + 64e9)
    assert cut.links == ("host path of 1 node", "scale-up of 1 node")


def test_a_rail_optimised_unit_has_its_published_rate() -> None:
    """DGX SuperPOD: a scalable unit of 32 nodes and 256 GPUs sends 12.8 TB/s one way."""
    cluster = with_network(load_cluster("dgx-h100:64"), load_network("rail-optimised"))
    assert bisection(cluster, range(512)).bytes_per_s == 12.8e12
    assert narrowest_cut(cluster, range(512)).bytes_per_s_per_rank == 50e9


def test_the_cut_of_an_oversubscribed_tree_is_at_its_leaves() -> None:
    cluster = cases.tree(16, 4, 4.0)
    cut = narrowest_cut(cluster, range(128))
    assert cut.bytes_per_s_per_rank == 12.5e9
    assert cut.links == ("leaf0 to spine",)
    assert narrowest_cut(cluster, range(32)).bytes_per_s_per_rank == 50e9  # a leaf by itself: a node's NICs


def test_racks_are_as_wide_as_their_nics() -> None:
    rack = load_cluster("gb200-nvl72:36")
    inside, across = narrowest_cut(rack, range(72)), narrowest_cut(rack, range(144))
    assert inside.bytes_per_s_per_rank > 900e9
    assert across.bytes_per_s == 72 * 50e9


def test_a_torus_is_cut_across_two_slices() -> None:
    cluster = with_network(load_cluster("dgx-h100:64"), load_network("torus"))
    assert bisection(cluster, range(cluster.gpus)).bytes_per_s == 2 * 16 * 50e9


def test_what_is_not_known_bounds_nothing() -> None:
    cluster = load_cluster("rtx-4090-pcie-8:2")
    assert cut_between(cluster, range(8), range(8, 16)).bytes_per_s == 8 * 32e9


def test_large_clusters_are_contracted() -> None:
    cluster = with_network(load_cluster("dgx-h100:2000"), load_network("three-tier-clos"))
    ranks = np.arange(cluster.gpus)
    assert bisection(cluster, ranks).bytes_per_s == pytest.approx(cluster.gpus / 2 * 25e9, rel=0.1)


@pytest.mark.parametrize(("one", "other"), [([], [1]), ([0, 1], [1]), ([0], [99]), ([-1], [1])])
def test_impossible_cuts_are_refused(one: list[int], other: list[int]) -> None:
    with pytest.raises(InvalidValueError):
        cut_between(load_cluster("dgx-h100:1"), one, other)
    with pytest.raises(InvalidValueError):
        bisection(load_cluster("dgx-h100:1"), [3])
