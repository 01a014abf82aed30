"""What to do when nothing fits: the candidates nearest to fitting, and changes that would make them fit.

A near miss is the best candidate of each memory-saving idea. Its remedies are one-step changes (`remedies`), the best plan of
the whole space with states in host memory, and the best on the first larger cluster on which one fits; all are tried by
pricing with the function that priced everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwright.hardware.cluster import Cluster
from shardwright.hardware.host import hosts_known
from shardwright.planner.description import Record
from shardwright.planner.problem import Problem
from shardwright.planner.search.finalists import settled
from shardwright.planner.search.remedies import Remedy, in_order, remedies, together
from shardwright.planner.search.scan import Scan, scan
from shardwright.planner.search.space import declare, enumerate_legal, fixed_value

MAX_GPUS = 16_384
"""Larger clusters are not proposed as a remedy."""


def near_misses(problem: Problem, records: list[Record], fix: Mapping[str, str], *, with_remedies: bool = True) -> list[Record]:
    """Records that do not fit, with what is short and verified remedies (none without `with_remedies`)."""
    larger = more_nodes(problem, fix) if with_remedies else []
    hosted = with_offload(problem, fix) if with_remedies else []
    held = {fixed_value(name, text)[0] for name, text in fix.items()}
    made = []
    for record in records:
        memory = record["memory"]
        short = max(memory["peak_bytes"] - memory["capacity_bytes"], 0)
        helps = in_order([*remedies(problem, record, held), *hosted]) + larger if with_remedies else []
        made.append(record | {"shortage_bytes": short, "remedies": helps})
    return made


def more_nodes(problem: Problem, fix: Mapping[str, str]) -> list[Remedy]:
    """The first doubling of the cluster on which some plan with the fixed axes fits, found by searching there.

    None where no network is known that could join further nodes.
    """
    if any(group.node.internode_bytes_per_s is None for group in problem.cluster.groups):
        return []
    factor = 2
    while problem.cluster.gpus * factor <= MAX_GPUS:
        if factor * problem.memory_bytes > least_state_bytes(problem):
            larger = replace(problem, cluster=scaled(problem.cluster, factor))
            legal = enumerate_legal(larger, declare(larger, fix))
            made = scan(larger, legal) if len(legal) else None
            if made is not None and made.fits.any():
                made = settled(made, larger, 1, 0.0, near=False)[0]
                text = f"{larger.cluster.nodes:,} nodes ({larger.cluster.gpus:,} GPUs)"
                return [_remedy(text, made)]
        factor *= 2
    return []


def with_offload(problem: Problem, fix: Mapping[str, str]) -> list[Remedy]:
    """The best plan of the whole space with the optimizer (and what goes with it) in host memory, if one fits.

    None where what is offloaded is fixed, or links to hosts are not known.
    """
    if {fixed_value(name, text)[0] for name, text in fix.items()} & {"offload"} or not hosts_known(problem.cluster):
        return []
    what = "optimizer+parameters" if together(problem) else "optimizer"
    legal = enumerate_legal(problem, declare(problem, {**fix, "offload": what}))
    made = scan(problem, legal) if len(legal) else None
    if made is None or not made.fits.any():
        return []
    return [_remedy(f"another plan, --fix offload={what}", settled(made, problem, 1, 0.0, near=False)[0])]


def _remedy(text: str, made: Scan) -> Remedy:
    """The best of the plans that fit, priced as it is printed."""
    best = int(np.where(made.fits, made.step_s, np.inf).argmin())
    step, peak = float(made.step_s[best]), int(made.peak_bytes[best])
    return {"change": text, "feasible": True, "step_time_s": step, "peak_bytes": peak}


def least_state_bytes(problem: Problem) -> float:
    """Parameters and optimizer states of the whole model, sharded over everything."""
    job = problem.job
    stack = problem.stack
    state = stack.optimizer_bytes(job.optimizer, job.precision) - stack.doubled_bytes(job.optimizer, job.precision)
    if job.frozen:
        return job.precision.parameter_bytes * job.graph.parameters + state * job.trained.trainable_parameters
    return float(job.graph.parameters * (job.precision.parameter_bytes + state))


def scaled(cluster: Cluster, factor: int) -> Cluster:
    """A cluster with so many times the nodes of every group."""
    groups = tuple(replace(group, count=group.count * factor) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name} times {factor}", groups=groups)
