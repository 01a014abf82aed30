"""Measures sweeps as a user runs them: wall time, points a second, and the memory of all their processes.

python benchmarks/sweep_speed.py [--case NAME] [--models N] [--workers N] [--json FILE]

    sizes   12 sizes of llama3.1-70b, 8 to 16,384 GPUs, at the default effort: limit 30 s
    wide    10 models x 10 sizes x 4 sequences x 5 node types at scan: limit 15 minutes and 1.5 GiB
    ray     the same 40 points on a local Ray cluster and in local processes: limit 1.3 times as long (needs the extra `ray`)

Memory is the sum over the processes of what each holds alone or its share of what it shares (PSS), its peak over the first
half of the time and over all of it. CPU seconds of all processes tell more than wall seconds where others use the machine.
The exit code is 1 if a case misses a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
MODELS = ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "qwen3-32b", "qwen3-235b-a22b")
MODELS += ("mixtral-8x7b", "deepseek-v3", "gpt3-175b", "gpt-oss-120b", "mistral-7b")
NODES = "dgx-h100,dgx-h200,dgx-a100-80g,dgx-b200,p5.48xlarge"
SIZES = ["llama3.1-70b", "--node", "dgx-h100", "--nodes", "1..2048x2", "--seq-len", "8192", "--global-batch", "2048"]
RAY = [
    "llama3.1-8b",
    "--node",
    "dgx-h100,dgx-a100-80g",
    "--nodes",
    "1..512x2",
    "--global-batch",
    "512,1024",
    "--effort",
    "scan",
]
WIDE_S, WIDE_GIB, SIZES_S, RAY_TIMES = 900.0, 1.5, 30.0, 1.3
GIB = 2**30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("sizes", "wide", "ray"), action="append", help="default: sizes and wide")
    parser.add_argument("--models", type=int, default=len(MODELS), metavar="N", help="models of the wide case")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def tree(pid: int) -> set[int]:
    """A process and all that it started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, new = set[int](), {pid}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in found} - found
    return found


def held_bytes(pids: set[int]) -> int:
    """Memory of processes, each page once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def swept(*given: str) -> dict[str, Any]:
    """One sweep: wall seconds, points by status, peaks of memory."""
    path = os.pathsep.join(p for p in (str(SOURCE), os.environ.get("PYTHONPATH", "")) if p)
    command = [sys.executable, "-m", "shardwright", "sweep", *given, "--format", "csv"]
    samples: list[tuple[float, int]] = []
    with tempfile.TemporaryFile("w+") as out:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=out)
        while process.poll() is None:
            samples.append((time.perf_counter() - began, held_bytes(tree(process.pid))))
            time.sleep(0.5)
        wall = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        out.seek(0)
        statuses = out.read().splitlines()[1:]
    if process.returncode not in {0, 1}:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    first = max((held for at, held in samples if at <= wall / 2), default=0)
    peaks = {"first_half_gib": first / GIB, "peak_gib": max((held for _, held in samples), default=0) / GIB}
    count = {status: sum(f",{status}," in line for line in statuses) for status in ("ok", "infeasible", "error")}
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "points": len(statuses), "points_per_s": len(statuses) / wall, **count, **peaks}


def sizes(given: argparse.Namespace) -> dict[str, Any]:
    made = swept(*SIZES, "--workers", str(given.workers))
    return made | {"limit_s": SIZES_S, "kept": made["wall_s"] <= SIZES_S}


def wide(given: argparse.Namespace) -> dict[str, Any]:
    knobs = ["--node", NODES, "--nodes", "1..512x2", "--seq-len", "2048,4096,8192,16384", "--tokens-per-batch", "4194304"]
    made = swept(*MODELS[: given.models], *knobs, "--effort", "scan", "--workers", str(given.workers))
    limit = WIDE_S * given.models / len(MODELS)
    return made | {"limit_s": limit, "kept": made["wall_s"] <= limit and made["peak_gib"] <= WIDE_GIB}


def ray(given: argparse.Namespace) -> dict[str, Any]:
    workers = ("--workers", str(given.workers))
    local, other = swept(*RAY, *workers), swept(*RAY, "--engine", "ray", *workers)
    times = other["wall_s"] / local["wall_s"]
    return other | {"local_s": local["wall_s"], "times_local": times, "kept": times <= RAY_TIMES}


def main() -> int:
    given = arguments()
    cases = {"sizes": sizes, "wide": wide, "ray": ray}
    figures = {}
    for name in given.case or ("sizes", "wide"):
        figures[name] = cases[name](given)
        print(name)
        for key, value in figures[name].items():
            shown = (
                ("yes" if value else "NO")
                if isinstance(value, bool)
                else f"{value:,.3f}"
                if isinstance(value, float)
                else f"{value:,}"
            )
            print(f"  {key:<24}{shown:>16}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0 if all(row["kept"] for row in figures.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
