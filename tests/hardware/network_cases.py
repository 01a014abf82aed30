"""Clusters with named hosts and switches, shared by tests of the network between nodes."""

from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.topology_records import Block, HostPorts, Network, Switch, Uplink


def named(count):
    return tuple(f"n{i:03d}" for i in range(count))


def cluster_of(switches, hosts, node="dgx-h100", blocks=(), gpus=None):
    made = load_node(node)
    group = NodeGroup(node=made, count=len(hosts), gpus_per_node=gpus or made.gpus, hosts=tuple(hosts))
    return Cluster(name="lab", groups=(group,), network=Network(switches=tuple(switches), blocks=tuple(blocks)))


def tree(nodes, leaf, oversubscription=1.0, order=None, node="dgx-h100", rates=True):
    """Leaves of `leaf` hosts of eight 50 GB/s links below one spine."""
    hosts = named(nodes)
    switches = [
        Switch(
            name=f"leaf{k // leaf}",
            ports=(HostPorts(hosts=hosts[k : k + leaf], links=8, bytes_per_s=50e9),),
            uplinks=(Uplink(to="spine", links=round(leaf * 8 / oversubscription) if rates else None, bytes_per_s=50e9),),
        )
        for k in range(0, nodes, leaf)
    ]
    return cluster_of([*switches, Switch(name="spine", tier=2)], order or hosts, node)


def rails(nodes, unit, oversubscription=1.0):
    """Units of `unit` hosts, GPU i of every host on leaf i of its unit."""
    hosts = named(nodes)
    switches = [
        Switch(
            name=f"unit{k // unit}-rail{rail}",
            ports=(HostPorts(hosts=hosts[k : k + unit], rail=rail, links=1, bytes_per_s=50e9),),
            uplinks=(Uplink(to="spine", links=round(unit / oversubscription), bytes_per_s=50e9),),
        )
        for k in range(0, nodes, unit)
        for rail in range(8)
    ]
    return cluster_of([*switches, Switch(name="spine", tier=2)], hosts)


def blocks(nodes, size):
    hosts = named(nodes)
    return [Block(name=f"rack{k // size}", hosts=hosts[k : k + size]) for k in range(0, nodes, size)]
