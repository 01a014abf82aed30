"""`plan` and `estimate`: what a plan costs, and which is best."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from shardwright.commands import console
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.report import asked
from shardwright.planner.report import options as o

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.planner.plans import Degrees
    from shardwright.planner.problem import PricingOptions

OBJECTIVES = ("throughput", "cost", "energy", "goodput")
EFFORTS = ("scan", "search", "prove")


def plan(
    model: o.Model = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.BatchRange = None,
    tokens_per_batch: o.TokensPerBatch = None,
    length_histogram: o.LengthHistogram = None,
    dim: o.Dim = None,
    declare: o.Declare = None,
    gpus: o.Gpus = None,
    overrides: o.Set = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    grad_dtype: o.GradDtype = None,
    lora: o.Lora = None,
    freeze: o.Freeze = None,
    calibration: o.Calibration = None,
    measured: o.Measured = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    stack: o.Stack = None,
    routing_skew: o.RoutingSkew = None,
    memory_margin: o.MemoryMargin = None,
    memory_meter: o.MemoryMeter = None,
    objective: o.Objective = "throughput",
    prices: o.Prices = None,
    allow_subset: o.AllowSubset = False,
    pareto: o.Pareto = False,
    trials: o.Trials = None,
    top: o.Top = 10,
    fix: o.Fix = None,
    effort: o.Effort = "search",
    effort_seconds: o.EffortSeconds = None,
    time_limit: o.TimeLimit = None,
    tie: o.Tie = 1.0,
    workers: o.Workers = None,
    output: o.Folder = None,
    form: o.Format = "table",
) -> int:
    """Search the plans for MODEL on a cluster and rank them."""
    given = locals()
    _check_common(form, objective)
    job = asked.job(given)
    console.one_of("effort", effort, EFFORTS)
    folder = asked.free_folder(output)
    search = {"top": top, "fix": asked.fixed(fix or []), "effort": effort, "tie_percent": tie}
    search |= {"allow_subset": allow_subset, "pareto": pareto, "trials": trials or 0}
    search |= {"effort_s": effort_seconds} if effort_seconds is not None else {}
    search |= {"time_limit_s": time_limit} if time_limit is not None else {}
    search |= {"workers": workers} if workers is not None else {}
    result = _searched(job, asked.pricing(given), search)
    if folder is not None:
        _save(folder, result)
    return console.finished(result, form)


def estimate(
    model: o.Model = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    tokens_per_batch: o.TokensPerBatch = None,
    length_histogram: o.LengthHistogram = None,
    dim: o.Dim = None,
    declare: o.Declare = None,
    gpus: o.Gpus = None,
    overrides: o.Set = None,
    plan_file: o.PlanFile = None,
    rank: o.Rank = None,
    megatron_args: o.MegatronArgs = None,
    torchtitan_toml: o.TorchtitanToml = None,
    deepspeed_json: o.DeepspeedJson = None,
    world_size: o.WorldSize = None,
    define: o.Define = None,
    tp: o.Tp = None,
    pp: o.Pp = None,
    vpp: o.Vpp = None,
    cp: o.Cp = None,
    cp_comm: o.CpComm = None,
    ep: o.Ep = None,
    etp: o.Etp = None,
    moe_dispatcher: o.MoeDispatcher = None,
    dp_replicate: o.DpReplicate = None,
    micro_batch: o.MicroBatch = None,
    zero: o.Zero = None,
    schedule: o.Schedule = None,
    sequence_parallel: o.SequenceParallel = None,
    recompute: o.Recompute = None,
    recompute_layers: o.RecomputeLayers = None,
    layers_per_stage: o.LayersPerStage = None,
    loss_chunks: o.LossChunks = None,
    offload: o.OffloadTo = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    grad_dtype: o.GradDtype = None,
    lora: o.Lora = None,
    freeze: o.Freeze = None,
    calibration: o.Calibration = None,
    measured: o.Measured = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    stack: o.Stack = None,
    routing_skew: o.RoutingSkew = None,
    memory_margin: o.MemoryMargin = None,
    memory_meter: o.MemoryMeter = None,
    objective: o.Objective = "throughput",
    prices: o.Prices = None,
    trace: o.Trace = None,
    form: o.Format = "table",
) -> int:
    """Price one plan: degrees, a saved plan, or your own script."""
    return _answered(locals())


def _answered(given: dict[str, Any]) -> int:
    """The estimate that is asked for on the screen, and its trace in a file; the exit code."""
    _check_common(given["form"], given["objective"])
    place = asked.trace_file(given["trace"])
    result = _priced(given)
    if place is not None:
        _trace(place, result)
    return console.finished(result, given["form"])


def _priced(given: dict[str, Any]) -> Any:
    """The estimate that a command line asks for, in one of three ways."""
    if asked.configuration(given):
        return _estimated_configuration(given)
    if given["plan_file"] is not None:
        asked.refuse_beside_plan(given)
        return _estimated_file(given["plan_file"], given["rank"] or 1, given)
    if given["rank"] is not None:
        raise ConflictError("--rank is given without --plan", where="--rank", hint="name the RESULT by --plan FILE")
    return _estimated(asked.job(given), asked.degrees(given), asked.pricing(given))


def _check_common(form: str, objective: str) -> None:
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    console.one_of("objective", objective, OBJECTIVES)


def _searched(job: dict[str, Any], options: PricingOptions, search: dict[str, Any]) -> Any:
    from shardwright.planner.batches import BatchRange
    from shardwright.planner.report.progress import LiveLine
    from shardwright.planner.search.batches import plan_range
    from shardwright.planner.search.options import SearchOptions
    from shardwright.planner.search.run import plan as search_plans

    how: dict[str, Any] = {"options": options, "search": SearchOptions(**search)}
    with LiveLine(sys.stderr) as live:
        if not isinstance(job["global_batch"], BatchRange):
            return search_plans(**job, **how, on_progress=live)
        named = {name: value for name, value in job.items() if name != "global_batch"}
        return plan_range(**named, batches=job["global_batch"], **how, on_progress=live)


def _estimated(job: dict[str, Any], degrees: Degrees, options: PricingOptions) -> Any:
    from shardwright.planner.batches import BatchRange
    from shardwright.planner.estimation import estimate as price

    if isinstance(job["global_batch"], BatchRange):
        hint = "give one number of sequences, or plan over the range"
        raise InvalidValueError(f"a range of batches, {job['global_batch']}", where="--global-batch", hint=hint)
    return price(**job, degrees=degrees, options=options)


def _estimated_file(path: str, rank: int, given: dict[str, Any]) -> Any:
    from shardwright.planner.estimation import estimate_plan

    return estimate_plan(path, rank=rank, options=asked.pricing(given))


def _estimated_configuration(given: dict[str, Any]) -> Any:
    from shardwright.planner.readers.estimating import estimate_file

    return estimate_file(**asked.configured(given), options=asked.pricing(given))


def _trace(place: Path, result: Any) -> None:
    from shardwright.planner.report.trace import write_trace

    data = result.to_dict()
    if data["predicted"] is None:
        console.say(f"no trace in {place}: the plan has no price")
    else:
        console.say(f"wrote {write_trace(data, place)}")


def _save(folder: Path, result: Any) -> None:
    from shardwright.planner.report.folder import write_result

    console.say("wrote " + ", ".join(str(path) for path in write_result(folder, result.to_dict())))
