"""The command line: parse, load, call one function of the library, render, exit code.

Exit codes: 0 a positive answer; 1 ran well, the answer is no; 2 misuse or bad input; 3 stopped at the limit with
nothing found; 130 interrupted. The result alone goes to standard output, in one piece; everything else to standard
error. Whatever loads slowly is imported inside the functions that need it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnsupportedError, unknown_name
from shardwright.planner.report import asked
from shardwright.planner.report import options as o

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.planner.plans import Degrees
    from shardwright.planner.problem import PricingOptions

NAME = "shardwright"
OBJECTIVES = ("throughput", "cost", "energy", "goodput")
EFFORTS = ("scan", "search", "prove")
FITS = ("all", "none", "loso")
ANCHORS = ("none", "first")
INTERRUPTED = 130

app = typer.Typer(
    name=NAME,
    help="Plan how to train a large model on a cluster: ranked, explained parallelism plans, without a GPU.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 yes; 1 ran well, the answer is no; 2 misuse or bad input; 3 stopped at the limit with nothing "
    "found; 130 interrupted.",
)


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        import shardwright

        _write(f"{NAME} {shardwright.__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _write(context.get_help() + "\n")
        raise typer.Exit


@app.command(cls=o.GroupedCommand)
def plan(
    model: o.Model = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    tokens_per_batch: o.TokensPerBatch = None,
    length_histogram: o.LengthHistogram = None,
    gpus: o.Gpus = None,
    overrides: o.Set = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    grad_dtype: o.GradDtype = None,
    lora: o.Lora = None,
    freeze: o.Freeze = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    stack: o.Stack = None,
    memory_margin: o.MemoryMargin = None,
    memory_meter: o.MemoryMeter = None,
    objective: o.Objective = "throughput",
    top: o.Top = 10,
    fix: o.Fix = None,
    effort: o.Effort = "search",
    tie: o.Tie = 1.0,
    workers: o.Workers = None,
    output: o.Folder = None,
    form: o.Format = "table",
) -> int:
    """Search the plans for MODEL on a cluster and rank them."""
    given = locals()
    _check_common(form, objective)
    job = asked.job(given)
    _one_of("effort", effort, EFFORTS)
    folder = asked.free_folder(output)
    search = {"top": top, "fix": asked.fixed(fix or []), "effort": effort, "tie_percent": tie}
    search |= {"workers": workers} if workers is not None else {}
    result = _searched(job, asked.pricing(given), search)
    if folder is not None:
        _save(folder, result)
    return _finished(result, form)


@app.command(cls=o.GroupedCommand)
def estimate(
    model: o.Model = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    tokens_per_batch: o.TokensPerBatch = None,
    length_histogram: o.LengthHistogram = None,
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
    ep: o.Ep = None,
    etp: o.Etp = None,
    dp_replicate: o.DpReplicate = None,
    micro_batch: o.MicroBatch = None,
    zero: o.Zero = None,
    schedule: o.Schedule = None,
    sequence_parallel: o.SequenceParallel = None,
    recompute: o.Recompute = None,
    recompute_layers: o.RecomputeLayers = None,
    layers_per_stage: o.LayersPerStage = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    grad_dtype: o.GradDtype = None,
    lora: o.Lora = None,
    freeze: o.Freeze = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    stack: o.Stack = None,
    memory_margin: o.MemoryMargin = None,
    memory_meter: o.MemoryMeter = None,
    objective: o.Objective = "throughput",
    form: o.Format = "table",
) -> int:
    """Price one plan: MODEL and degrees, a plan of a file, or your own configuration."""
    given = locals()
    _check_common(form, objective)
    if asked.configuration(given):
        return _finished(_estimated_configuration(given), form)
    if plan_file is not None:
        asked.refuse_beside_plan(given)
        return _finished(_estimated_file(plan_file, rank or 1, given), form)
    if rank is not None:
        raise ConflictError("--rank is given without --plan", where="--rank", hint="name the RESULT by --plan FILE")
    return _finished(_estimated(asked.job(given), asked.degrees(given), asked.pricing(given)), form)


@app.command(cls=o.GroupedCommand)
def validate(
    runs: Annotated[str, o.argument("RUNS.csv", "measured runs")],
    fit: Annotated[str, o.option(o.JOB, "shipped fits: all (default) none loso", metavar="F")] = "all",
    anchor: Annotated[str, o.option(o.JOB, "calibrate each group: none (default) first", metavar="A")] = "none",
    calibration: o.Calibration = None,
    form: o.Format = "table",
) -> int:
    """Predict measured runs and show the errors."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    _one_of("fit", fit, FITS)
    _one_of("anchor", anchor, ANCHORS)
    from shardwright.planner.problem import PricingOptions
    from shardwright.planner.validation import validate as compare

    return _finished(compare(runs, fit=fit, anchor=anchor, options=PricingOptions(calibration=calibration)), form)


