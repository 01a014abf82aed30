"""`sweep`: the best plans of many models, clusters and jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.commands import console
from shardwright.errors import ConflictError
from shardwright.planner.report import asked
from shardwright.planner.report import options as o

if TYPE_CHECKING:
    from shardwright.documents import Document
    from shardwright.planner.sweep.run import SweepResult

HOW = ("models", "engine", "workers", "address", "store", "figure", "form")
"""Options that are no knobs and do not hold for the points."""


def sweep(
    models: o.Models = None,
    node: o.NodeTypes = None,
    nodes: o.NodeCounts = None,
    gpus: o.GpuCounts = None,
    seq_len: o.SeqLens = None,
    global_batch: o.GlobalBatches = None,
    batch_per_gpu: o.BatchesPerGpu = None,
    tokens_per_batch: o.TokensPerBatches = None,
    length_histogram: o.LengthHistogram = None,
    overrides: o.Set = None,
    precision: o.Precisions = None,
    framework: o.Frameworks = None,
    optimizer: o.Optimizer = None,
    grad_dtype: o.GradDtype = None,
    lora: o.Lora = None,
    freeze: o.Freeze = None,
    calibration: o.Calibration = None,
    target_version: o.TargetVersion = None,
    stack: o.Stack = None,
    routing_skew: o.RoutingSkew = None,
    memory_margin: o.MemoryMargin = None,
    memory_meter: o.MemoryMeter = None,
    objective: o.SweepObjective = None,
    price: o.Prices = None,
    allow_subset: o.SweepSubset = None,
    top: o.SweepTop = None,
    fix: o.Fix = None,
    effort: o.SweepEffort = None,
    effort_seconds: o.EffortSeconds = None,
    tie: o.SweepTie = None,
    engine: o.Engine = "local",
    workers: o.Processes = None,
    address: o.Address = None,
    store: o.StoreFile = None,
    figure: o.Figure = None,
    form: o.Format = "table",
) -> int:
    """Plan every combination of models, clusters and jobs."""
    given = locals()
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    result = _swept(given)
    if figure is not None:
        _draw(result, Path(figure))
    return _finished(result, form)


def _swept(given: dict[str, Any]) -> SweepResult:
    from shardwright.planner.report.progress import LiveLine
    from shardwright.planner.report.sweep_progress import sweep_line
    from shardwright.planner.sweep.request import requested
    from shardwright.planner.sweep.run import engine_of, run_sweep

    names, file = _named(given["models"] or [])
    stated = {name: value for name, value in given.items() if name not in HOW}
    stated["set"] = stated.pop("overrides")
    stated["fix"] = asked.fixed(given["fix"]) if given["fix"] else None
    request = requested(stated | {"model": names or None}, file)
    if given["figure"] is not None:
        from shardwright.planner.report.sweep_figure import check_figure

        check_figure(Path(given["figure"]))
    engine = engine_of(given["engine"], given["workers"], given["address"])
    with LiveLine(sys.stderr, say=sweep_line) as line:
        return run_sweep(request, engine=engine, store=given["store"], on_progress=line)


def _named(words: list[str]) -> tuple[list[str], Document | None]:
    """Models, and the sweep.yaml among the words: a YAML file that does not describe a model."""
    from shardwright.planner.records.sweep.schema import is_sweep, read_sweep

    files = [word for word in words if is_sweep(word)]
    if len(files) > 1:
        raise ConflictError(f"two sweeps are named: {files[0]} and {files[1]}", where="MODEL", hint="keep one of the two")
    return [word for word in words if word not in files], read_sweep(Path(files[0])) if files else None


def _draw(result: SweepResult, path: Path) -> None:
    from shardwright.planner.report.sweep_figure import write_figure

    write_figure(path, result.records())
    console.say(f"wrote {path}")


def _finished(result: SweepResult, form: str) -> int:
    from shardwright.planner.report.style import style_for
    from shardwright.planner.report.sweep_output import sweep_chunks

    for chunk in sweep_chunks(result, form, style_for(sys.stdout)):
        console.write(chunk)
    code = console.INTERRUPTED if result.stopped else result.exit_code
    result.store.close()
    return code
