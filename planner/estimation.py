"""Prices one plan: `estimate`, the same prices the search ranks by.

    estimate(model, cluster, …, degrees)   from names          estimate_plan(file)   from a saved result or plan
    estimate_problem(problem, degrees)     from records        estimate_degrees      the same as a plain record
    estimate_batch(problem, batch)         several plans at once

`settling.settle` fills in the defaults of the framework; violations of rules are listed, never raised. A plan whose degrees do
not even multiply up cannot be priced: its times and memory are null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError
from shardwright.hardware.cluster import Cluster
from shardwright.models.graph import ModelGraph
from shardwright.planner.corrections import corrections_from
from shardwright.planner.cost.context import make_context
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.stages import Split, fold
from shardwright.planner.description import Record, describe, problem_summary, sources_record, switches
from shardwright.planner.hosting import assumptions_of
from shardwright.planner.launchability import with_targets
from shardwright.planner.offloading import from_code
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import CP_COMM_KINDS, MOE_DISPATCHERS, Degrees, PlanBatch
from shardwright.planner.pricing_options import with_skew
from shardwright.planner.problem import (
    Assumption,
    PricingOptions,
    Problem,
    build_problem,
    problem_from_inputs,
)
from shardwright.planner.settling import Settled, settle
from shardwright.planner.shown import Shown
from shardwright.planner.spending import check_objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Shown):
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
    seq_len: int | None,
    global_batch: int,
    degrees: Degrees | None = None,
    options: PricingOptions | None = None,
) -> Estimate:
    """Prices one plan.

    Args:
        model: preset id, path, or graph.
        cluster: `NODE:COUNT[xG]`, path, or cluster.
        seq_len: tokens a sequence; None: as a graph file has it.
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
    from shardwright.planner.site.stated import with_measured

    options = with_measured((model, cluster, seq_len, global_batch), options)
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return estimate_problem(problem, degrees or Degrees())


def estimate_problem(problem: Problem, degrees: Degrees, settings: Mapping[str, Any] | None = None) -> Estimate:
    """Prices one plan of a problem; `settings` as `estimate_degrees` takes them.

    Raises:
        InvalidValueError: the objective needs a price or a power that is not known.
    """
    check_objective(problem)
    return Estimate(data=_finished(problem, estimate_degrees(problem, degrees, settings)))


def estimate_plan(source: str | Path | Mapping[str, Any], *, rank: int = 1, options: PricingOptions | None = None) -> Estimate:
    """Prices a saved plan again, from the file alone.

    Args:
        source: a RESULT (file or folder), a PLAN, or one of them as a mapping.
        rank: 1-based rank of the plan in a RESULT.
        options: `overrides` are applied to the saved inputs, `calibration` takes the place of what was measured.

    Raises:
        ShardwrightError: the file is damaged, or has no such rank.
    """
    return Estimate(data=repriced(source, rank=rank, options=options)[1])


def repriced(
    source: str | Path | Mapping[str, Any], *, rank: int = 1, options: PricingOptions | None = None
) -> tuple[Problem, Record]:
    """A saved plan as `estimate_plan` prices it, with the problem it was made for."""
    from shardwright.planner.schema import plan_of, read_result

    document = read_result(source)
    inputs, saved = plan_of(document, rank, "the result" if isinstance(source, Mapping) else str(source))
    problem = problem_from_inputs(inputs, options.overrides if options else (), saved["parallel"]["world_size"])
    problem = problem.repriced(options.prices, options.objective) if options else problem
    problem = replace(problem, stack=with_skew(problem.stack, options)) if options else problem
    check_objective(problem)
    if options and options.calibration is not None:
        problem = replace(problem, collectives=corrections_from(options.calibration, problem.cluster))
    problem = replace(problem, assumptions=_with_saved_origins(problem, document["assumptions"]))
    record = estimate_degrees(problem, _degrees_saved(saved))
    if not (options and options.overrides):
        _check_unchanged(saved["parallel"], record["parallel"])
        record |= {"placement": saved["placement"]} if saved.get("placement") else {}
    return problem, _finished(problem, record)


def _with_saved_origins(problem: Problem, saved: Sequence[Mapping[str, Any]]) -> tuple[Assumption, ...]:
    """The assumptions in force, each with the origin it had when the file was written if its value is still the same."""
    known = {(a.get("key"), str(a.get("value"))): a.get("origin") for a in saved}
    return tuple(replace(a, origin=str(known.get((a.key, str(a.value)), a.origin))) for a in problem.assumptions)


