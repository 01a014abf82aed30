"""What offloading takes for granted, and whether hosts have the memory for it.

assumptions_of(problem, records)   rates of the host in force, where any of the records offloads
add_host_violation(record, ...)    a plan that needs more host memory than a node has; where that is unknown, a warning
offload_source(problem)            where the price of offloading comes from
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardwright.documents import rounded
from shardwright.hardware.host import host_of
from shardwright.planner.cost.offload import HOST_UPDATE_SHARE, PINNED_ROUNDING
from shardwright.planner.problem import Assumption, Problem

GIB = 2**30
_GRADIENTS = {True: "moved as they are reduced, beside the backward pass", False: "copied beside the update"}


def offloads(record: Mapping[str, Any]) -> bool:
    """Whether a plan keeps anything in host memory."""
    return any(record["parallel"]["offload"].values())


def assumptions_of(problem: Problem, records: Iterable[Mapping[str, Any]]) -> tuple[Assumption, ...]:
    """What is in force for plans that offload; nothing where none does."""
    if not any(offloads(record) for record in records):
        return ()
    kinds = problem.areas.kinds
    hosts = [host_of(node, problem.areas.gpus_per_node(kind)) for kind, node in enumerate(kinds)]
    sizes = [host.memory_bytes for host in hosts]
    values: dict[str, tuple[Any, str]] = {
        "offload.link_bytes_per_s": (rounded(min(host.link_bytes_per_s for host in hosts)), "inferred"),
        "offload.host_memory_bytes_per_s_per_gpu": (rounded(min(host.memory_bytes_per_s for host in hosts)), "inferred"),
        "offload.host_update_share": (HOST_UPDATE_SHARE, "default"),
        "offload.pinned_rounding": (PINNED_ROUNDING, "default"),
        "offload.gradients": (_GRADIENTS[problem.stack.offload_moves_gradients], "default"),
        "offload.copies": ("hidden behind passes as far as these last", "default"),
        "node.host_memory_bytes": (None if None in sizes else min(size for size in sizes if size is not None), "preset"),
    }
    return tuple(Assumption(key=key, value=value, origin=origin) for key, (value, origin) in values.items())


def offload_source() -> dict[str, Any]:
    """Where the price of offloading comes from, as `sources` says it."""
    return {
        "origin": "modelled",
        "source": "host links and memory channels (hardware/host.py); Adam on the host as arXiv 2101.06840 measured it",
        "median_error": None,
    }


def add_host_violation(record: dict[str, Any], problem: Problem, short_bytes: float) -> None:
    """Marks a plan that keeps more in the host memory of a node than it has; says so where that is not known.

    Args:
        record: an ESTIMATE.
        problem: whose nodes they are.
        short_bytes: what the fullest node lacks, as far as is known.
    """
    needs = record["memory"]["host_peak_bytes"]
    if needs is None:
        return
    unknown = [node.id for node in problem.areas.kinds if node.host_memory_bytes is None]
    if short_bytes > 0:
        record["feasible"] = False
        text = f"a node needs {needs / GIB:,.1f} GiB of host memory, {short_bytes / GIB:,.1f} GiB more than it has"
        remedy = "offload less, or spread it over more nodes"
        record["violations"].append({"rule": "host-memory", "message": text, "remedy": remedy})
    elif unknown:
        record["warnings"].append(
            f"{needs / GIB:,.1f} GiB of host memory a node, and how much {unknown[0]} has is not known: "
            "state it by --set cluster.host_memory_bytes=2e12"
        )
