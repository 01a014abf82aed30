"""One-step changes that make a plan leaner, each tried by pricing the changed plan with the function that prices everything.

    recompute            selective, full, and the fewest layers of each stage with which the plan fits
    offload              the fewest layers' activations, and the least share of the optimizer, with which it fits; where the
                         framework offloads states together, all of them
    degrees              half the micro-batch, twice tp, pp, cp or ep, the next ZeRO stage, more pieces of the loss
    dtypes               16-bit gradients, 16-bit moments

`remedies` lists what fits first, the fastest first: what a remedy costs is the time of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from shardwright.models.dtypes import OPTIMIZERS
from shardwright.planner.description import Record
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.offloading import Offload, offload_of
from shardwright.planner.plan_records import chunk_layers, degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem
from shardwright.planner.rules.losses import LOSS_PIECES
from shardwright.planner.rules.versions import target_of

EIGHTHS = 8
"""Shares of the optimizer that are tried."""

AGAINST_FIX = " (against --fix)"
MEMORY_RULES = frozenset(("memory", "host-memory"))
TOGETHER = frozenset(("torchrun", "torchtitan"))
"""Targets that offload parameters and optimizer together or not at all."""

Remedy = dict[str, Any]
Attempt = tuple[str, str, Record]
"""The axis that is changed, the change in words, and the record of the changed plan."""


def remedies(problem: Problem, record: Record, held: Collection[str] = ()) -> list[Remedy]:
    """One-step changes of a plan that lower its peak, each priced; those that fit first, by step time, then the leanest.

    Args:
        problem: what was planned.
        record: a plan that does not fit.
        held: axes the user fixed; a remedy that changes one says so.
    """
    made: list[Remedy] = []
    for axis, text, changed in _attempts(problem, record):
        if _breaks_a_rule(changed, record) or changed["memory"]["peak_bytes"] >= record["memory"]["peak_bytes"]:
            continue
        made.append(remedy(text + (AGAINST_FIX if axis in held else ""), changed))
    return in_order(made)


def remedy(text: str, changed: Record) -> Remedy:
    """A change in words with the price of the plan it makes."""
    step, peak = changed["predicted"]["step_time_s"], changed["memory"]["peak_bytes"]
    return {"change": text, "feasible": changed["feasible"], "step_time_s": step, "peak_bytes": peak}


def in_order(found: Collection[Remedy]) -> list[Remedy]:
    """Remedies that fit, the fastest first; then the others, the leanest first."""
    return sorted(found, key=lambda r: (not r["feasible"], r["step_time_s"] if r["feasible"] else r["peak_bytes"], r["change"]))


def together(problem: Problem) -> bool:
    """Whether the framework offloads parameters and optimizer together or not at all."""
    return target_of(problem.framework) in TOGETHER


def _breaks_a_rule(changed: Record, record: Record) -> bool:
    """Whether a plan is no plan at all, or none that the framework (or, where one could before, any) can run."""
    lost = bool(record["expressible_by"]) and not changed["expressible_by"]
    return changed["predicted"] is None or lost or any(v["rule"] not in MEMORY_RULES for v in changed["violations"])


def _attempts(problem: Problem, record: Record) -> Iterator[Attempt]:
    degrees = degrees_of(record)
    at_loss = record["stages"][record["memory"]["peak_stage"]]["memory"]["logits_bytes"] > 0
    for axis, text, changed in _changes(degrees, at_loss=at_loss):
        yield axis, text, estimate_degrees(problem, changed)
    yield from _some_layers(problem, record, degrees)
    yield from _offloads(problem, degrees)
    for text, changed_problem in _other_dtypes(problem):
        yield "", text, estimate_degrees(changed_problem, degrees)


def _changes(degrees: Degrees, *, at_loss: bool) -> Iterator[tuple[str, str, Degrees]]:
    """Changes of one degree or switch, each away from what the plan has: the axis, the change in words, the plan."""
    if degrees.recompute == "none":
        yield "recompute", "recompute selective", replace(degrees, recompute="selective")
    if degrees.recompute != "full" or degrees.recompute_layers is not None:
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


def _some_layers(problem: Problem, record: Record, degrees: Degrees) -> Iterator[Attempt]:
    """Full recomputing of the fewest layers of each stage with which the plan fits, a whole number a virtual stage."""
    vpp = degrees.vpp or 1
    done = 0 if degrees.recompute != "full" else degrees.recompute_layers
    most = max(chunk_layers(record["stages"], record["parallel"])) - 1
    if done is None or done // vpp >= most:
        return

    def covering(count: int) -> Degrees:
        return replace(degrees, recompute="full", recompute_layers=count * vpp)

    count, changed = _fewest(problem, (done // vpp + 1, most), covering)
    yield "recompute", f"recompute-layers {count * vpp}", changed


def _offloads(problem: Problem, degrees: Degrees) -> Iterator[Attempt]:
    """The least of the optimizer, and of the activations, whose offloading makes the plan fit."""
    held, layers = offload_of(degrees.offload), problem.graph.layers
    if together(problem):
        whole = Offload(optimizer=1.0, parameters=1.0)
        if held != whole:
            yield "offload", f"offload {whole.text}", estimate_degrees(problem, replace(degrees, offload=whole, zero=3))
        return

    def optimizer(eighths: int) -> Degrees:
        return replace(degrees, offload=replace(held, optimizer=eighths / EIGHTHS))

    def activations(count: int) -> Degrees:
        return replace(degrees, offload=replace(held, activations=count / layers))

    for plan_of, least, most in (
        (optimizer, round(held.optimizer * EIGHTHS), EIGHTHS),
        (activations, round(held.activations * layers), layers - 1),
    ):
        if least < most:
            count, changed = _fewest(problem, (least + 1, most), plan_of)
            yield "offload", f"offload {offload_of(plan_of(count).offload).text}", changed
    if degrees.zero == 3 and held.parameters < 1:
        states = replace(held, optimizer=1.0, parameters=1.0)
        yield "offload", f"offload {states.text}", estimate_degrees(problem, replace(degrees, offload=states))


def _fewest(problem: Problem, between: tuple[int, int], plan_of: Callable[[int], Degrees]) -> tuple[int, Record]:
    """The least number with which a plan fits and keeps the rules, and its record; the most where none does.

    Fewer never fit where more do not: halving finds it.
    """
    low, high = between
    found = estimate_degrees(problem, plan_of(high))
    if not found["feasible"]:
        return high, found
    while low < high:
        middle = (low + high) // 2
        tried = estimate_degrees(problem, plan_of(middle))
        if tried["feasible"]:
            high, found = middle, tried
        else:
            low = middle + 1
    return high, found


def _other_dtypes(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The same job with 16-bit gradients, and with 16-bit moments, where they are kept in 32 bits."""
    if problem.job.grad_bytes == 4:
        yield "--grad-dtype bf16", replace(problem, job=replace(problem.job, grad_bytes=2))
    if problem.job.optimizer.id == "adam":
        yield "--optimizer adam-bf16", replace(problem, job=replace(problem.job, optimizer=OPTIMIZERS["adam-bf16"]))
