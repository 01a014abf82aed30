"""Results in a notebook: HTML with a table and memory bars, and pandas frames; made from the records, like everything shown.

    html_of(record) -> HTML, all text escaped, no script, no style sheet, nothing loaded
    frame_of(record) -> DataFrame of the rows that `--format csv` prints

A plan-result is a table of its plans, an estimate its parts and the memory of every stage; other records are drawn as the table
that the command line prints.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shardwright.documents import rounded
from shardwright.errors import UnsupportedError
from shardwright.planner.report import words
from shardwright.planner.report.plan_table import degree_cells, degree_names, layers_of, optional_columns
from shardwright.planner.report.style import Style
from shardwright.planner.report.time_table import LABELS

PARTS: Mapping[str, tuple[str, str]] = {
    "parameters_bytes": ("parameters", "#4e79a7"),
    "gradients_bytes": ("gradients", "#f28e2b"),
    "optimizer_bytes": ("optimizer", "#59a14f"),
    "activations_bytes": ("activations", "#e15759"),
    "logits_bytes": ("logits", "#b07aa1"),
    "buffers_bytes": ("buffers", "#76b7b2"),
    "reserve_bytes": ("reserve", "#9c9c9c"),
}
"""Names and colours of the parts of memory (Tableau's ten, told apart with the common colour blindnesses)."""

STAGES = 16
"""Stages drawn; of more the fullest ones."""

_CELL = 'style="text-align:right;padding:1px 8px"'
_BAR = "display:inline-block;height:0.8em;vertical-align:middle"


def html_of(record: Mapping[str, Any]) -> str:
    """A record as HTML.

    Args:
        record: what a command prints with `--format json`.
    """
    if record["kind"] == "plan-result" and record["plans"]:
        return _plans(record)
    if record["kind"] == "estimate" and record["predicted"] is not None:
        return _estimate(record)
    from shardwright.planner.report.output import render

    return f"<pre>{escape(render(record, 'table', Style()))}</pre>"


def frame_of(record: Mapping[str, Any]) -> Any:
    """The rows of a record as a pandas DataFrame.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    try:
        frame = importlib.import_module("pandas").DataFrame
    except ImportError as error:
        message = "frames need pandas, which is not installed"
        raise UnsupportedError(message, hint="pip install pandas, or use to_dict()") from error
    from shardwright.planner.report.output import rows_of

    return frame(rows_of(rounded(record)))


def _head(record: Mapping[str, Any]) -> str:
    model, cluster, training = record["model"], record["cluster"], record["training"]
    said = (
        f"{model['name']} on {cluster['name']}: {words.many(cluster['gpus'], 'GPU')}; "
        f"{words.many(training['global_batch'], 'sequence')} of {words.count(training['seq_len'])} tokens a step; "
        f"{training['precision']}"
    )
    return f"<div><b>{escape(said)}</b></div>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of escaped cells; cells that begin with `<span` are bars, made here."""
    head = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td {_CELL}>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class _Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def _cell(text: str) -> str:
    return text if isinstance(text, _Html) else escape(text)


def _plans(record: Mapping[str, Any]) -> str:
    optional = optional_columns(record["plans"])
    names = ("#", "tie", *degree_names(optional), "step", "tokens/s/GPU", "MFU", "GiB", "memory of the fullest stage")
    rows = [_plan_row(plan, optional) for plan in record["plans"]]
    return f"<div>{_head(record)}{_table(names, rows)}{_legend()}</div>"


def _plan_row(plan: Mapping[str, Any], optional: Sequence[str]) -> list[str]:
    predicted, memory = plan["predicted"], plan["memory"]
    return [
        str(plan["rank"]),
        str(plan["tie_group"]),
        *degree_cells(plan, optional),
        words.seconds(predicted["step_time_s"], 4),
        words.count(predicted["tokens_per_s_per_gpu"]),
        words.percent(predicted["mfu"]),
        words.gib(memory["peak_bytes"]),
        _bar(plan["stages"][memory["peak_stage"]]["memory"]),
    ]


def _estimate(record: Mapping[str, Any]) -> str:
    predicted = record["predicted"]
    verdict = "fits" if record["feasible"] else "cannot run: " + "; ".join(v["message"] for v in record["violations"])
    said = f"step {words.seconds(predicted['step_time_s'], 4)}, MFU {words.percent(predicted['mfu'])}, {verdict}"
    step, time = predicted["step_time_s"], record["time"]
    parts = [[LABELS[name], words.seconds(time[name]), _share(time[name] / step)] for name in LABELS if time[name] > 0]
    fullest = sorted(record["stages"], key=lambda s: -s["memory"]["total_bytes"])[:STAGES]
    stages = [
        [
            str(stage["index"]),
            str(layers_of(stage)),
            words.gib(stage["memory"]["total_bytes"]),
            words.gib(stage["memory"]["capacity_bytes"]),
            _bar(stage["memory"]),
        ]
        for stage in sorted(fullest, key=lambda s: s["index"])
    ]
    memory = _table(("stage", "layers", "GiB", "of", "memory"), stages)
    return f"<div>{_head(record)}<div>{escape(said)}</div>{_table(('part', 'time', 'share'), parts)}{memory}{_legend()}</div>"


def _share(share: float) -> _Html:
    return _Html(f'{words.percent(share)} <span style="{_width(100 * share)};background:#4e79a7"></span>')


def _bar(memory: Mapping[str, int]) -> _Html:
    """Parts of memory side by side; a line where the device ends, two pixels a per cent."""
    scale = 200 / max(memory["capacity_bytes"], memory["total_bytes"])
    spans = "".join(
        f'<span title="{name} {words.gib(memory[part])} GiB" style="{_width(memory[part] * scale)};background:{colour}"></span>'
        for part, (name, colour) in PARTS.items()
        if memory[part] * scale >= 0.1
    )
    free = max(memory["capacity_bytes"] - memory["total_bytes"], 0) * scale
    line = f'<span style="{_width(free)};border-right:2px solid currentColor"></span>'
    label = f"{words.gib(memory['total_bytes'])} of {words.gib(memory['capacity_bytes'])} GiB"
    return _Html(f'<span role="img" aria-label="{label}" style="white-space:nowrap">{spans}{line}</span>')


def _width(pixels: float) -> str:
    return f"{_BAR};width:{pixels:.1f}px"


def _legend() -> str:
    shown = f"{_BAR};width:0.8em;margin:0 4px 0 10px"
    keys = "".join(f'<span style="{shown};background:{colour}"></span>{name}' for name, colour in PARTS.values())
    return f'<div style="font-size:85%">{keys}; the line is the memory of the device</div>'
