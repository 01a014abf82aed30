"""What axes send over cables between places, against counting pair by pair; and what it does to their time."""

import dataclasses
from collections import Counter

import network_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.collectives import LINKS, GroupTable, collective_s
from shardwright.hardware.fabric import fabric_of
from shardwright.hardware.groups import group_shape, pair_shape
from shardwright.hardware.network_levels import levels_of
from shardwright.hardware.topology_records import Switch, Uplink

FEW = settings(max_examples=40)


def seconds(cluster, kind, shape, message=1e9):
    return float(collective_s(kind, GroupTable.of([shape]), np.array([message]), fabric_of(cluster)).time_s[0])


def rate_out(cluster, leaf):
    return sum(u.links * u.bytes_per_s for s in cluster.network.switches if s.name == leaf for u in s.uplinks)


def brute_force(cluster, size, stride):
    """Seconds a byte of rings and of all-to-all, rank by rank, on leaves only."""
    hosts = [h for g in cluster.groups for h in g.hosts for _ in range(g.gpus_per_node)]
    leaf = {h: s.name for s in cluster.network.switches for p in s.ports for h in p.hosts}
    ring, every = Counter(), Counter()
    for start in range(0, len(hosts) // (size * stride) * size * stride, size * stride):
        for offset in range(stride):
            group = [hosts[start + offset + i * stride] for i in range(size)]
            for one, other in zip(group, group[1:] + group[:1], strict=True):
                ring[leaf[one]] += one != other and leaf[one] != leaf[other]
            inside = Counter(leaf[h] for h in group)
            for name, count in inside.items():
                every[name] += count * (size - count) / size
    return tuple(max(load[name] / rate_out(cluster, name) for name in set(leaf.values())) for load in (ring, every))


@FEW
@given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 24), st.integers(1, 24), st.randoms(use_true_random=False))
def test_loads_are_those_of_counting(nodes, leaf, size, stride, random):
    order = list(cases.named(nodes))
    random.shuffle(order)
    cluster = cases.tree(nodes, leaf, 2.0, order=order)
    if size * stride > cluster.gpus or size < 2:
        return
    crossing = group_shape(cluster, size, stride).crossing
    if group_shape(cluster, size, stride).islands > 1 and -(-nodes // leaf) > 1:
        assert (crossing.ring_s_per_byte, crossing.exchange_s_per_byte) == pytest.approx(brute_force(cluster, size, stride))
    else:
        assert crossing.ring_s_per_byte == 0


@FEW
@given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 40))
def test_pairs_are_those_of_counting(nodes, leaf, distance):
    cluster = cases.tree(nodes, leaf, 4.0)
    if distance >= cluster.gpus:
        return
    place = np.arange(cluster.gpus) // (8 * leaf)
    out = Counter(int(a) for a, b in zip(place, place[distance:], strict=False) if a != b)
    into = Counter(int(b) for a, b in zip(place, place[distance:], strict=False) if a != b)
    expected = max((max(out[k], into[k]) / rate_out(cluster, f"leaf{k}") for k in {*out, *into}), default=0.0)
    crossing = pair_shape(cluster, distance).crossing
    assert crossing.ring_s_per_byte == pytest.approx(expected)


def test_a_full_tree_costs_rings_nothing():
    cluster, bare = cases.tree(16, 4), load_cluster("dgx-h100:16")
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        for size, stride in ((128, 1), (16, 8), (32, 4)):
            here, there = (seconds(c, kind, group_shape(c, size, stride)) for c in (cluster, bare))
            assert here == pytest.approx(there)


def test_oversubscription_slows_what_crosses_leaves():
    full, thin = cases.tree(16, 4), cases.tree(16, 4, 8.0)
    inside, across = (4, 8), (16, 8)
    for kind in ("all_gather", "all_to_all"):
        assert seconds(thin, kind, group_shape(thin, *inside)) == seconds(full, kind, group_shape(full, *inside))
        assert seconds(thin, kind, group_shape(thin, *across)) > 1.5 * seconds(full, kind, group_shape(full, *across))
    found = collective_s("all_gather", GroupTable.of([group_shape(thin, *across)]), np.array([1e9]), fabric_of(thin))
    assert LINKS[found.link[0]] == "uplink"
    assert group_shape(thin, *across).crossing.place.startswith("leaf")


def test_all_to_all_feels_a_thin_spine_before_rings_do():
    """A ring through four hosts of a leaf leaves it once; an all-to-all sends three quarters of everything out of it."""
    full, thin = cases.tree(16, 4), cases.tree(16, 4, 4.0)
    shapes = [group_shape(cluster, 16, 8) for cluster in (full, thin)]
    rings, exchanges = (
        seconds(thin, kind, shapes[1]) / seconds(full, kind, shapes[0]) for kind in ("all_gather", "all_to_all")
    )
    assert rings < 1.2
    assert exchanges > 2


