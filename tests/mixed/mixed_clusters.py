"""Small clusters of several kinds of node for the tests of this folder."""

from dataclasses import replace

from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Cluster, Node, NodeGroup


def cluster_of(*groups: tuple[str | Node, int]) -> Cluster:
    """A cluster of (node or preset, count) in rank order."""
    nodes = [(load_node(node) if isinstance(node, str) else node, count) for node, count in groups]
    return Cluster(name="mixed", groups=tuple(NodeGroup(node=n, count=c, gpus_per_node=n.gpus) for n, c in nodes))


def twin(preset: str) -> Node:
    """A node that differs from a preset in nothing but its name, so that a cluster of both counts as mixed."""
    return replace(load_node(preset), id=f"{preset}-twin")


def faster(node: Node, factor: float) -> Node:
    """A node whose device computes, and moves bytes in its memory, faster; the name is new."""
    device = node.device
    peaks = {name: factor * peak for name, peak in device.peak_flops.items()}
    quicker = replace(device, id=f"{device.id}-fast", peak_flops=peaks, memory_bytes_per_s=factor * device.memory_bytes_per_s)
    return replace(node, id=f"{node.id}-fast", device=quicker)


def larger(node: Node, memory_bytes: int) -> Node:
    """A node whose device has more, or less, memory."""
    device = replace(node.device, id=f"{node.device.id}-large", memory_bytes=memory_bytes)
    return replace(node, id=f"{node.id}-large", device=device)
