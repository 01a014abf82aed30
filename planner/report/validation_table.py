"""The report of `validate`: error of each group of runs, the worst rows, what was skipped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import heading, paragraph, table

WORST = 10


def validation_parts(result: Mapping[str, Any]) -> list[Any]:
    """Everything `validate` shows."""
    parts = [_summaries(result["by_source"], result["summary"], result["unscored_groups"])]
    parts += [
        paragraph("Errors are |predicted / measured - 1| of the step time, bias keeps its sign; memory likewise, of the peak.")
    ]
    parts += [paragraph(line) for line in _decisions(result)]
    worst = sorted((r for r in result["rows"] if r["error"] is not None), key=lambda r: (-abs(r["error"]), r["id"]))
    if worst:
        parts += [heading(f"Worst {min(WORST, len(worst))} of {len(worst)} timed runs"), _worst(worst[:WORST])]
    skipped = Counter(str(r["reason"]) for r in result["rows"] if r["status"] == "skipped")
    if skipped:
        parts += [heading("Skipped"), *(paragraph(f"{n} × {reason}") for reason, n in skipped.most_common())]
    return parts


def _summaries(groups: Mapping[str, Mapping[str, Any]], total: Mapping[str, Any], unscored: Sequence[str]) -> Any:
    shown = table("group", "rows", "scored", "median", "p90", "bias", "memory", "mem p90", "tau", "regret", left=("group",))
    for name, summary in groups.items():
        shown.add_row(f"{name} *" if name in unscored else name, *_cells(summary))
    shown.add_row("mean of groups", *_cells(total), style="bold")
    return shown


def _cells(summary: Mapping[str, Any]) -> list[str]:
    shares = [words.percent(summary[k]) for k in ("median", "p90", "bias", "memory_median", "memory_p90")]
    tau = words.UNKNOWN if summary["tau"] is None else f"{summary['tau']:.2f}"
    return [words.count(summary["rows"]), words.count(summary["scored"]), *shares, tau, words.percent(summary["regret"])]


def _decisions(result: Mapping[str, Any]) -> list[str]:
    summary = result["summary"]
    names = {
        "oom_called": "runs out of memory that are called so",
        "ran_refused": "runs that ran and are refused",
        "interval_coverage": "measured times inside the interval",
    }
    said = [f"{text}: {words.percent(summary[key], 0)}" for key, text in names.items() if summary[key] is not None]
    lines = ["; ".join(said)] if said else []
    lines += ["* reported, not averaged"] if result["unscored_groups"] else []
    return [*lines, f"fit {result['fit']}, anchor {result['anchor']}: {result['note']}"]


def _worst(rows: Sequence[Mapping[str, Any]]) -> Any:
    shown = table("id", "group", "measured", "predicted", "error", "GiB", "pred.", wrap=("id", "group"))
    for row in rows:
        shown.add_row(
            str(row["id"]),
            row["source_group"],
            words.seconds(row["measured_step_time_s"]),
            words.seconds(row["predicted_step_time_s"]),
            f"{100 * row['error']:+.1f} %",
            _gib(row["measured_peak_gib"]),
            _gib(row["predicted_peak_gib"]),
        )
    return shown


def _gib(value: float | None) -> str:
    return words.UNKNOWN if value is None else f"{value:.1f}"