@app.command(cls=o.GroupedCommand)
def calibrate(
    more_logs: o.MoreLogs = None,
    nccl_tests: o.NcclTests = None,
    cluster: o.Cluster = None,
    output: o.CalibrationOut = None,
    form: o.Format = "table",
) -> int:
    """Fit the collectives of a cluster to its nccl-tests logs."""
    from shardwright.planner.report.calibration_output import calibrated
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    result = calibrated([*(nccl_tests or []), *(more_logs or [])], cluster, output)
    for line in result.remarks:
        _say(line)
    return _finished(result, form)


@app.command(cls=o.GroupedCommand)
def emit(
    result: Annotated[str, o.argument("RESULT", "what plan or estimate wrote: file, folder, or -")],
    target: Annotated[str, o.option(o.OUTPUT, "megatron torchrun torchtitan megatron-bridge deepspeed", metavar="T")],
    output: Annotated[str, o.option(o.OUTPUT, "folder to write", "-o", "--output", metavar="DIR")],
    rank: o.Rank = None,
    target_version: Annotated[str | None, o.option(o.OUTPUT, "release to write for", metavar="V")] = None,
    launcher: Annotated[str, o.option(o.OUTPUT, "torchrun (default) slurm kubernetes", metavar="L")] = "torchrun",
    launch: Annotated[
        list[str] | None, o.option(o.OUTPUT, "for the launcher: partition=, image=, ...", metavar="KEY=VALUE")
    ] = None,
    force: Annotated[bool, o.option(o.OUTPUT, "replace an earlier bundle", "--force")] = False,
    form: o.Format = "table",
) -> int:
    """Write the launch files of a plan."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.emit.emission import emit as write
    from shardwright.planner.emit.options import launch_options

    written = write(
        result,
        target=target,
        folder=output,
        rank=rank or 1,
        version=target_version,
        launcher=launcher,
        options=launch_options(launch or []),
        force=force,
    )
    return _finished(written, form)


@app.command(cls=o.GroupedCommand)
def show(
    kind: Annotated[str, o.argument("KIND", "models nodes devices targets rules stacks schedules")],
    name: Annotated[str | None, o.argument("NAME", "one of them, in full")] = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    form: o.Format = "table",
) -> None:
    """List what a plan can name: models, nodes, devices, ..."""
    from shardwright.planner.report.listings import listing
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    _write(_rendered(listing(kind, name, framework=framework, target_version=target_version), form))


@app.command(cls=o.GroupedCommand)
def topo(
    files: Annotated[list[str], o.argument("FILES", "dumps of machines and networks, or - for standard input")],
    output: Annotated[str | None, o.option(o.OUTPUT, "cluster YAML to write", "-o", "--output", metavar="FILE")] = None,
    node: Annotated[str | None, o.option(o.INPUTS, "node preset for what they leave open", metavar="NODE")] = None,
    device: Annotated[str | None, o.option(o.INPUTS, "device preset of the GPUs", metavar="DEVICE")] = None,
    nodes: Annotated[int | None, o.option(o.INPUTS, "nodes, where no file names hosts", metavar="N")] = None,
    nic_gbps: Annotated[float | None, o.option(o.INPUTS, "rate of one network card, Gb/s", metavar="RATE")] = None,
    name: Annotated[str, o.option(o.INPUTS, "name of the cluster", metavar="NAME")] = "cluster",
) -> None:
    """Turn topology dumps into a cluster YAML."""
    from shardwright.hardware.readers import TopoOptions
    from shardwright.hardware.readers import topo as read_topology
    from shardwright.hardware.readers.draft import write_draft

    options = TopoOptions(node=node, device=device, nodes=nodes, nic_gbps=nic_gbps, name=name)
    draft = read_topology(files, options)
    if output is not None:
        write_draft(draft, output, files)
    _say("\n".join(draft.messages()))
    _write(draft.text() if output is None else draft.summary())


@app.command(cls=o.GroupedCommand)
def schema(
    name: Annotated[str, o.argument("NAME", "plan-result estimate validation emission calibration cluster model")],
    form: o.SchemaFormat = "json",
) -> None:
    """Print the JSON Schema of a document."""
    from shardwright.planner.schema import json_schema

    _one_of("format", form, ("json", "yaml"))
    _write(_rendered(json_schema(name), form))


def _one_of(option: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise unknown_name(option, given, known, where=f"--{option}")


def _check_common(form: str, objective: str) -> None:
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    _one_of("objective", objective, OBJECTIVES)
    if objective != "throughput":
        message = f"the objective {objective} is not available yet"
        raise UnsupportedError(message, where="--objective", hint="plan for throughput")


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


def _save(folder: Path, result: Any) -> None:
    from shardwright.planner.report.folder import write_result

    _say("wrote " + ", ".join(str(path) for path in write_result(folder, result.to_dict())))


def _finished(result: Any, form: str) -> int:
    """Writes a result and gives its exit code."""
    data = result.to_dict()
    _write(_rendered(data, form))
    if data.get("search", {}).get("stopped") == "interrupted":
        return INTERRUPTED
    return int(result.exit_code)


def _rendered(data: dict[str, Any], form: str) -> str:
    from shardwright.planner.report.output import render
    from shardwright.planner.report.style import style_for

    return render(data, form, style_for(sys.stdout))


def _write(text: str) -> None:
    """The one place that writes to standard output; a reader that has gone away is no error.

    Raises:
        InvalidValueError: what standard output leads to cannot be written, a full disk for one.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            message = f"cannot write the result: {error.strerror}"
            raise InvalidValueError(message, where="standard output", hint="write it elsewhere") from error


