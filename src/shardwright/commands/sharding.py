"""`shard`: how the operators of a model are divided over a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.commands import console
from shardwright.planner.report import options as o
from shardwright.planner.report import sharding_asked

if TYPE_CHECKING:
    from pathlib import Path


def shard(
    model: o.Model = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    tokens_per_batch: o.TokensPerBatch = None,
    length_histogram: o.LengthHistogram = None,
    gpus: o.Gpus = None,
    overrides: o.Set = None,
    mesh: o.Mesh = None,
    layer: o.Layer = None,
    memory: o.Memory = None,
    micro_batches: o.MicroBatches = 1,
    in_flight: o.InFlight = 1,
    recompute: o.RecomputeMode = "none",
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
    svg: o.Svg = None,
    dot: o.Dot = None,
    form: o.Format = "table",
) -> int:
    """Divide every operator of a model over a mesh of devices."""
    given = locals()
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    files = {kind: sharding_asked.drawing_file(given[kind], f"--{kind}") for kind in ("svg", "dot") if given[kind] is not None}
    from shardwright.planner.search.operators.sharding import shard as divide

    job, how = sharding_asked.job(given), sharding_asked.options(given)
    result = divide(**job, sharding=how, layer=layer, options=sharding_asked.pricing(given))
    for kind, path in files.items():
        _draw(kind, path, result.data)
    return console.finished(result, form)


def _draw(kind: str, path: Path, data: Any) -> None:
    from shardwright.planner.report import sharding_drawing

    text = sharding_drawing.svg_text(data) if kind == "svg" else sharding_drawing.dot_text(data)
    sharding_asked.write_drawing(path, text, f"--{kind}")
    console.say(f"wrote {path}")
