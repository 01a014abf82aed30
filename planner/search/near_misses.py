"""What to do when nothing fits: the candidates nearest to fitting, and changes that would make them fit.

A near miss is the best candidate of each memory-saving idea; its remedies are one-step changes, each tried by pricing the
changed plan again with the function that priced everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardwright.planner.description import Record
from shardwright.planner.estimation import degrees_of, estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem


def near_miss(problem: Problem, record: Record) -> Record:
    """A record that does not fit, with what is short and verified remedies."""
    memory = record["memory"]
    shortage = max(memory["peak_bytes"] - memory["capacity_bytes"], 0)
    return record | {"shortage_bytes": shortage, "remedies": remedies(problem, record)}


def remedies(problem: Problem, record: Record) -> list[dict[str, Any]]:
    """One-step changes of a plan, each priced; those that fit first, then the fastest."""
    made = []
    for text, degrees in _changes(degrees_of(record), problem):
        changed = estimate_degrees(problem, degrees)
        if changed["predicted"] is None:
            continue
        peak = changed["memory"]["peak_bytes"]
        if peak >= record["memory"]["peak_bytes"]:
            continue
        made.append({"change": text, "feasible": changed["feasible"], "step_time_s": changed["predicted"]["step_time_s"], "peak_bytes": peak})
    made.append(_more_gpus(problem, record))
    return sorted(made, key=lambda r: (not r["feasible"], r["peak_bytes"] or 0, r["change"]))


def _changes(degrees: Degrees, problem: Problem) -> Iterator[tuple[str, Degrees]]:
    """Changes worth trying, each away from what the plan has."""
    if degrees.recompute != "full":
        yield "recompute full", replace(degrees, recompute="full", recompute_layers=None)
    if degrees.micro_batch > 1:
        half = degrees.micro_batch // 2
        yield f"micro-batch {half}", replace(degrees, micro_batch=half)
    for name in ("tp", "pp", "cp", "ep"):
        doubled = 2 * getattr(degrees, name)
        changed = replace(degrees, **{name: doubled, "layers_per_stage": None, "dp_replicate": None})
        yield f"{name} {doubled}", _with_legal_schedule(changed)
    if degrees.zero is not None and degrees.zero < 3:
        yield f"zero {degrees.zero + 1}", replace(degrees, zero=degrees.zero + 1, dp_replicate=None)


def _with_legal_schedule(degrees: Degrees) -> Degrees:
    return replace(degrees, vpp=1, schedule=None) if degrees.vpp > 1 else degrees


def _more_gpus(problem: Problem, record: Record) -> dict[str, Any]:
    """How many times the GPUs the states alone would need, as advice (not priced)."""
    memory = record["memory"]
    times = -(-memory["peak_bytes"] // memory["capacity_bytes"])
    gpus = problem.cluster.gpus * times
    return {
        "change": f"about {times} times the GPUs ({gpus:,}), if all states can be sharded further",
        "feasible": None,
        "step_time_s": None,
        "peak_bytes": None,
    }
