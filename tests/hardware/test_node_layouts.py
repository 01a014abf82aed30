"""Sockets, peer access and scale-up islands of a node, where its layout is known."""

import dataclasses

import numpy as np
import pytest

from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.collectives import GroupTable, collective_s, wire_bytes
from shardwright.hardware.fabric import fabric_of
from shardwright.hardware.groups import group_shape, pair_shape
from shardwright.hardware.topology_records import NodeLayout

HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))
ODD_EVEN = ((0, 2, 4, 6), (1, 3, 5, 7))


def cluster_of(node, nodes=1, **layout):
    made = dataclasses.replace(load_node(node), layout=NodeLayout(**layout) if layout else None)
    return Cluster(name="lab", groups=(NodeGroup(node=made, count=nodes, gpus_per_node=made.gpus),))


def busbw(cluster, size, stride=1, kind="all_reduce", message=2.0**27):
    table = GroupTable.of([group_shape(cluster, size, stride)])
    time = collective_s(kind, table, np.array([message]), fabric_of(cluster)).time_s[0]
    return float(wire_bytes(kind, size, message)) / time / 1e9


def test_pairs_of_one_socket_are_faster_than_pairs_across():
    cluster = cluster_of("rtx-4090-pcie-8", sockets=HALVES)
    assert group_shape(cluster, 4, 1).sockets == 1
    assert group_shape(cluster, 8, 1).sockets == group_shape(cluster, 2, 4).sockets == 2
    assert busbw(cluster, 2, 1) == pytest.approx(busbw(cluster, 2, 4) / 0.8, rel=0.02)


def test_measured_boxes_of_eight_cards():
    """Public logs of RTX 4090 boxes: 25.3 GB/s on four, 20.6 on eight, 14.5 without peer access."""
    assert busbw(cluster_of("rtx-4090-pcie-8", sockets=HALVES), 4) == pytest.approx(25.3, rel=0.12)
    assert busbw(cluster_of("rtx-4090-pcie-8", sockets=HALVES), 8) == pytest.approx(20.6, rel=0.12)
    assert busbw(cluster_of("rtx-4090-pcie-8", sockets=HALVES, peer_access=False), 8) == pytest.approx(14.5, rel=0.12)


def test_peer_access_counts_only_where_it_is_known_to_lack():
    known, unknown, none = (cluster_of("l40s-pcie-8", **v) for v in ({"peer_access": True}, {}, {"peer_access": False}))
    assert busbw(known, 8) == busbw(unknown, 8) > busbw(none, 8)


@pytest.mark.parametrize("islands", [HALVES, ODD_EVEN])
def test_islands_of_four_are_domains_whatever_their_numbers(islands):
    made = dataclasses.replace(load_node("dgx-a100-80g"), scaleup_domain_gpus=4, layout=NodeLayout(islands=islands))
    cluster = Cluster(name="lab", groups=(NodeGroup(node=made, count=2, gpus_per_node=8),))
    first = 1 if islands is HALVES else 2
    assert group_shape(cluster, 4, first).domains == 1
    assert group_shape(cluster, 8, 1).domains == 2
    assert (group_shape(cluster, 8, 1).ranks_per_domain, group_shape(cluster, 8, 1).islands) == (4, 1)
    assert group_shape(cluster, 16, 1).domains == 4
    assert pair_shape(cluster, first).domains == 2  # some pair meets the edge of its island or node
    assert busbw(cluster, 4, first) > 3 * busbw(cluster, 8, 1)


def test_a_layout_in_step_with_the_numbers_changes_nothing():
    plain, laid = cluster_of("dgx-h100", 4), cluster_of("dgx-h100", 4, islands=(tuple(range(8)),), sockets=HALVES)
    for size, stride in ((8, 1), (4, 8), (32, 1), (2, 4)):
        assert busbw(plain, size, stride) == busbw(laid, size, stride)
