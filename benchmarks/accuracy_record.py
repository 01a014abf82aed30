"""Measures what docs/accuracy.md shows, and keeps it without a single run: `tests/validation/recorded_accuracy.json`.

    record_of(runs, single, date)     summaries of `validate` under every fit and anchor, one share of peak, ranking, points
    measured(runs, single)            the widths of intervals first, then the record, both written

Of runs only pairs of predicted time and measured over predicted are kept, each to two digits, in rising order, with nothing
that says whose they are. docs/accuracy_page.py writes the page from the record.
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interval_widths import PLACE as WIDTHS
from interval_widths import deviations, document
from one_mfu import least_share, shares

from shardwright.documents import yaml_text
from shardwright.planner.intervals import widths
from shardwright.planner.validation.labels import WAYS
from shardwright.planner.validation.run import validate
from shardwright.planner.validation.statistics import median, quantile

PLACE = Path(__file__).parents[1] / "tests" / "validation" / "recorded_accuracy.json"

FIGURES = (
    "rows", "scored", "skipped", "groups", "median", "p90", "bias", "memory_median", "memory_p90", "oom_called", "ran_refused",
    "tau", "regret", "jobs_ranked", "interval_coverage", "interval_width",
)  # fmt: skip
"""What is kept of a SUMMARY."""


def record_of(runs: Path, single: Path | None, date: str) -> dict[str, Any]:
    """Everything the page shows.

    Args:
        runs: measured runs, as `validate` takes them.
        single: more of them, many plans of the same jobs, for ranking alone; None without.
        date: of the record.
    """
    found = validate(runs).to_dict()
    return {
        "date": date,
        "unscored_groups": found["unscored_groups"],
        "summary": figures(found["summary"]),
        "by_source": {name: figures(summary) for name, summary in found["by_source"].items()},
        **{f"by_{way}": {label: figures(summary) for label, summary in found[f"by_{way}"].items()} for way in WAYS},
        "fits": {fit: figures(validate(runs, fit=fit).to_dict()["summary"]) for fit in ("none", "loso")},
        "anchored": figures(validate(runs, anchor="first").to_dict()["summary"]),
        "one_share": one_share(runs),
        "single": figures(validate(single).to_dict()["summary"]) if single is not None else None,
        "skipped": skipped(found["rows"]),
        "points": points(found["rows"]),
    }


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A SUMMARY to four digits after the point."""
    return {key: round(summary[key], 4) if isinstance(summary[key], float) else summary[key] for key in FIGURES}


def one_share(runs: Path) -> dict[str, Any]:
    """Errors by source if every run reached the same share of peak, the one that suits them best."""
    by_group = shares(runs)
    one = least_share(by_group)
    sizes = {name: [abs(share / one - 1.0) for share in group] for name, group in sorted(by_group.items())}
    found = {name: {"median": median(group), "p90": quantile(group, 0.9)} for name, group in sizes.items()}
    means = {key: statistics.mean(group[key] or 0.0 for group in found.values()) for key in ("median", "p90")}
    rounded = {name: {key: round(value or 0.0, 4) for key, value in group.items()} for name, group in found.items()}
    return {"share": one, "by_source": rounded} | {key: round(value, 4) for key, value in means.items()}


def skipped(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Reasons for which rows were not priced, with their number, the most frequent first."""
    reasons = Counter(str(row["reason"]) for row in rows if row["status"] == "skipped")
    return [[count, reason] for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))]


def points(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Of every kind: pairs of predicted seconds and measured over predicted, two digits each, in rising order."""
    made: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["scored"]:
            predicted = row["predicted_step_time_s"]
            pair = [two_digits(predicted), two_digits(1.0 / (1.0 + row["error"]))]
            made.setdefault(row["labels"]["kind"], []).append(pair)
    return {kind: sorted(pairs) for kind, pairs in sorted(made.items())}


def two_digits(value: float) -> float:
    """A number to two significant digits."""
    return float(f"{value:.2g}")


def measured(runs: Path, single: Path | None) -> dict[str, Any]:
    """Widths of intervals and the record, measured anew and written."""
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = document(deviations(validate(runs, fit="loso").to_dict()["rows"]), date)
    WIDTHS.write_text(yaml_text(made), encoding="utf-8")
    widths.cache_clear()
    record = record_of(runs, single, date)
    PLACE.write_text(text_of(record), encoding="utf-8")
    return record


def text_of(record: Mapping[str, Any]) -> str:
    """The record as JSON, a line each entry."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
