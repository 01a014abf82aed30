"""The host of a node as offloading sees it: the link of each GPU, memory bandwidth, memory.

    link      what a large copy reaches of the rate of the node's host link, one way, divided by the GPUs below one PCIe switch
              where a topology says so; PCIe 0.82, NVLink-C2C 0.44
    memory    bandwidth of the node's memory over its GPUs in use, by the processors that come with a generation of the link:

        PCIe 3   2 sockets · 6 channels of DDR4-2666     256 GB/s a node    Xeon Scalable, DGX-2
        PCIe 4   2 sockets · 8 channels of DDR4-3200     410 GB/s           EPYC 7002, DGX A100
        PCIe 5   2 sockets · 8 channels of DDR5-4800     614 GB/s           Xeon Scalable of the fourth generation, DGX H100
        C2C      512 GB/s a Grace processor, one for every Hopper and for every two Blackwell GPUs

Sources: copies of 26 of 31 GB/s on A100, 51 to 55 of 63 on H100 and H200, 201 and 193 of 450 on GB200
(Azure/AI-benchmarking-guide, Azure_Results/ND_*_results.md; Voltage Park's benchmarks); over C2C on GB300 175 each way at once,
359 one way (stas00/ml-engineering@744d01e18b79); memory channels from the processors' data sheets and the
DGX user guides; 512 GB/s from the NVIDIA Grace data sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.errors import InvalidValueError
from shardwright.hardware.cluster import Cluster, Node

PCIE_REACHED, C2C_REACHED = 0.82, 0.44
"""Share of the rate of the host link that a large copy reaches."""

C2C_FROM = 130e9
"""Host links of more bytes a second than PCIe 6 with 16 lanes are NVLink-C2C."""

NODE_MEMORY = ((20e9, 256e9), (40e9, 409.6e9), (float("inf"), 614.4e9))
"""Bytes a second of a node's memory, by the greatest rate of the host link they go with."""

GRACE_MEMORY = 512e9
"""Bytes a second of the memory of one Grace processor."""

GRACE_GPUS = {"hopper": 1, "blackwell": 2, "blackwell-ultra": 2}
"""GPUs of one Grace processor, by their chip generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What one GPU has of its host.

    Attributes:
        link_bytes_per_s: copies, each way.
        memory_bytes_per_s: its share of the memory bandwidth.
        memory_bytes: memory of the whole node; None where unknown.
        gpus: GPUs in use on a node.
    """

    link_bytes_per_s: float
    memory_bytes_per_s: float
    memory_bytes: int | None
    gpus: int


def host_of(node: Node, gpus: int) -> Host:
    """The host of a node of which so many GPUs are in use.

    Raises:
        InvalidValueError: the rate of its host link is not known.
    """
    rate = node.host_bytes_per_s or node.device.pcie_bytes_per_s
    if rate is None:
        hint = "give it by --set cluster.host_bytes_per_s=64e9, or plan without offload"
        raise InvalidValueError(f"the host link of {node.id} is not known", where="--offload", hint=hint)
    fast = rate > C2C_FROM
    if fast:
        memory = GRACE_MEMORY / GRACE_GPUS.get(node.device.arch, 1)
    else:
        memory = next(bandwidth for most, bandwidth in NODE_MEMORY if rate <= most) / gpus
    return Host(
        link_bytes_per_s=rate * (C2C_REACHED if fast else PCIE_REACHED) / _sharing(node),
        memory_bytes_per_s=memory,
        memory_bytes=node.host_memory_bytes,
        gpus=gpus,
    )


def check_hosts(cluster: Cluster) -> None:
    """That the host of every node is known well enough to offload to.

    Raises:
        InvalidValueError: the rate of a host link is not known.
    """
    for group in cluster.groups:
        host_of(group.node, group.gpus_per_node)


def hosts_known(cluster: Cluster) -> bool:
    """Whether the host of every node is known well enough to offload to."""
    return all(group.node.host_bytes_per_s or group.node.device.pcie_bytes_per_s for group in cluster.groups)


def narrowest(hosts: Sequence[Host]) -> Host:
    """The least of several hosts in every respect; memory of which nothing is known is no limit."""
    known = [host.memory_bytes // host.gpus for host in hosts if host.memory_bytes is not None]
    gpus = max(host.gpus for host in hosts)
    return Host(
        link_bytes_per_s=min(host.link_bytes_per_s for host in hosts),
        memory_bytes_per_s=min(host.memory_bytes_per_s for host in hosts),
        memory_bytes=min(known) * gpus if known else None,
        gpus=gpus,
    )


def _sharing(node: Node) -> int:
    """GPUs that share one link to the host: those below one PCIe switch, where the wiring is known."""
    switches = node.layout.pcie_switches if node.layout is not None else None
    return max((len(group) for group in switches), default=1) if switches else 1
