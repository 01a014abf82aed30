"""Prices one plan: `estimate`, the same prices the search ranks by.

    estimate(model, cluster, …, degrees)   from names          estimate_plan(file)   from a saved result or plan
    estimate_degrees(problem, degrees)     from records        estimate_batch        several plans at once

`settle` fills in the defaults of the framework; violations of rules are listed, never raised. A plan whose degrees do not even
multiply up cannot be priced: its times and memory are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.collectives import fabric_of
from shardwright.models.graph import ModelGraph
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.pricing import TIME_PARTS, make_context, price
from shardwright.planner.cost.stages import Split, even_chunks, fold
from shardwright.planner.description import Record, describe, problem_summary, sources_record
from shardwright.planner.plans import RECOMPUTE_MODES, Degrees, PlanBatch
from shardwright.planner.problem import PricingOptions, Problem, build_problem, problem_from_inputs
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.registry import rules_for
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES

ALL_LAYERS = 2**31 - 1
MAX_DEGREE = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The price of one plan.

    Attributes:
        data: the record `estimate --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def feasible(self) -> bool:
        """Whether it keeps all rules and fits."""
        return bool(self.data["feasible"])

    @property
    def exit_code(self) -> int:
        """0 if feasible, else 1."""
        return 0 if self.feasible else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        step = (self.data["predicted"] or {}).get("step_time_s")
        return f"Estimate(feasible={self.feasible}, step_time_s={step})"


def estimate(
    model: str | ModelGraph,
    cluster: str | Cluster,
    *,
    seq_len: int,
    global_batch: int,
    degrees: Degrees | None = None,
    options: PricingOptions | None = None,
) -> Estimate:
    """Prices one plan.

    Args:
        model: preset id, path, or graph.
        cluster: `NODE:COUNT[xG]`, path, or cluster.
        seq_len: tokens a sequence.
        global_batch: sequences a step.
        degrees: the plan; what it leaves out takes the framework's defaults.
        options: precision, stack and the like.

    Raises:
        ShardwrightError: an input that cannot be used. An infeasible plan is an answer, not an error.

    Example:
        >>> import shardwright
        >>> plan = shardwright.Degrees(tp=2, micro_batch=1)
        >>> price = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=plan)
        >>> price.feasible
        True
    """
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return _finished(problem, estimate_degrees(problem, degrees or Degrees()))


def estimate_plan(source: str | Path | Mapping[str, Any], *, rank: int = 1, options: PricingOptions | None = None) -> Estimate:
    """Prices a saved plan again, from the file alone.

    Args:
        source: a RESULT (file or folder), a PLAN, or one of them as a mapping.
        rank: 1-based rank of the plan in a RESULT.
        options: reserved for what-if; its `overrides` are applied to the saved inputs.

    Raises:
        ShardwrightError: the file is damaged, or has no such rank.
    """
    from shardwright.planner.schema import read_plan

    inputs, saved = read_plan(source, rank)
    problem = problem_from_inputs(inputs, options.overrides if options else ())
    return _finished(problem, estimate_degrees(problem, degrees_of(saved)))


def degrees_of(saved: Mapping[str, Any]) -> Degrees:
    """The plan of an ESTIMATE record."""
    parallel = saved["parallel"]
    mode = parallel["recompute"]["mode"]
    largest = max((_stage_layers(stage) for stage in saved["stages"]), default=0)
    covered = parallel["recompute"]["layers"]
    return Degrees(
        **{name: parallel[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch")},
        zero=parallel["zero_stage"],
        schedule=parallel["schedule"],
        sequence_parallel=parallel["sequence_parallel"],
        recompute=mode,
        recompute_layers=covered if mode == "full" and covered < largest else None,
        layers_per_stage=_chunks(saved["stages"], parallel["vpp"]) or None,
    )


def _stage_layers(stage: Mapping[str, Any]) -> int:
    return sum(span[1] - span[0] + 1 for span in stage["layers"] if span)


def _chunks(stages: Sequence[Mapping[str, Any]], vpp: int) -> tuple[int, ...]:
    """Layers of each chunk in the order they run."""
    spans = [stage["layers"][v] for v in range(vpp) for stage in stages]
    return tuple(span[1] - span[0] + 1 if span else 0 for span in spans)


def estimate_degrees(problem: Problem, degrees: Degrees) -> Record:
    """The ESTIMATE record of one plan.

    Raises:
        ShardwrightError: a value no plan can have (a degree below 1, layers that do not sum to the model's).
    """
    settled = settle(problem, degrees)
    row, split = settled.row, settled.split
    violations = settled.violations
    if row is None or split is None:
        return _unpriced(problem, settled)
    record = estimate_batch(problem, PlanBatch.stack([row]), [split])[0]
    record["violations"] = violations + record["violations"]
    record["feasible"] = not record["violations"]
    return record


def estimate_batch(problem: Problem, batch: PlanBatch, splits: Sequence[Split]) -> list[Record]:
    """ESTIMATE records of several plans; `batch.split` indexes `splits`."""
    table = fold(problem.graph, splits, every_rank=True)
    network = Network(problem.cluster, fabric_of(problem.cluster))
    context, key = make_context(problem, batch, table, network)
    return describe(context, batch, key, price(context, batch, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A plan with its defaults filled in.

    Attributes:
        row: columns of a `PlanBatch`, or None if the degrees do not multiply up.
        split: its layers, or None.
        violations: rules it breaks.
        shown: degrees as far as they can be told.
    """

    row: dict[str, int] | None
    split: Split | None
    violations: list[dict[str, str]]
    shown: dict[str, Any]


def settle(problem: Problem, degrees: Degrees) -> Settled:
    """Fills in defaults and tests the rules.

    Raises:
        InvalidValueError: a degree outside 1 … 10,000,000, or layers that do not sum to the model's.
        UnknownNameError: an unknown schedule or recompute mode.
    """
    _check_ranges(degrees)
    facts = facts_of(problem)
    columns = _columns(problem, degrees)
    stage = degrees.tp * degrees.cp * degrees.pp
    columns["dp"] = facts.gpus // stage if facts.gpus % stage == 0 else 0
    given = degrees.dp_replicate
    zero = _zero(problem, degrees) if columns["dp"] > 1 or degrees.zero is not None else 0
    columns["zero"] = zero
    columns["dp_replicate"] = given if given is not None else (max(columns["dp"], 1) if zero == 0 else 1)
    broken = _broken(problem, columns)
    shown = columns | {"schedule": SCHEDULE_IDS[columns["schedule"]]}
    if columns["dp"] == 0 or facts.global_batch % max(columns["dp"] * degrees.micro_batch, 1) or _unpriceable(broken):
        return Settled(row=None, split=None, violations=broken, shown=shown)
    split = _split(problem, degrees)
    columns["micro_batches"] = facts.global_batch // (columns["dp"] * degrees.micro_batch)
    row = columns | {"split": 0, "recompute": RECOMPUTE_MODES.index(degrees.recompute)}
    row["recompute_layers"] = degrees.recompute_layers if degrees.recompute_layers is not None else ALL_LAYERS
    return Settled(row=row, split=split, violations=broken, shown=shown)


def _check_ranges(degrees: Degrees) -> None:
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch"):
        value = getattr(degrees, name)
        if value is not None and not 1 <= value <= MAX_DEGREE:
            raise InvalidValueError(f"{name} {value}", where=f"--{name.replace('_', '-')}", hint=f"give 1 to {MAX_DEGREE:,}")
    if degrees.zero not in (None, 0, 1, 2, 3):
        raise InvalidValueError(f"zero {degrees.zero}", where="--zero", hint="give 0, 1, 2 or 3")
    if degrees.recompute not in RECOMPUTE_MODES:
        raise unknown_name("recompute mode", degrees.recompute, RECOMPUTE_MODES, where="--recompute")
    if degrees.recompute_layers is not None:
        if degrees.recompute != "full":
            raise ConflictError(
                f"--recompute-layers with --recompute {degrees.recompute}", where="--recompute-layers", hint="give --recompute full as well"
            )
        if not 1 <= degrees.recompute_layers <= MAX_DEGREE:
            raise InvalidValueError(f"{degrees.recompute_layers} layers", where="--recompute-layers", hint="give 1 or more")


def _columns(problem: Problem, degrees: Degrees) -> dict[str, int]:
    """Degrees with the framework's defaults, except data parallelism and ZeRO."""
    megatron = _family(problem, degrees) == "megatron"
    routed = problem.graph.spec.moe is not None
    etp = degrees.etp if degrees.etp is not None else (degrees.tp if megatron and routed else 1)
    sp = degrees.sequence_parallel if degrees.sequence_parallel is not None else degrees.tp > 1
    name = degrees.schedule or ("interleaved-1f1b" if degrees.vpp > 1 else "1f1b")
    if name not in SCHEDULE_IDS:
        raise unknown_name("schedule", name, SCHEDULE_IDS, where="--schedule")
    schedule = SCHEDULE_IDS.index(name)
    if SCHEDULES[schedule].interleaved != (degrees.vpp > 1):
        hint = "give --vpp above 1" if SCHEDULES[schedule].interleaved else "give --schedule interleaved-1f1b, or vpp 1"
        raise ConflictError(f"schedule {name} with vpp {degrees.vpp}", where="--schedule", hint=hint)
    return {
        "tp": degrees.tp,
        "sp": int(sp and degrees.tp > 1),
        "cp": degrees.cp,
        "pp": degrees.pp,
        "vpp": degrees.vpp,
        "ep": degrees.ep,
        "etp": etp,
        "micro_batch": degrees.micro_batch,
        "schedule": schedule,
    }


def _family(problem: Problem, degrees: Degrees) -> str:
    if problem.framework == "any":
        return "megatron" if degrees.pp > 1 else "pytorch"
    return problem.framework


def _zero(problem: Problem, degrees: Degrees) -> int:
    if degrees.zero is not None:
        return degrees.zero
    return 1 if _family(problem, degrees) in {"megatron", "deepspeed"} else 3


def _broken(problem: Problem, columns: Mapping[str, int]) -> list[dict[str, str]]:
    """Violations of all rules that can be tested on this plan."""
    facts = facts_of(problem)
    dp = columns["dp"]
    known = dict(columns) | {"split": 0, "recompute": 0}
    if dp > 0:
        known["micro_batches"] = facts.global_batch // max(dp * columns["micro_batch"], 1)
        known["edp"] = columns["tp"] * columns["cp"] * dp // (columns["etp"] * columns["ep"])
    arrays = {name: np.array([value], dtype=np.int64) for name, value in known.items()}
    found = []
    for rule in rules_for(problem.framework, canonical=False):
        needs_dp = any(name in {"dp", "micro_batches", "edp", "dp_shard", "dp_replicate"} for name in rule.reads)
        if (dp == 0 and needs_dp) or (rule.id == "layers-stages" and False):
            continue
        if bool(rule.broken(arrays, facts)[0]):
            found.append({"rule": rule.id, "message": rule.message(known, facts), "remedy": rule.remedy(known, facts)})
    return found


def _unpriceable(broken: Sequence[Mapping[str, str]]) -> bool:
    return any(b["rule"] in {"layers-stages", "expert-mesh", "dp-replicate"} for b in broken)


def _split(problem: Problem, degrees: Degrees) -> Split:
    layers, pp, vpp = problem.graph.layers, degrees.pp, degrees.vpp
    given = degrees.layers_per_stage
    if given is None:
        chunks = even_chunks(layers, pp, vpp, 0)
        if chunks is None:  # pragma: no cover - nothing is counted
            raise InvalidValueError(f"{layers} layers in {pp * vpp} chunks")
        return Split(chunks=chunks, pp=pp, vpp=vpp)
    where = "--layers-per-stage"
    if len(given) not in {pp, pp * vpp}:
        raise InvalidValueError(f"{len(given)} numbers of layers for pp {pp} and vpp {vpp}", where=where, hint=f"give {pp * vpp} numbers")
    if min(given) < 0 or sum(given) != layers:
        raise InvalidValueError(
            f"layers per stage sum to {sum(given)}; the model has {layers}", where=where, hint=f"give numbers that sum to {layers}"
        )
    if len(given) == pp * vpp:
        return Split(chunks=tuple(given), pp=pp, vpp=vpp)
    odd = [n for n in given if n % vpp]
    if odd:
        raise InvalidValueError(f"{odd[0]} layers of a stage in vpp {vpp} chunks", where=where, hint=f"give {pp * vpp} numbers, one a chunk")
    return Split(chunks=tuple(n // vpp for n in given) * vpp, pp=pp, vpp=vpp)


def _unpriced(problem: Problem, settled: Settled) -> Record:
    """A record for degrees that cannot be priced: what is known of them, and why."""
    shown = settled.shown
    dp = shown["dp"] or None
    parallel: Record = {name: shown[name] for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch", "schedule")}
    parallel |= {"world_size": None, "dp": dp, "dp_replicate": None, "dp_shard": None, "edp": None, "micro_batches": None}
    parallel |= {"sequence_parallel": bool(shown["sp"]), "zero_stage": shown["zero"]}
    return {
        "feasible": False,
        "violations": settled.violations,
        "expressible_by": [],
        "parallel": parallel,
        "stages": [],
        "predicted": None,
        "time": None,
        "memory": None,
        "communication": [],
        "account": None,
        "sources": sources_record(problem),
        "warnings": [],
    }


def _finished(problem: Problem, record: Record) -> Estimate:
    head: Record = {"schema_version": 1, "kind": "estimate", "inputs": problem.to_inputs(), **problem_summary(problem)}
    return Estimate(data=head | {"assumptions": [a.to_dict() for a in problem.assumptions]} | record)