def test_hosts_listed_across_leaves_cross_at_every_hop():
    order = [f"n{i + 4 * k:03d}" for i in range(4) for k in range(4)]
    near, far = cases.tree(16, 4, 4.0), cases.tree(16, 4, 4.0, order=order)
    ratio = group_shape(far, 16, 8).crossing.ring_s_per_byte / group_shape(near, 16, 8).crossing.ring_s_per_byte
    assert ratio == pytest.approx(4.0)


def test_racks_of_one_domain_send_only_between_racks():
    rack = cases.tree(36, 6, 4.0, node="gb200-nvl72")
    shape = group_shape(rack, 72, 1)
    assert shape.islands == 1
    assert shape.crossing.ring_s_per_byte == 0
    assert group_shape(rack, 144, 1).crossing.ring_s_per_byte > 0


@FEW
@given(st.permutations(range(4)), st.integers(2, 32), st.integers(1, 4), st.sampled_from(["all_reduce", "all_to_all"]))
def test_relabelling_equal_leaves_changes_nothing(permutation, size, stride, kind):
    plain = cases.tree(8, 2, 4.0)
    if size * stride > plain.gpus:
        return
    order = [f"n{2 * k + i:03d}" for k in permutation for i in range(2)]
    other = cases.tree(8, 2, 4.0, order=order)
    assert seconds(plain, kind, group_shape(plain, size, stride)) == seconds(other, kind, group_shape(other, size, stride))


def without_cable(cluster, at):
    """The cluster with one cable less on some switch."""
    switches = list(cluster.network.switches)
    leaf = switches[at]
    one = leaf.uplinks[0]
    fewer = dataclasses.replace(one, links=one.links - 1)
    switches[at] = dataclasses.replace(leaf, uplinks=(fewer, *leaf.uplinks[1:]))
    return dataclasses.replace(cluster, network=dataclasses.replace(cluster.network, switches=tuple(switches)))


@FEW
@given(st.integers(0, 3), st.integers(2, 64), st.integers(1, 8), st.sampled_from(["all_reduce", "all_to_all", "all_gather"]))
def test_removing_a_cable_never_speeds_anything_up(at, size, stride, kind):
    cluster = cases.tree(8, 2, 4.0)
    if size * stride > cluster.gpus:
        return
    worse = without_cable(cluster, at)
    assert seconds(worse, kind, group_shape(worse, size, stride)) >= seconds(cluster, kind, group_shape(cluster, size, stride))


def test_rails_of_a_unit_are_one_leaf_level():
    levels = levels_of(cases.rails(8, 4, 2.0))
    assert [level.name for level in levels] == ["leaf"]
    assert levels[0].place.tolist() == [0] * 4 + [1] * 4
    assert levels[0].bytes_per_s.tolist() == [8 * 2 * 50e9] * 2
    assert levels[0].labels[0] == "unit0-rail0 and 7 more"


def test_pods_and_blocks_are_levels_of_their_own():
    hosts = cases.named(8)
    leaves = [
        dataclasses.replace(s, uplinks=(Uplink(to=f"pod{k // 2}", links=4, bytes_per_s=50e9),))
        for k, s in enumerate(cases.tree(8, 2).network.switches[:4])
    ]
    pods = [Switch(name=f"pod{k}", tier=2, uplinks=(Uplink(to="core", links=2, bytes_per_s=100e9),)) for k in range(2)]
    cluster = cases.cluster_of([*leaves, *pods, Switch(name="core", tier=3)], hosts)
    levels = levels_of(cluster)
    assert [(v.name, v.labels) for v in levels] == [
        ("leaf", ("leaf0", "leaf1", "leaf2", "leaf3")),
        ("tier 2", ("pod0", "pod1")),
    ]
    assert levels[0].bytes_per_s.tolist() == [200e9] * 4
    assert levels[1].bytes_per_s.tolist() == [200e9] * 2
    racks = cases.cluster_of([*leaves, *pods, Switch(name="core", tier=3)], hosts, blocks=cases.blocks(8, 4))
    assert [v.name for v in levels_of(racks)] == ["leaf", "block"]  # tier 2 divides as the blocks do
    assert levels_of(racks)[1].bytes_per_s.tolist() == [200e9] * 2


def test_unknown_cables_and_nameless_hosts_cost_nothing():
    unknown = cases.tree(8, 2, rates=False)
    assert np.isinf(levels_of(unknown)[0].bytes_per_s).all()
    assert group_shape(unknown, 64, 1).crossing.ring_s_per_byte == 0
    nameless = dataclasses.replace(unknown, groups=(dataclasses.replace(unknown.groups[0], hosts=()),))
    assert levels_of(nameless) == ()
    assert levels_of(load_cluster("dgx-h100:4")) == ()


def test_hosts_that_no_switch_names_are_places_of_their_own():
    hosts = (*cases.named(4), "stray")
    cluster = cases.cluster_of(cases.tree(4, 2).network.switches, hosts)
    assert levels_of(cluster)[0].place.tolist() == [0, 0, 1, 1, 2]
    assert np.isinf(levels_of(cluster)[0].bytes_per_s[2])
