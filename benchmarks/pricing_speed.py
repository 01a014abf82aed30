"""Measures how many plans a second one core prices, and that they carry the prices of `estimate`.

python benchmarks/pricing_speed.py [--case NAME] [--check N] [--repeat N] [--json FILE]

All legal candidates are priced, and then only those that differ in their `parallel` record (whatever the layers of their
stages). Time is CPU time of the process (`time.process_time`) from candidates to step times and memory, tables included,
with one worker and nothing remembered from earlier runs. N random
candidates are then priced exactly as the search does for those it shows, and again one by one, unfolded, by
`estimate_degrees`; the largest relative difference is printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.planner.cost.indexing import distinct
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plans import RECOMPUTE_MODES, Degrees
from shardwright.planner.problem import Problem, build_problem
from shardwright.planner.schedules.exact import program_of
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.finalists import with_exact
from shardwright.planner.search.scan import ALL_LAYERS, Scan, scan
from shardwright.planner.search.space import Legal, declare, enumerate_legal


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem to price."""

    model: str
    cluster: str
    seq_len: int
    global_batch: int


CASES = {
    "dense": Case(model="llama3.1-405b", cluster="dgx-h100:256", seq_len=8192, global_batch=2048),
    "routed": Case(model="deepseek-v3", cluster="dgx-h100:256", seq_len=4096, global_batch=15360),
}
TOLERANCE = 1e-9


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--check", type=int, default=1000, metavar="N", help="candidates priced again one by one")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="the fastest of so many runs counts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def distinct_plans(problem: Problem, made: Scan, legal: Legal) -> Legal:
    """The first of all candidates that share a `parallel` record."""
    batch = made.batch
    most = np.array([-(-problem.graph.layers // pp) for pp in batch.pp])
    covered = np.where(batch.recompute == RECOMPUTE_MODES.index("full"), np.minimum(batch.recompute_layers, most), 0)
    columns = (batch.tp, batch.sp, batch.cp, batch.pp, batch.vpp, batch.ep, batch.etp, batch.dp, batch.shown_dp_replicate)
    rows = np.sort(distinct(*columns, batch.micro_batch, batch.zero, batch.schedule, batch.recompute, covered)[0])
    return replace(legal, columns={name: column[rows] for name, column in legal.columns.items()})


def fastest_scan(problem: Problem, legal: Legal, repeat: int) -> tuple[Scan, float]:
    """The prices, and the least CPU seconds they took."""
    seconds = []
    for _ in range(repeat):
        program_of.cache_clear()
        began = time.process_time()
        made = scan(problem, legal, workers=1)
        seconds.append(time.process_time() - began)
    return made, min(seconds)


def degrees_at(made: Scan, index: int) -> Degrees:
    """One candidate as a user would state it."""
    batch = made.batch
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch")
    covered = int(batch.recompute_layers[index])
    return Degrees(
        **{name: int(getattr(batch, name)[index]) for name in names},
        dp_replicate=int(batch.shown_dp_replicate[index]),
        zero=int(batch.zero[index]),
        schedule=SCHEDULE_IDS[batch.schedule[index]],
        sequence_parallel=bool(batch.sp[index]),
        recompute=RECOMPUTE_MODES[batch.recompute[index]],
        recompute_layers=covered if covered < ALL_LAYERS else None,
        layers_per_stage=made.splits[batch.split[index]].chunks,
    )


def largest_difference(problem: Problem, made: Scan, count: int) -> float:
    """Largest relative difference of step time or peak memory between plans of the scan, priced exactly, and one at a time."""
    rows = np.random.default_rng(20260101).choice(len(made.batch), size=min(count, len(made.batch)), replace=False)
    made, worst = with_exact(made, rows), 0.0
    for row in rows:
        record = estimate_degrees(problem, degrees_at(made, int(row)))
        step, peak = record["predicted"]["step_time_s"], record["memory"]["peak_bytes"]
        worst = max(worst, abs(step / made.step_s[row] - 1), abs(peak / made.peak_bytes[row] - 1))
    return float(worst)


def measured(case: Case, check: int, repeat: int) -> dict[str, Any]:
    problem = build_problem(case.model, case.cluster, seq_len=case.seq_len, global_batch=case.global_batch)
    began = time.process_time()
    space = declare(problem, {})
    legal = enumerate_legal(problem, space)
    enumerated = time.process_time() - began
    made, seconds = fastest_scan(problem, legal, repeat)
    plans = distinct_plans(problem, made, legal)
    alone = fastest_scan(problem, plans, repeat)[1]
    return {
        "candidates": space.candidates,
        "legal": len(legal),
        "distinct_plans": len(plans),
        "enumerate_cpu_s": enumerated,
        "price_cpu_s": seconds,
        "plans_per_cpu_s": len(legal) / seconds,
        "distinct_price_cpu_s": alone,
        "distinct_plans_per_cpu_s": len(plans) / alone,
        "checked": min(check, len(legal)),
        "largest_difference": largest_difference(problem, made, check),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> int:
    given = arguments()
    figures = {name: measured(CASES[name], given.check, given.repeat) for name in given.case or CASES}
    for name, row in figures.items():
        print(f"{name}: {CASES[name].model} on {CASES[name].cluster}")
        for key, value in row.items():
            print(f"  {key:<26}{value:>18,.3f}" if isinstance(value, float) and value > 1e-3 else f"  {key:<26}{value:>18,}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    agreed = all(row["largest_difference"] <= TOLERANCE for row in figures.values())
    print("prices agree" if agreed else f"prices differ by more than {TOLERANCE:g}")
    return 0 if agreed else 1


if __name__ == "__main__":
    raise SystemExit(main())
