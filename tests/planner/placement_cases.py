"""Clusters with named hosts and switches, and small grids of traffic, for tests of placements."""

import itertools

import numpy as np

from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.topology_records import HostPorts, Network, Switch, Uplink
from shardwright.planner.search.placement_cost import Edges, Traffic, placement_cost
from shardwright.planner.search.placement_sites import Level, Sites

NIC = 400e9


def named(count):
    return tuple(f"n{i:03d}" for i in range(count))


def cluster_of(switches, order, node="dgx-h100", **more):
    """Nodes in an order of hosts, on switches."""
    group = NodeGroup(node=load_node(node), count=len(order), gpus_per_node=8, hosts=tuple(order))
    return Cluster(name="lab", groups=(group,), network=Network(switches=tuple(switches)), **more)


def tree(nodes, leaf, oversubscription=1.0, order=None, rates=True):
    """Leaves of `leaf` hosts below one spine."""
    hosts = named(nodes)
    links = int(leaf * 8 / oversubscription) if rates else None
    switches = [
        Switch(
            name=f"leaf{k}",
            ports=(HostPorts(hosts=hosts[k : k + leaf], links=8, bytes_per_s=50e9),),
            uplinks=(Uplink(to="spine", links=links, bytes_per_s=50e9 if rates else None),),
        )
        for k in range(0, nodes, leaf)
    ]
    return cluster_of([*switches, Switch(name="spine", tier=2)], order or hosts)


def rails(nodes, unit, oversubscription=1.0, order=None):
    """Units of `unit` hosts, each with a leaf a rail: GPU i of every host on leaf i."""
    hosts = named(nodes)
    links = int(unit / oversubscription)
    switches = [
        Switch(
            name=f"unit{k}-rail{rail}",
            ports=(HostPorts(hosts=hosts[k : k + unit], rail=rail, links=1, bytes_per_s=50e9),),
            uplinks=(Uplink(to="spine", links=links, bytes_per_s=50e9),),
        )
        for k in range(0, nodes, unit)
        for rail in range(8)
    ]
    return cluster_of([*switches, Switch(name="spine", tier=2)], order or hosts)


def grid(rows, columns, ring=0.0, chain=0.0, back=0.0):
    """A ring through the columns of each row, and neighbouring rows that send each other, in bytes."""
    number = np.arange(rows * columns).reshape(rows, columns)
    axes = {}
    if ring and columns > 1:
        axes["dp"] = edges([(a, b, ring) for row in number for a, b in zip(row, np.roll(row, -1), strict=True)])
    pairs = [(a, b) for above, below in itertools.pairwise(number) for a, b in zip(above, below, strict=True)]
    if pairs and (chain or back):
        axes["pp"] = edges([(a, b, chain) for a, b in pairs] + [(b, a, back) for a, b in pairs])
    return Traffic(slots=rows * columns, axes=axes, rows=rows, columns=columns)


def edges(triples):
    source, target, weight = zip(*triples, strict=True)
    return Edges(source=np.array(source), target=np.array(target), bytes=np.array(weight, dtype=np.float64))


def sites(sizes, uplinks):
    """Groups of so many hosts with so many bytes a second out of each."""
    count = sum(sizes)
    level = Level(
        name="tier 1",
        group=np.repeat(np.arange(len(sizes)), sizes),
        uplink_bytes_per_s=np.array(uplinks, dtype=np.float64),
        known=True,
    )
    return Sites(
        hosts=named(count),
        gpus=np.full(count, 8),
        nic_bytes_per_s=np.full(count, NIC),
        domain=np.arange(count),
        levels=(level,),
    )


def least_of_all(traffic, place):
    """The least cost over every placement."""
    orders = itertools.permutations(range(len(place.hosts)), traffic.slots)
    return min(placement_cost(traffic, place, np.array(order)).total_s for order in orders)
