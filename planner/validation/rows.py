"""Prices one measured run with the same `estimate_degrees` that prices every plan.

    row -> cluster, stack, model, precision, batch, sharding, recompute     (`runs_*`: reading and defaults)
        -> Problem and Degrees                                              `read_run`
        -> ESTIMATE                                                         `price_run`

Where a row leaves a freedom, the readings are tried in order and the first that no rule refuses counts: the
stated interleaving before none, an even split before one with embedding and head counted as layers, and for a
blank recompute or sharding of a stack whose users choose it by memory, the cheapest that fits `FULL_SHARE` of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from shardwright.errors import ShardwrightError, UnsupportedError
from shardwright.hardware.calibration import Calibration
from shardwright.hardware.cluster import Cluster
from shardwright.planner.fits.factors import Fits
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, Problem, build_problem
from shardwright.planner.runs.measured import states_time, step_time_of
from shardwright.planner.runs.model import RunModel, model_of
from shardwright.planner.runs.plan import (
    Batch,
    Recompute,
    Sharding,
    batch_of,
    cluster_of,
    data_parallel,
    offloaded,
    precision_of,
    recompute_of,
    sharding_of,
)
from shardwright.planner.runs.split import stages_of
from shardwright.planner.runs.stack import blanks_of, profile_of
from shardwright.planner.runs.table import RunRow
from shardwright.planner.stacks import StackProfile, load_stack

Estimator = Callable[[Problem, Degrees], Mapping[str, Any]]

FULL_SHARE = 0.94
"""Share of memory that tuned runs fill at most."""

SHARDED = 1
"""ZeRO stage of runs that shard optimizer states to fit."""

GIB = 2.0**30
DEFAULT_METER = "reserved"
MEMORY_RULES = ("memory", "host-memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row ready to be priced.

    Attributes:
        problem: model, cluster, stack.
        readings: legal-or-not plans it may mean, the likeliest first.
        by_memory: whether the first reading that fits is meant, rather than the first.
        scale: sequences of the run over sequences priced.
        measured_s: measured step time of the whole batch, or None.
        measured_from: column it was read from.
        defaults: what the row does not say and how it was filled in.
    """

    problem: Problem
    readings: tuple[Degrees, ...]
    by_memory: bool
    scale: float
    measured_s: float | None
    measured_from: str | None
    defaults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prediction for a run.

    Attributes:
        degrees: the plan that it means.
        step_s: seconds a step; low_s, high_s: its interval.
        kind: kind of run the interval's width is of; None where the estimator states none.
        time: seconds of the parts of the step.
        peak_gib: GiB in the row's meter.
        fits: whether every stage fits.
    """

    degrees: Degrees
    step_s: float
    low_s: float
    high_s: float
    kind: str | None
    time: Mapping[str, float]
    peak_gib: float
    fits: bool


def read_run(row: RunRow, options: PricingOptions) -> Run:
    """The problem and the plans a row means.

    Raises:
        ShardwrightError: the row cannot be priced; the message is the reason.
    """
    if not states_time(row) and row.peak_mem_gib is None and row.outcome == "ok":
        raise UnsupportedError("the row states neither a time nor a memory")
    cluster, blocks = cluster_of(row)
    stack, notes = _stack(row, cluster, options)
    row, more = _with_sequence(row, stack)
    model = model_of(row, vocab=blanks_of(stack).vocab, fused_qkv=stack.framework == "megatron")
    notes += blocks + more + model.defaults
    dp = data_parallel(row)
    batch, from_batch = batch_of(row, stack, model.graph.parameters, dp)
    sharding, from_sharding = sharding_of(row, stack, dp)
    recompute, from_recompute = recompute_of(row, stack)
    if recompute.modules is not None:
        stack = replace(stack, selective_modules=recompute.modules)
    problem, from_problem = _problem(row, model, cluster, stack, batch, sharding, options)
    measured = step_time_of(row, problem.graph, cluster.device, batch.sequences * batch.scale)
    return Run(
        problem=problem,
        readings=tuple(_readings(row, problem, batch, sharding, recompute)),
        by_memory=recompute.mode == "fits" or _shards_to_fit(row, stack),
        scale=batch.scale,
        measured_s=measured.seconds if measured else None,
        measured_from=measured.origin if measured else None,
        defaults=notes + from_batch + from_sharding + from_recompute + from_problem,
    )


def price_run(run: Run, meter: str, estimate: Estimator) -> Price:
    """The prediction for a run.

    Args:
        run: the run.
        meter: allocated, reserved or device.
        estimate: prices one plan of a problem.

    Raises:
        ShardwrightError: every reading breaks a rule; the first one's rule is named.
    """
    refused: list[str] = []
    found: Price | None = None
    for degrees in run.readings:
        try:
            result = estimate(run.problem, degrees)
        except ShardwrightError as error:
            refused.append(str(error))
            continue
        broken = [v for v in result["violations"] if v["rule"] not in MEMORY_RULES]
        if broken or result["predicted"] is None:
            refused.append(f"{broken[0]['rule']}: {broken[0]['message']}" if broken else "no prediction")
            continue
        found = _price(result, degrees, meter, run.scale)
        if not run.by_memory or _fills(result) <= FULL_SHARE:
            return found
    if found is None:
        raise UnsupportedError("no legal plan: " + (refused[0] if refused else "no reading"))
    return found


def _price(result: Mapping[str, Any], degrees: Degrees, meter: str, scale: float) -> Price:
    predicted = result["predicted"]
    return Price(
        degrees=degrees,
        step_s=predicted["step_time_s"] * scale,
        low_s=predicted["step_time_low_s"] * scale,
        high_s=predicted["step_time_high_s"] * scale,
        kind=predicted.get("interval", {}).get("kind"),
        time={name: seconds * scale for name, seconds in result["time"].items()},
        peak_gib=result["memory"]["meters"][f"{meter}_bytes"] / GIB,
        fits=_fills(result) <= 1.0,
    )


def _fills(result: Mapping[str, Any]) -> float:
    """Largest share of its memory that any stage uses."""
    memories = [stage["memory"] for stage in result["stages"]]
    return max(float(memory["total_bytes"]) / float(memory["capacity_bytes"]) for memory in memories)


def _stack(row: RunRow, cluster: Cluster, options: PricingOptions) -> tuple[StackProfile, tuple[str, ...]]:
    return (load_stack(options.stack), ()) if options.stack else profile_of(row, cluster.device)


def _with_sequence(row: RunRow, stack: StackProfile) -> tuple[RunRow, tuple[str, ...]]:
    if row.seq_len is not None:
        return row, ()
    seq_len = blanks_of(stack).seq_len
    if seq_len is None:
        raise UnsupportedError("the row states no sequence length")
    return replace(row, seq_len=seq_len), (f"seq_len={seq_len}",)


def _problem(
    row: RunRow,
    model: RunModel,
    cluster: Cluster,
    stack: StackProfile,
    batch: Batch,
    sharding: Sharding,
    options: PricingOptions,
) -> tuple[Problem, tuple[str, ...]]:
    precision, notes = precision_of(row, cluster.device, stack)
    measured = options.calibration
    chosen = replace(
        options,
        calibration=measured if isinstance(measured, Calibration) and measured.tells_of(cluster) else None,
        precision=precision,
        framework="any",
        stack=stack.id,
        grad_dtype=options.grad_dtype or sharding.grad_dtype,
        lora=model.lora,
        memory_meter=row.memory_meter or DEFAULT_METER,
        gpus=None,
    )
    problem = build_problem(model.graph, cluster, seq_len=row.seq_len or 1, global_batch=batch.sequences, options=chosen)
    return replace(problem, stack=replace(problem.stack, **_departures(stack, problem.fits))), notes


def _departures(stack: StackProfile, fits: Fits) -> dict[str, Any]:
    """Fields in which a row's stack differs from the profile of its id, both with fitted factors applied."""
    base, stack = fits.stack(load_stack(stack.id)), fits.stack(stack)
    return {f.name: getattr(stack, f.name) for f in fields(stack) if getattr(stack, f.name) != getattr(base, f.name)}


