"""Would constants fitted to whole measured steps predict other sources better? In sample, and one source left out.

    python benchmarks/fit_end_to_end.py RUNS.csv [--without NAME,...]

Each factor of `FACTORS` multiplies one part of the model; x are their logarithms, y the log of measured over predicted, A the
change of log price by x, found by pricing again. Minimised is Σ w·(y − A·x)² + Σ (x / spread)², w so that every source
counts once, and less for runs that are far off. Nothing of it is shipped: see docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.problem import PricingOptions, Problem
from shardwright.planner.runs import read_runs
from shardwright.planner.validation import FLAG, UNSCORED_GROUPS
from shardwright.planner.validation_rows import DEFAULT_METER, price_run, read_run

STEP = 0.1
SITE, FAR = 0.06, 0.12
"""Deviation of sources from the model, and from where a run counts less."""

Change = Callable[[Problem, float], Problem]


def kernels(name: str) -> Change:
    return lambda p, f: replace(p, kernels=replace(p.kernels, **{name: f * getattr(p.kernels, name)}))


def stack(*names: str, most: float = math.inf) -> Change:
    return lambda p, f: replace(p, stack=replace(p.stack, **{name: min(f * getattr(p.stack, name), most) for name in names}))


def low_precision(p: Problem, f: float) -> Problem:
    low = ("fp8", "mxfp8", "nvfp4", "fp4")
    rates = {key: rate / f if key.startswith(low) else rate for key, rate in p.kernels.precision_speedup.items()}
    return replace(p, kernels=replace(p.kernels, precision_speedup=rates))


def on(arch: str, change: Change) -> Change:
    return lambda p, f: change(p, f) if p.device.arch.startswith(arch) else p


FACTORS: dict[str, tuple[float, Change]] = {
    "sustained.ampere": (0.10, on("ampere", kernels("sustained_factor"))),
    "sustained.hopper": (0.10, on("hopper", kernels("sustained_factor"))),
    "sustained.blackwell": (0.10, on("blackwell", kernels("sustained_factor"))),
    "attention": (0.10, kernels("attention_sustained_factor")),
    "low_precision.hopper": (0.08, on("hopper", low_precision)),
    "low_precision.blackwell": (0.08, on("blackwell", low_precision)),
    "elementwise": (0.20, stack("elementwise_factor")),
    "logits": (0.20, stack("logit_bytes")),
    "dp_floor": (0.25, stack("dp_exposed_floor", most=1.0)),
    "tp_exposed": (0.25, stack("tp_exposed", most=1.0)),
    "p2p": (0.25, stack("p2p_exposed", "p2p_exposed_interleaved")),
    "scores": (0.20, stack("score_bytes_forward", "score_bytes_backward")),
    "host": (0.40, stack("host_s_per_kernel")),
    "routed_host": (0.40, stack("moe_host_forward_s", "moe_host_backward_s")),
    "fsdp_interference": (0.50, stack("fsdp_interference")),
}
"""Factor: its prior spread, and what it changes."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run: its source, log of predicted over measured, and the change of log price by each factor."""

    group: str
    log: float
    slope: np.ndarray


def rows_of(path: Path, names: list[str]) -> list[Row]:
    made = []
    for row in read_runs(path):
        if FLAG.search(row.notes) or row.source_group in UNSCORED_GROUPS:
            continue
        try:
            run = read_run(row, PricingOptions())
            base = price_run(run, row.memory_meter or DEFAULT_METER, estimate_degrees).step_s
        except ShardwrightError:
            continue
        if run.measured_s is None:
            continue
        slope = np.zeros(len(names))
        for at, name in enumerate(names):
            changed = FACTORS[name][1](run.problem, math.exp(STEP))
            if changed is not run.problem:
                price = price_run(replace(run, problem=changed), row.memory_meter or DEFAULT_METER, estimate_degrees)
                slope[at] = math.log(price.step_s / base) / STEP
        made.append(Row(group=row.source_group, log=math.log(base / run.measured_s), slope=slope))
    return made


def fitted(rows: list[Row], names: list[str]) -> np.ndarray:
    slope, y = np.array([row.slope for row in rows]), -np.array([row.log for row in rows])
    count = Counter(row.group for row in rows)
    once = np.array([min(count[row.group], 10) / (2.5 * count[row.group] * SITE**2) for row in rows])
    prior, x = np.diag([1.0 / FACTORS[name][0] ** 2 for name in names]), np.zeros(len(names))
    for _ in range(8):
        weight = once / np.maximum(1.0, np.abs(y - slope @ x) / FAR)
        x = np.linalg.solve(slope.T @ (weight[:, None] * slope) + prior, slope.T @ (weight * y))
    return x


def errors(rows: list[Row], x: np.ndarray) -> tuple[float, float]:
    found = [abs(math.exp(row.log + float(row.slope @ x)) - 1.0) for row in rows]
    return float(np.median(found)), float(np.quantile(found, 0.9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--without", default="", help="factors to leave at 1")
    given = parser.parse_args()
    names = [name for name in FACTORS if name not in given.without.split(",")]
    rows = rows_of(given.runs, names)
    groups = sorted({row.group for row in rows})
    own = {group: [row for row in rows if row.group == group] for group in groups}
    everything, nothing = fitted(rows, names), np.zeros(len(names))
    without = {group: fitted([row for row in rows if row.group != group], names) for group in groups}
    ways = {
        "nothing fitted": dict.fromkeys(groups, nothing),
        "fitted to all": dict.fromkeys(groups, everything),
        "source left out": without,
    }
    print(f"{len(rows)} runs of {len(groups)} sources, {len(names)} factors")
    for way, x in ways.items():
        median, p90 = np.mean([errors(own[group], x[group]) for group in groups], axis=0)
        print(f"{way:16} median {100 * median:5.1f} %, p90 {100 * p90:5.1f} %")
    for at, name in enumerate(names):
        spread = [math.exp(x[at]) for x in without.values()]
        print(f"  {name:24} {math.exp(everything[at]):.3f}   left out {min(spread):.3f} to {max(spread):.3f}")


if __name__ == "__main__":
    main()