def _say(text: str) -> None:
    from shardwright.planner.report.style import encodable

    try:
        sys.stderr.write(encodable(text.rstrip("\n") + "\n", sys.stderr.encoding or "ascii"))
        sys.stderr.flush()
    except BrokenPipeError:
        return


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code; nothing is raised."""
    from shardwright.planner.report import failures

    try:
        return _invoked(list(arguments))
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        fault: ShardwrightError = failures.InterruptedByUserError("interrupted", hint="nothing was written")
    except Exception as error:  # the last net: misuse is explained, a bug is told in one line
        if os.environ.get("SHARDWRIGHT_DEBUG"):
            import traceback

            _say(traceback.format_exc())
        fault = failures.fault_of(error)
    _say(failures.error_text(fault, failures.wanted_format(arguments)))
    return fault.exit_code


def _invoked(arguments: list[str]) -> int:
    from shardwright.planner.report import failures

    command = typer.main.get_command(app)
    if f"_{NAME.upper()}_COMPLETE" in os.environ:
        command.main(args=arguments, prog_name=NAME)
    chosen = getattr(command, "commands", {}).get(arguments[0] if arguments else "")
    if chosen is not None:
        failures.refuse_repeats(arguments[1:], chosen.params)
    with command.make_context(NAME, arguments) as context:
        code = command.invoke(context)
    return code if isinstance(code, int) else 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console entry."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        nowhere = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the end
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
