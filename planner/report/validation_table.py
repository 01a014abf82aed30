"""The report of `validate`: error of each group of runs, or kind of runs, the worst rows, what was skipped and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import heading, paragraph, table

WORST = 10
WORST_SHARE = 0.1
"""Share of the runs whose time parts are compared with those of all."""

STANDS_OUT = 0.02
"""A part of the step is named where it takes so much more of the worst runs than of all."""


def validation_parts(result: Mapping[str, Any]) -> list[Any]:
    """Everything `validate` shows."""
    by = result.get("by", "source")
    parts = [
        _summaries(result["by_source"], result["summary"], result["unscored_groups"]) if by == "source" else _kinds(by, result)
    ]
    parts += [
        paragraph("Errors are |predicted / measured - 1| of the step time, bias keeps its sign; memory likewise, of the peak.")
    ]
    parts += [paragraph(line) for line in _decisions(result)]
    worst = sorted((r for r in result["rows"] if r["error"] is not None), key=lambda r: (-abs(r["error"]), r["id"]))
    if worst:
        parts += [
            heading(f"Worst {min(WORST, len(worst))} of {len(worst)} timed runs"),
            _worst(worst[:WORST]),
            *_standing_out(worst),
        ]
    skipped = [r for r in result["rows"] if r["status"] == "skipped"]
    return parts + ([heading("Skipped"), *_skipped(skipped)] if skipped else [])


def _skipped(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Reasons by frequency, each with the first run it holds for."""
    reasons = Counter(str(row["reason"]) for row in rows)
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(str(row["reason"]), str(row["id"]))
    return [paragraph(f"{n} × {reason}: {first[reason]}{', …' if n > 1 else ''}") for reason, n in reasons.most_common()]


def _summaries(groups: Mapping[str, Mapping[str, Any]], total: Mapping[str, Any], unscored: Sequence[str]) -> Any:
    shown = table("group", "rows", "scored", "median", "p90", "bias", "memory", "mem p90", "tau", "regret", left=("group",))
    for name, summary in groups.items():
        shown.add_row(f"{name} *" if name in unscored else name, *_cells(summary))
    shown.add_row("mean of groups", *_cells(total), style="bold")
    return shown


def _kinds(by: str, result: Mapping[str, Any]) -> Any:
    """Errors of the scored runs by what they are."""
    names = ("scored", "sources", "median", "p90", "bias", "memory", "tau", "regret", "inside", "width")
    shown = table(by, *names, left=(by,))
    for name, summary in result[f"by_{by}"].items():
        shown.add_row(name, *_kind_cells(summary))
    shown.add_row("mean of groups", *_kind_cells(result["summary"]), style="bold")
    return shown


def _kind_cells(summary: Mapping[str, Any]) -> list[str]:
    counts = [words.count(summary[k]) for k in ("scored", "groups")]
    shares = [words.percent(summary[k]) for k in ("median", "p90", "bias", "memory_median")]
    inside = [words.percent(summary[k], 0) for k in ("interval_coverage", "interval_width")]
    return [*counts, *shares, _tau(summary), words.percent(summary["regret"]), *inside]


def _tau(summary: Mapping[str, Any]) -> str:
    return words.UNKNOWN if summary["tau"] is None else f"{summary['tau']:.2f}"


def _cells(summary: Mapping[str, Any]) -> list[str]:
    shares = [words.percent(summary[k]) for k in ("median", "p90", "bias", "memory_median", "memory_p90")]
    return [
        words.count(summary["rows"]),
        words.count(summary["scored"]),
        *shares,
        _tau(summary),
        words.percent(summary["regret"]),
    ]


def _decisions(result: Mapping[str, Any]) -> list[str]:
    summary = result["summary"]
    names = {
        "oom_called": "runs out of memory that are called so",
        "ran_refused": "runs that ran and are refused",
        "interval_coverage": "measured times inside the interval",
    }
    said = [f"{text}: {words.percent(summary[key], 0)}" for key, text in names.items() if summary[key] is not None]
    if summary["interval_width"] is not None:
        said.append(f"width of the interval: {words.percent(summary['interval_width'], 0)} of the prediction")
    lines = ["; ".join(said)] if said else []
    lines += ["* reported, not averaged"] if result["unscored_groups"] else []
    return [*lines, f"fit {result['fit']}, anchor {result['anchor']}: {result['note']}"]


def _worst(rows: Sequence[Mapping[str, Any]]) -> Any:
    shown = table("id", "group", "measured", "predicted", "error", "GiB", "pred.", "beside compute", wrap=("id", "group"))
    for row in rows:
        shown.add_row(
            str(row["id"]),
            row["source_group"],
            words.seconds(row["measured_step_time_s"]),
            words.seconds(row["predicted_step_time_s"]),
            f"{100 * row['error']:+.1f} %",
            _gib(row["measured_peak_gib"]),
            _gib(row["predicted_peak_gib"]),
            _beside(row["time_shares"]),
        )
    return shown


def _beside(shares: Mapping[str, float]) -> str:
    """The part that takes most of the predicted step beside computing."""
    rest = {name: share for name, share in shares.items() if name != "compute"}
    most = max(sorted(rest), key=rest.__getitem__, default=None)
    return words.UNKNOWN if most is None else f"{_part(most)} {words.percent(rest[most], 0)}"


def _part(name: str) -> str:
    return name.removeprefix("exposed_").replace("_", " ")


def _standing_out(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Which parts of the step take more of the worst runs than of all; `rows` are timed, the worst first."""
    some = rows[: math.ceil(WORST_SHARE * len(rows))]
    if len(rows) <= WORST:
        return []
    names = sorted({name for row in rows for name in row["time_shares"]})
    shares = {name: (_mean(some, name), _mean(rows, name)) for name in names}
    odd = sorted((all_ - worst, name) for name, (worst, all_) in shares.items() if worst - all_ >= STANDS_OUT)
    if not odd:
        return []
    said = [f"{_part(name)} {words.percent(shares[name][0], 0)} (all: {words.percent(shares[name][1], 0)})" for _, name in odd]
    return [paragraph(f"The worst {words.many(len(some), 'run')} spend more of the predicted step in " + ", ".join(said) + ".")]


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return math.fsum(row["time_shares"].get(name, 0.0) for row in rows) / len(rows)


def _gib(value: float | None) -> str:
    return words.UNKNOWN if value is None else f"{value:.1f}"
