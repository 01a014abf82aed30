"""What the simplest model of all reaches on measured runs: one share of peak for every run.

python benchmarks/one_mfu.py RUNS.csv

    t = model FLOPs / (u · peak of the precision · GPUs)

The rows, what is read from them and how errors are averaged are those of `validate`; only the price differs. u is the share
that makes the mean over groups of the median error least, that is, fitted to the very rows it is scored on.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem
from shardwright.planner.validation.run import validate
from shardwright.planner.validation.statistics import quantile


def at_peak(problem: Problem, degrees: Degrees) -> dict[str, Any]:
    """The record of a plan with the step time of a machine that runs at its peak."""
    record = estimate_degrees(problem, degrees)
    if record["predicted"] is None:
        return record
    job = problem.job
    peak = problem.device.peak_flops[job.precision.compute] * problem.cluster.gpus
    seconds = job.flops_per_step(problem.stack.flops_convention) / peak
    times = dict.fromkeys(("step_time_s", "step_time_low_s", "step_time_high_s"), seconds)
    return record | {"predicted": record["predicted"] | times}


def shares(path: Path) -> dict[str, list[float]]:
    """Measured shares of peak by source group, of the rows that are scored."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in validate(path, estimator=at_peak).to_dict()["rows"]:
        if row["scored"]:
            found[row["source_group"]].append(1.0 + row["error"])
    return found


def errors(by_group: dict[str, list[float]], one: float) -> list[list[float]]:
    """Absolute errors by group if every run reached this share."""
    return [[abs(share / one - 1.0) for share in group] for group in by_group.values()]


def typical(by_group: dict[str, list[float]], one: float) -> float:
    """Mean over groups of the median error."""
    return statistics.mean(statistics.median(group) for group in errors(by_group, one))


def least_share(by_group: dict[str, list[float]]) -> float:
    """The share, to a tenth of a per cent, that suits the runs best."""
    return min((step / 1000 for step in range(50, 1000)), key=lambda share: typical(by_group, share))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    by_group = shares(parser.parse_args().runs)
    one = least_share(by_group)
    worst = statistics.mean(quantile(group, 0.9) or 0.0 for group in errors(by_group, one))
    print(f"one share of peak: {100 * one:.1f} %")
    print(f"mean over {len(by_group)} groups: median {100 * typical(by_group, one):.1f} %, p90 {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
