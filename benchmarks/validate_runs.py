"""Prints the errors of `validate` by source group, and why rows were skipped.

python benchmarks/validate_runs.py RUNS.csv [--anchor first] [--rows GROUP] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from shardwright.documents import rounded
from shardwright.planner.validation.run import ANCHORS, FITS, validate

PER_CENT = (
    "median",
    "mean",
    "p90",
    "bias",
    "memory_median",
    "memory_p90",
    "oom_called",
    "ran_refused",
    "regret",
    "interval_coverage",
)
HEADS = ("median", "mean", "p90", "bias", "mem", "mem90", "oom", "refused", "regret", "cover")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--fit", choices=FITS, default="all")
    parser.add_argument("--anchor", choices=ANCHORS, default="none")
    parser.add_argument("--rows", metavar="GROUP", help="print the rows of a group as well")
    parser.add_argument("--json", type=Path, help="write the whole result here")
    return parser.parse_args()


def shown(value: float | None) -> str:
    return f"{'-':>8}" if value is None else f"{100 * value:8.1f}"


def line(name: str, summary: dict[str, float | None]) -> str:
    tau = summary["tau"]
    cells = "".join(shown(summary[key]) for key in PER_CENT)
    counts = f"{summary['rows']:>5}{summary['scored']:>5}{summary['skipped']:>5}"
    return f"{name:<14}{counts}{cells}{'-' if tau is None else format(tau, '.2f'):>7}"


def main() -> None:
    given = arguments()
    began = time.process_time()
    data = validate(given.runs, fit=given.fit, anchor=given.anchor).to_dict()
    print(f"{'group (in %)':<14}{'rows':>5}{'scor':>5}{'skip':>5}" + "".join(f"{head:>8}" for head in HEADS) + f"{'tau':>7}")
    for name, summary in data["by_source"].items():
        print(line(name, summary))
    print(line("ALL", data["summary"]))
    print(f"CPU {time.process_time() - began:.1f} s")
    for (group, reason), count in Counter((r["source_group"], r["reason"]) for r in data["rows"] if r["reason"]).items():
        print(f"skipped {count:>3}  {group:<14} {reason}")
    for row in data["rows"]:
        if row["source_group"] == given.rows:
            print(row["id"], row["error"], row["memory_error"], row["predicted_fits"], row["stack"], row["defaults"])
    if given.json:
        given.json.write_text(json.dumps(rounded(data), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