def _readings(row: RunRow, problem: Problem, batch: Batch, sharding: Sharding, recompute: Recompute) -> Iterator[Degrees]:
    pp = row.pp or 1
    chunks = [row.vp or 1, 1] if pp > 1 and (row.vp or 1) > 1 else [1]
    modes = ("none", "selective", "full") if recompute.mode == "fits" else (recompute.mode,)
    stages = (sharding.zero, SHARDED) if _shards_to_fit(row, problem.stack) else (sharding.zero,)
    for mode, vpp in product(modes, chunks):
        for degrees in _with_splits(row, problem, batch, sharding, replace(recompute, mode=mode), vpp):
            yield from (replace(degrees, zero=zero) for zero in stages)


def _shards_to_fit(row: RunRow, stack: StackProfile) -> bool:
    """Whether a run may have sharded its optimizer states although nothing says so."""
    return blanks_of(stack).shards_to_fit and not row.zero_or_fsdp and data_parallel(row) * (row.cp or 1) > 1


def _with_splits(
    row: RunRow, problem: Problem, batch: Batch, sharding: Sharding, recompute: Recompute, vpp: int
) -> Iterator[Degrees]:
    layers, pp = problem.graph.layers, row.pp or 1
    share = recompute.layer_share
    degrees = Degrees(
        tp=row.tp or 1,
        pp=pp,
        vpp=vpp,
        cp=row.cp or 1,
        ep=row.ep or 1,
        etp=row.etp or 1 if problem.graph.spec.moe is not None else None,
        dp_replicate=sharding.replicas if sharding.replicas > 1 else None,
        micro_batch=batch.micro_batch,
        zero=sharding.zero,
        sequence_parallel=_sequence_parallel(row, problem.stack),
        recompute=recompute.mode,
        recompute_layers=max(round(layers / pp * share), 1) if recompute.mode == "full" and share < 1 else None,
        offload=offloaded(row, layers, sharding.zero),
    )
    split = stages_of(row, problem.graph, problem.stack, pp * vpp)
    yield degrees if split is None else replace(degrees, layers_per_stage=split)
    if split is not None:
        yield degrees


def _sequence_parallel(row: RunRow, stack: StackProfile) -> bool:
    if (row.tp or 1) == 1:
        return False
    return row.seq_parallel == "yes" if row.seq_parallel else stack.sequence_parallel
