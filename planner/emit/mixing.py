"""What a launch needs to know where nodes of several kinds are mixed: which node ranks fall on which kind.

One launch starts as many processes on every node, and ranks follow the groups of the cluster. Nothing but the order of hosts
tells a launcher so: with Slurm they must be named, with torchrun whoever starts it gives each node its rank (README of the
bundle), and operators of Kubernetes choose nodes themselves, so they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.errors import UnsupportedError
from shardwright.planner.emit.base import Machines
from shardwright.planner.rules.base import COMPUTE_CAPABILITY

Group = Mapping[str, Any]


def kinds_of(groups: Sequence[Group], nodes: int) -> tuple[tuple[str, int], ...]:
    """Kinds of the first nodes of a cluster and how many of each follow one another; empty where all are alike.

    Raises:
        UnsupportedError: nodes hold different numbers of GPUs, or GPUs of different vendors.
    """
    used, left = [], nodes
    for group in groups:
        if left > 0:
            used.append((group, min(left, int(group["count"]))))
            left -= int(group["count"])
    if all(group["node"] == used[0][0]["node"] for group, _ in used):
        return ()
    _same(
        {str(group["gpus_per_node"]) for group, _ in used}, "GPUs a node", "one launch starts as many processes on every node"
    )
    _same({str(group["node"]["device"]["vendor"]) for group, _ in used}, "vendors", "one launch has one software stack")
    return tuple((str(group["node"]["id"]), count) for group, count in used)


def _same(values: set[str], what: str, why: str) -> None:
    if len(values) > 1:
        message = f"the plan mixes {what} ({', '.join(sorted(values))}); {why}"
        raise UnsupportedError(message, where="inputs.cluster.groups", hint="plan for groups that agree in it")


def oldest(groups: Sequence[Group]) -> Mapping[str, Any]:
    """The device of the least compute capability, whose switches suit all."""
    devices: list[Mapping[str, Any]] = [group["node"]["device"] for group in groups]
    return min(devices, key=lambda device: COMPUTE_CAPABILITY.get(device["arch"], 9))


def named_hosts(groups: Sequence[Group], nodes: int) -> tuple[str, ...]:
    """Names that the file gives the first nodes, in rank order; none where some group has none."""
    from shardwright.hardware.hostlist import expand

    found = [expand(group["hosts"]) if group.get("hosts") else () for group in groups]
    names = tuple(name for names in found for name in names)
    return names[:nodes] if all(found) and len(names) >= nodes else ()


def check_order(machines: Machines, launcher: str) -> None:
    """Sees to it that a launcher can keep the order of nodes.

    Raises:
        UnsupportedError: it cannot, or does not know the hosts.
    """
    if not machines.kinds:
        return
    if launcher == "kubernetes":
        message = "the plan mixes kinds of node; operators of Kubernetes choose the node of each rank themselves"
        raise UnsupportedError(message, where="--launcher", hint="use torchrun or slurm")
    if launcher == "slurm" and not machines.hosts:
        message = f"the plan mixes kinds of node ({said(machines)}); Slurm numbers nodes by name, not by kind"
        hint = "name all hosts in this order: --launch hosts=a,b,... or hosts in the groups of the cluster file"
        raise UnsupportedError(message, where="--launch hosts", hint=hint)


def said(machines: Machines) -> str:
    """Which node ranks are of which kind, in words."""
    parts, start = [], 0
    for name, count in machines.kinds:
        span = f"node rank {start}" if count == 1 else f"node ranks {start}-{start + count - 1}"
        parts.append(f"{span} {name}")
        start += count
    return ", ".join(parts)
