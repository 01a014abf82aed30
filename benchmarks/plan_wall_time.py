"""Measures whole `plan` commands as a user runs them: wall time, CPU time, memory and candidates.

python benchmarks/plan_wall_time.py [--case NAME] [--repeat N] [--workers N] [--json FILE]

Each command is a process of its own, started cold; the fastest of the repeats counts. The exit code is 1 if a command
misses its limit of wall seconds or prices fewer legal candidates than asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
SCAN = ("--effort", "scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command and what it must keep."""

    command: tuple[str, ...]
    limit_s: float
    least_priced: int = 0


CASES = {
    "405b-2048": Case(
        command=(
            "llama3.1-405b",
            "--cluster",
            "dgx-h100:256",
            "--seq-len",
            "8192",
            "--global-batch",
            "2048",
            *SCAN,
        ),
        limit_s=3.0,
        least_priced=200_000,
    ),
    "1t-4096": Case(
        command=("megatron-1t", "--cluster", "dgx-h100:512", "--seq-len", "2048", "--global-batch", "3072", *SCAN), limit_s=5.0
    ),
    "405b-100000": Case(
        command=("llama3.1-405b", "--cluster", "dgx-h100:12500", "--seq-len", "8192", "--global-batch", "10000", *SCAN),
        limit_s=20.0,
    ),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="the fastest of so many runs counts")
    parser.add_argument("--workers", type=int, metavar="N", help="passed on to plan")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def run_once(command: list[str]) -> dict[str, Any]:
    """One process: wall and CPU seconds, peak resident memory, and what it printed."""
    path = os.pathsep.join(p for p in (str(SOURCE), os.environ.get("PYTHONPATH", "")) if p)
    with tempfile.TemporaryFile() as out:
        began = time.perf_counter()
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        child = os.posix_spawn(sys.executable, command, {**os.environ, "PYTHONPATH": path}, file_actions=actions)
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - began
        out.seek(0)
        text = out.read()
    code = os.waitstatus_to_exitcode(status)
    if code not in {0, 1}:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    search = json.loads(text)["search"]
    return {
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_mib": usage.ru_maxrss / 1024,
        "exit_code": code,
        **{key: search[key] for key in ("candidates", "priced", "fits", "best_step_time_s")},
    }


def measured(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "shardwright", "plan", *case.command, "--format", "json"]
    command += ["--workers", str(given.workers)] if given.workers else []
    fastest = min((run_once(command) for _ in range(given.repeat)), key=lambda run: float(run["wall_s"]))
    kept = fastest["wall_s"] <= case.limit_s and fastest["priced"] >= case.least_priced
    return {**fastest, "limit_s": case.limit_s, "least_priced": case.least_priced, "kept": kept}


def main() -> int:
    given = arguments()
    figures = {name: measured(CASES[name], given) for name in given.case or CASES}
    heads = {"wall s": 9, "limit s": 9, "CPU s": 9, "MiB": 9, "candidates": 16, "priced": 10, "fits": 10, "best s": 10}
    print(f"{'case':<14}" + "".join(f"{head:>{width}}" for head, width in heads.items()) + "  kept")
    for name, row in figures.items():
        times = f"{row['wall_s']:>9.2f}{row['limit_s']:>9.1f}{row['cpu_s']:>9.2f}{row['peak_rss_mib']:>9.0f}"
        best = "-" if row["best_step_time_s"] is None else f"{row['best_step_time_s']:.4g}"
        counts = f"{row['candidates']:>16,}{row['priced']:>10,}{row['fits']:>10,}{best:>10}"
        print(f"{name:<14}{times}{counts}  {'yes' if row['kept'] else 'NO'}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0 if all(row["kept"] for row in figures.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