def _degrees_saved(saved: Mapping[str, Any]) -> Degrees:
    try:
        return degrees_of(saved)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        hint = "give a file as `plan` or `estimate` wrote it"
        raise DamagedFileError(f"the plan's degrees or stages cannot be used ({error!r})", where="--plan", hint=hint) from error


def _check_unchanged(saved: Mapping[str, Any], priced: Mapping[str, Any]) -> None:
    """Refuses a file whose derived degrees contradict the others."""
    for name in ("world_size", "dp", "dp_shard", "edp", "micro_batches"):
        if saved[name] != priced[name]:
            raise ConflictError(
                f"the plan says {name} {saved[name]}; its other degrees give {priced[name]}",
                where=f"--plan: parallel.{name}",
                hint="change tp, pp, cp, micro_batch or the batch instead; this follows from them",
            )


def estimate_degrees(problem: Problem, degrees: Degrees, settings: Mapping[str, Any] | None = None) -> Record:
    """The ESTIMATE record of one plan.

    Args:
        problem: model, cluster and batch.
        degrees: the plan.
        settings: what a configuration of the framework sets besides, tested by the rules; None without one.

    Raises:
        ShardwrightError: a value no plan can have (a degree below 1, layers that do not sum to the model's).
    """
    settled = settle(problem, degrees, settings)
    if settled.row is None or settled.split is None:
        return _unpriced(problem, settled, degrees)
    record = estimate_batch(problem, PlanBatch.stack([settled.row]), [settled.split])[0]
    record["violations"] = settled.violations + record["violations"]
    record["warnings"] = settled.warnings + record["warnings"]
    record["feasible"] = not record["violations"]
    return record


def estimate_batch(problem: Problem, batch: PlanBatch, splits: Sequence[Split]) -> list[Record]:
    """ESTIMATE records of several plans; `batch.split` indexes `splits`."""
    table = fold(problem.graph, splits, every_rank=True, areas=problem.areas)
    context, key = make_context(problem, batch, table, network_of(problem))
    return describe(context, batch, key, price(context, batch, key, exact=True))


def step_time_s(problem: Problem, degrees: Degrees) -> float:
    """The step time of a plan that can be priced, without its record: what `estimate_degrees` prints, for many prices.

    Raises:
        InvalidValueError: the degrees do not multiply up.
    """
    settled = settle(problem, degrees)
    if settled.row is None or settled.split is None:
        raise InvalidValueError("the plan cannot be priced", hint="`estimate` says which rules it breaks")
    batch, table = PlanBatch.stack([settled.row]), fold(problem.graph, [settled.split], every_rank=True, areas=problem.areas)
    context, key = make_context(problem, batch, table, network_of(problem))
    return float(price(context, batch, key, exact=True).step_s[0])


def _unpriced(problem: Problem, settled: Settled, degrees: Degrees) -> Record:
    """A record for degrees that cannot be priced: what is known of them, and why."""
    shown = settled.shown
    dp = shown["dp"] or None
    parallel: Record = {
        name: shown[name] for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch", "schedule", "loss_chunks")
    }
    parallel |= {"world_size": None, "dp": dp, "dp_replicate": None, "dp_shard": None, "edp": None, "micro_batches": None}
    parallel |= {"sequence_parallel": bool(shown["sp"]), "zero_stage": shown["zero"]}
    parallel |= {"cp_comm": CP_COMM_KINDS[shown["cp_comm"]], "moe_dispatcher": MOE_DISPATCHERS[shown["moe_dispatcher"]]}
    parallel |= switches(parallel, degrees.recompute, degrees.recompute_layers, problem)
    parallel |= {"offload": from_code(shown["offload"])}
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
        "warnings": settled.warnings,
    }


def _finished(problem: Problem, record: Record) -> Record:
    """The document of one plan."""
    if record["predicted"] and not math.isfinite(record["predicted"]["step_time_s"]):
        raise InvalidValueError("the inputs give no finite step time", hint="look for figures that are far too small or large")
    head: Record = {"schema_version": 1, "kind": "estimate", "inputs": problem.to_inputs(), **problem_summary(problem)}
    (record,) = with_targets(problem, [record])
    assumed = (*problem.assumptions, *assumptions_of(problem, [record]))
    return head | {"assumptions": [a.to_dict() for a in assumed]} | record
