"""Measures the prices of pipeline schedules: against the event simulation, their bounds, their speed, and plans as searched.

python benchmarks/schedule_accuracy.py [--cases N] [--only agreement|bounds|speed|plans ...] [--plans N] [--json FILE]

agreement   largest relative difference between `exact_finish_s`, `exact_step_s` and the simulator, N random cases a schedule
bounds      rows that exceed the price (there must be none) and 1 − bound / price, N random cases a schedule
speed       CPU seconds of the recurrence for 256 micro-batches on 64 stages, and on 64 ranks with two chunks each where a
            rank holds several: one plan, and 1,000
plans       the fastest plans that a scan finds for some jobs: its prices against the exact ones, and what choosing by them
            would cost

Random cases: 1-8 ranks, 2-4 chunks, 1-48 micro-batches, stages that differ by a factor of 6, forward, input-gradient and
weight-gradient times apart, recomputing on some stages, sends of 0-10 % of a pass that nobody, one end or both ends wait for,
passes that run together in half of the cases of schedules that have them. The first three parts are printed as a table, the
last one alone as JSON; --json writes all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from shardwright.planner.plans import FloatArray
from shardwright.planner.problem import build_problem
from shardwright.planner.schedules.bounds import reference_rows
from shardwright.planner.schedules.exact import exact_finish_s, exact_step_s, program_for, program_of
from shardwright.planner.schedules.recurrence import Program, step_s
from shardwright.planner.schedules.registry import SCHEDULES
from shardwright.planner.schedules.shape import FOLDED, LOOPED, PAIRED, SIMULATED, Shape, can_exchange, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timing import ChunkTimes, Sends, chunk_times
from shardwright.planner.search.finalists import with_exact
from shardwright.planner.search.scan import Scan, scan
from shardwright.planner.search.space import declare, enumerate_legal

JOBS = {
    "llama3.1-70b on 128 H100": ("llama3.1-70b", "dgx-h100:16", 8192, 256),
    "llama3.1-405b on 512 H100": ("llama3.1-405b", "dgx-h100:64", 8192, 512),
    "megatron-175b on 256 A100": ("megatron-175b", "dgx-a100-80g:32", 2048, 256),
    "deepseek-v3 on 256 H100": ("deepseek-v3", "dgx-h100:32", 4096, 1024),
}
PLANS_A_SHAPE = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, metavar="N")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), metavar="PART")
    parser.add_argument(
        "--plans", type=int, default=400, metavar="N", help="plans of each job and schedule that are priced exactly"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def random_shape(rng: Generator, schedule: str) -> Shape:
    pp = int(rng.integers(1, 9))
    paired = schedule in PAIRED and bool(rng.random() < 0.5)
    if schedule in LOOPED:
        group = pp if rng.random() < 0.5 else int(rng.integers(pp, 2 * pp + 1))
        count = group * int(rng.integers(1, 4)) + int(rng.choice([0, *range(pp, group)]))
        vpp = int(rng.integers(2, 5))
        return Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count, group=group, paired=paired)
    least = 2 * pp if schedule == "dualpipe-v" else 1
    vpp, count = 2 if schedule in FOLDED else 1, int(rng.integers(least, 3 * least + 25))
    return Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count, paired=paired)


def random_times(rng: Generator, shape: Shape, plans: int) -> ChunkTimes:
    size = (plans, shape.pp * shape.vpp)
    layers = rng.choice([0.5, 1.0, 1.0, 1.5, 3.0], size) * rng.uniform(0.9, 1.1, size)
    recomputed = layers * (rng.random(size) < 0.3)
    inputs, weights = layers * rng.uniform(0.5, 1.5, (plans, 1)), layers * rng.uniform(0.5, 1.2, (plans, 1))
    send = rng.uniform(0, 0.1, (plans, 1)) * layers.mean() * np.ones(size)
    tail = rng.uniform(0, 3, (plans, shape.pp)) * (rng.random((plans, 1)) < 0.5)
    waiting = [sends for sends in Sends if sends is not Sends.BOTH or can_exchange(shape)]
    sends, gain = waiting[int(rng.integers(len(waiting)))], rng.uniform() * shape.paired
    return chunk_times(layers, inputs + recomputed, weights, pp=shape.pp, send_s=send, tail_s=tail, sends=sends, gain=gain)


def agreement(given: argparse.Namespace) -> dict[str, Any]:
    rng, made = np.random.default_rng(1), {}
    for schedule in SIMULATED:
        worst = 0.0
        for _ in range(given.cases // PLANS_A_SHAPE):
            shape = random_shape(rng, schedule)
            times = random_times(rng, shape, PLANS_A_SHAPE)
            order = order_of(shape, times.sends is Sends.BOTH)
            timelines = [simulate(order, times, at) for at in range(PLANS_A_SHAPE)]
            steps = np.array([timeline.step_s for timeline in timelines])
            ends = np.array([timeline.finish_s for timeline in timelines]) - times.tail_s
            worst = max(worst, float(np.abs(exact_step_s(shape, times) / steps - 1).max()))
            worst = max(worst, float(np.abs(exact_finish_s(shape, times) / ends - 1).max()))
        made[schedule] = {"cases": given.cases, "largest_relative_difference": worst}
    return made


def bounds(given: argparse.Namespace) -> dict[str, Any]:
    rng, made, plans = np.random.default_rng(2), {}, 50
    for schedule in SIMULATED:
        share = []
        for _ in range(given.cases // plans):
            shape = random_shape(rng, schedule)
            times = random_times(rng, shape, plans)
            rows = reference_rows(program_for(shape, times), times.sends, times.gain)
            share.append(rows.bound_s(times) / exact_step_s(shape, times))
        gap = 100 * (1 - np.concatenate(share))
        made[schedule] = {
            "cases": len(gap),
            "violations": int((gap < -1e-9).sum()),
            "gap_percent": {"mean": gap.mean(), "p90": np.quantile(gap, 0.9), "max": gap.max()},
        }
    return made


def speed(_: argparse.Namespace) -> dict[str, Any]:
    return {schedule: dict(speeds(schedule)) for schedule in SIMULATED}


def speeds(schedule: str) -> Iterator[tuple[str, dict[str, float]]]:
    vpp = 2 if schedule in (*FOLDED, *LOOPED) else 1
    for name, pp in {"64 stages": 64 // vpp, "64 ranks": 64}.items():
        shape = Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=256)
        start = time.process_time()
        compiled = program_of(shape)
        row = {"compile_s": time.process_time() - start}
        for plans in (1, 1000):
            times = replace(random_times(np.random.default_rng(3), shape, plans), sends=Sends.OVERLAPPED, gain=0.0)
            row[f"plans_{plans}_s"] = min(cpu_s(compiled, times) for _ in range(5))
        yield name, row


def cpu_s(compiled: Program, times: ChunkTimes) -> float:
    start = time.process_time()
    step_s(compiled, times)
    return time.process_time() - start


def plans(given: argparse.Namespace) -> dict[str, Any]:
    made = {}
    for name, (model, cluster, seq_len, batch) in JOBS.items():
        problem = build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=None)
        priced = scan(problem, enumerate_legal(problem, declare(problem, {})))
        made[name] = {schedule.id: compare(priced, index, given.plans) for index, schedule in enumerate(SCHEDULES)}
    return made


def compare(priced: Scan, schedule: int, count: int) -> dict[str, Any]:
    """Prices of the scan and exact ones of the fastest pipelined plans that fit."""
    chosen = np.flatnonzero(priced.fits & (priced.batch.schedule == schedule) & (priced.batch.pp > 1))
    chosen = chosen[np.argsort(priced.step_s[chosen])][:count]
    if len(chosen) == 0:
        return {"plans": 0}
    start = time.process_time()
    exact = with_exact(priced, chosen).step_s[chosen]
    spent, found = time.process_time() - start, priced.step_s[chosen]
    error = 100 * (found / exact - 1)
    return {
        "plans": len(chosen),
        "scan_minus_exact_percent": spread(error),
        "scan_exact_within_0.1_percent": float((np.abs(error) < 0.1).mean()),
        "regret_percent": 100 * (exact[found.argmin()] / exact.min() - 1),
        "cpu_s_a_plan": spent / len(chosen),
    }


def spread(values: FloatArray) -> dict[str, float]:
    return {"least": values.min(), "mean": values.mean(), "most": values.max()}


PARTS = {"agreement": agreement, "bounds": bounds, "speed": speed, "plans": plans}


def table(made: dict[str, Any]) -> str:
    """What was measured of every schedule, a line each."""
    heads = {
        "agreement": f"{'cases':>7} {'f - simulation':>14}",
        "bounds": f"{'rows > f':>8} {'gap mean':>8} {'p90':>6} {'max':>6}",
        "speed": f"{'1 plan':>8} {'1,000':>7}  {'64 ranks: 1':>11} {'1,000':>7}",
    }
    parts = [part for part in heads if part in made]
    lines = [f"{'schedule':<17}" + "  ".join(heads[part] for part in parts)]
    for schedule in SIMULATED:
        lines.append(f"{schedule:<17}" + "  ".join(CELLS[part](made[part][schedule]) for part in parts))
    return "\n".join(lines) if parts else ""


def speed_cells(row: dict[str, Any]) -> str:
    stages, ranks = row["64 stages"], row["64 ranks"]
    one, many = 1e3 * stages["plans_1_s"], stages["plans_1000_s"]
    return f"{one:5.1f} ms {many:5.2f} s  {1e3 * ranks['plans_1_s']:8.1f} ms {ranks['plans_1000_s']:5.2f} s"


def bound_cells(row: dict[str, Any]) -> str:
    gap = row["gap_percent"]
    return f"{row['violations']:>8} {gap['mean']:6.2f} % {gap['p90']:4.1f} % {gap['max']:4.0f} %"


CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "agreement": lambda row: f"{row['cases']:>7,} {row['largest_relative_difference']:>14.0e}",
    "bounds": bound_cells,
    "speed": speed_cells,
}


def main() -> int:
    given = arguments()
    made = {name: PARTS[name](given) for name in given.only}
    print(table(made) or json.dumps(made, indent=1, default=float))
    if given.json:
        given.json.write_text(json.dumps(made, indent=1, default=float) + "\n", encoding="utf-8")
    violations = sum(row["violations"] for row in made.get("bounds", {}).values())
    worst = max((row["largest_relative_difference"] for row in made.get("agreement", {}).values()), default=0.0)
    return 1 if violations or worst > 1e-9 else 0


if __name__ == "__main__":
    sys.exit(main())
