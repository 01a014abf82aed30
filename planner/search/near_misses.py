"""What to do when nothing fits: the candidates nearest to fitting, and changes that would make them fit.

A near miss is the best candidate of each memory-saving idea; its remedies are one-step changes, each tried by pricing the
changed plan again with the function that priced everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.hardware.cluster import Cluster
from shardwright.models.dtypes import OPTIMIZERS
from shardwright.planner.description import Record
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem
from shardwright.planner.rules.losses import LOSS_PIECES
from shardwright.planner.search.finalists import settled
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare, enumerate_legal, fixed_value

MAX_GPUS = 16_384
"""Larger clusters are not proposed as a remedy."""

AGAINST_FIX = " (against --fix)"

Remedy = dict[str, Any]


def near_misses(problem: Problem, records: list[Record], fix: Mapping[str, str], *, with_remedies: bool = True) -> list[Record]:
    """Records that do not fit, with what is short and verified remedies (none without `with_remedies`)."""
    larger = more_nodes(problem, fix) if with_remedies else []
    held = {fixed_value(name, text)[0] for name, text in fix.items()}
    made = []
    for record in records:
        memory = record["memory"]
        short = max(memory["peak_bytes"] - memory["capacity_bytes"], 0)
        helps = remedies(problem, record, held) + larger if with_remedies else []
        made.append(record | {"shortage_bytes": short, "remedies": helps})
    return made


def remedies(problem: Problem, record: Record, held: Collection[str] = ()) -> list[Remedy]:
    """One-step changes of a plan that lower its peak, each priced; those that fit first, then the leanest.

    Args:
        problem: what was planned.
        record: a plan that does not fit.
        held: axes the user fixed; a remedy that changes one says so.
    """
    made: list[Remedy] = []
    for axis, text, degrees in _changes(degrees_of(record), at_loss=_at_loss(record)):
        changed = estimate_degrees(problem, degrees)
        if _breaks_a_rule(changed) or changed["memory"]["peak_bytes"] >= record["memory"]["peak_bytes"]:
            continue
        said = text + (AGAINST_FIX if axis in held else "")
        made.append(_remedy(said, changed["feasible"], changed["predicted"]["step_time_s"], changed["memory"]["peak_bytes"]))
    made += _other_dtypes(problem, record)
    return sorted(made, key=lambda r: (not r["feasible"], r["peak_bytes"], r["change"]))


def _other_dtypes(problem: Problem, record: Record) -> list[Remedy]:
    """The same plan with 16-bit gradients, and with 16-bit moments, where they are kept in 32 bits."""
    jobs = {
        "--grad-dtype bf16": replace(problem.job, grad_bytes=2),
        "--optimizer adam-bf16": replace(problem.job, optimizer=OPTIMIZERS["adam-bf16"]),
    }
    applies = {"--grad-dtype bf16": problem.job.grad_bytes == 4, "--optimizer adam-bf16": problem.job.optimizer.id == "adam"}
    made = []
    for text, job in jobs.items():
        if applies[text]:
            changed = estimate_degrees(replace(problem, job=job), degrees_of(record))
            price, memory = changed["predicted"], changed["memory"]
            made.append(_remedy(text, changed["feasible"], price["step_time_s"], memory["peak_bytes"]))
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
                best = int(np.where(made.fits, made.step_s, np.inf).argmin())
                text = f"{larger.cluster.nodes:,} nodes ({larger.cluster.gpus:,} GPUs)"
                return [_remedy(text, True, float(made.step_s[best]), int(made.peak_bytes[best]))]
        factor *= 2
    return []


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


def _remedy(change: str, feasible: bool, step_time_s: float, peak_bytes: int) -> Remedy:
    return {"change": change, "feasible": feasible, "step_time_s": step_time_s, "peak_bytes": peak_bytes}


def _breaks_a_rule(record: Record) -> bool:
    """Whether a plan is no plan at all, or none that the framework can run: it is no remedy then."""
    return record["predicted"] is None or any(v["rule"] != "memory" for v in record["violations"])


def _at_loss(record: Record) -> bool:
    """Whether the fullest stage is fullest at its loss, where logits stand."""
    return bool(record["stages"][record["memory"]["peak_stage"]]["memory"]["logits_bytes"] > 0)


def _changes(degrees: Degrees, *, at_loss: bool) -> Iterator[tuple[str, str, Degrees]]:
    """Changes worth trying, each away from what the plan has: the axis, the change in words, the plan."""
    if degrees.recompute != "full":
        yield "recompute", "recompute full", replace(degrees, recompute="full", recompute_layers=None)
    if degrees.micro_batch > 1:
        half = degrees.micro_batch // 2
        yield "micro_batch", f"micro-batch {half}", replace(degrees, micro_batch=half)
    for name in ("tp", "pp", "cp", "ep"):
        doubled = 2 * getattr(degrees, name)
        changed = replace(degrees, **{name: doubled, "layers_per_stage": None, "dp_replicate": None})
        yield name, f"{name} {doubled}", _with_legal_schedule(changed)
    if at_loss:
        pieces = LOSS_PIECES * degrees.loss_chunks
        yield "loss_chunks", f"loss-chunks {pieces}", replace(degrees, loss_chunks=pieces)
    if degrees.zero is not None and degrees.zero < 3:
        yield "zero", f"zero {degrees.zero + 1}", replace(degrees, zero=degrees.zero + 1, dp_replicate=None)


def _with_legal_schedule(degrees: Degrees) -> Degrees:
    return replace(degrees, vpp=1, schedule=None) if (degrees.vpp or 1) > 1 else degrees
