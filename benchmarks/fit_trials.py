"""Derives the variances of `planner.search.trials`: by how much the errors of two plans of one job differ.

python benchmarks/fit_trials.py RUNS.csv

r = log(measured / predicted) of every scored run; for each pair (i, j) of one choice (source, model, node, GPUs, batch,
sequence, precision, framework)

    E (r_i - r_j)^2 = repeats + Σ_axis variance[axis] · distance of the plans on the axis

by least squares without negative variances. A difference counts up to `LARGEST`: beyond it a run is odd, not uncertain. The
pairs of a choice of n runs weigh n - 1 together; a source weighs at most `MOST` of all. An axis on which fewer than `FEWEST`
pairs differ is not fitted: it takes the mean of the degrees that are. `repeats` is how much two runs of one plan differ: no
property of plans, so no part of the model.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from shardwright.errors import ShardwrightError
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.runs.table import RunRow, read_runs
from shardwright.planner.search.trials import AXES, DEGREES, chances_of, distance, values_of
from shardwright.planner.validation.rows import DEFAULT_METER, price_run, read_run
from shardwright.planner.validation.run import FLAG, UNSCORED_GROUPS

LARGEST, MOST, FEWEST, PLANS = 0.4, 0.25, 100, 4

Point = tuple[float, float, tuple[Any, ...]]
Pair = tuple[str, float, float, tuple[float, ...]]


def point(row: RunRow) -> Point | None:
    """Predicted and measured seconds of a run and what its plan has on every axis; None where it is not scored."""
    if row.source_group in UNSCORED_GROUPS or FLAG.search(row.notes) or row.outcome != "ok":
        return None
    seen: list[dict[str, Any]] = []

    def estimate(problem: Any, degrees: Any) -> dict[str, Any]:
        seen.append(estimate_degrees(problem, degrees))
        return seen[-1]

    try:
        run = read_run(row, PricingOptions())
        price = price_run(run, row.memory_meter or DEFAULT_METER, estimate)
    except ShardwrightError:
        return None
    if run.measured_s is None:
        return None
    return price.step_s, run.measured_s, values_of(seen[-1]["parallel"])


def choices_of(path: Path) -> dict[tuple[Any, ...], list[Point]]:
    """The runs of every choice."""
    choices: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for row in read_runs(path):
        found = point(row)
        if found is not None:
            job = (row.model, row.node, row.gpus, row.global_batch, row.seq_len, row.precision, row.framework)
            choices[(row.source_group, *job)].append(found)
    return choices


def pairs(choices: dict[tuple[Any, ...], list[Point]]) -> list[Pair]:
    """Of every pair of runs of one choice: source, weight, squared difference of errors, distance on every axis."""
    made = []
    for choice, points in choices.items():
        for one, other in combinations(points, 2):
            apart = tuple(map(distance, AXES, one[2], other[2]))
            difference = abs(math.log(one[1] / one[0]) - math.log(other[1] / other[0]))
            made.append((choice[0], 2.0 / len(points), min(difference, LARGEST) ** 2, apart))
    return made


def tried(points: Sequence[Point], count: int) -> tuple[float, ...] | None:
    """Of trials in one choice: chance said and true, loss said and true; None of fewer than `PLANS` plans."""
    repeats: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for each in points:
        repeats[each[2]].append(each)
    if len(repeats) < PLANS:
        return None
    rows = sorted((runs[0][0], float(np.mean([r[1] for r in runs])), number) for number, runs in enumerate(repeats.values()))
    plans = list(repeats)
    words = {word: number for number, word in enumerate(sorted({repr(v) for plan in plans for v in plan[len(DEGREES) :]}))}
    table = [[*plans[n][: len(DEGREES)], *(words[repr(v)] for v in plans[n][len(DEGREES) :])] for _, _, n in rows]
    made = chances_of(np.array([row[0] for row in rows]), np.array(table), count)
    measured = np.array([row[1] for row in rows])
    held = float(measured.argmin() in made.chosen)
    return float(made.probability.sum()), held, float(made.loss[-1]), float(measured[made.chosen].min() / measured.min() - 1)


def capped(found: Sequence[Pair]) -> np.ndarray:
    """Weights of the pairs, no source above its share."""
    total: dict[str, float] = defaultdict(float)
    for source, weight, _, _ in found:
        total[source] += weight
    cap = MOST * sum(total.values())
    return np.array([w * min(1.0, cap / total[source]) for source, w, _, _ in found])


def fit(squares: np.ndarray, apart: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A variance for every axis, and then that of repeats."""
    told = (apart > 0).sum(axis=0) >= FEWEST
    root = np.sqrt(weight)
    columns = np.column_stack([apart[:, told], np.ones(len(apart))])
    solved = nnls(columns * root[:, None], squares * root)[0]
    found = np.zeros(len(AXES))
    found[told] = solved[:-1]
    degrees = told & np.isin(AXES, DEGREES)
    found[~told] = found[degrees].mean()
    return np.append(found, solved[-1])


def main() -> None:
    """Prints the variances and how well they say what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    choices = choices_of(parser.parse_args().runs)
    found = pairs(choices)
    squares, apart = np.array([p[2] for p in found]), np.array([p[3] for p in found])
    weight = capped(found)
    fitted = fit(squares, apart, weight)
    sources = sorted({pair[0] for pair in found})
    print(f"{len(found):,} pairs of {len(sources)} sources; variances of the difference of log (measured / predicted)")
    for place, axis in enumerate((*AXES, "repeats")):
        told = f"{np.count_nonzero(apart[:, place]):,} pairs differ" if place < len(AXES) else ""
        print(f"  {axis:<12} {fitted[place]:.4f}  {told}".rstrip())
    print("difference of two runs, root mean square: measured, fitted")
    for source in (*sources, "all"):
        mine = np.array([source in (pair[0], "all") for pair in found])
        means = (np.average(v[mine], weights=weight[mine]) for v in (squares, apart @ fitted[:-1] + fitted[-1]))
        print(f"  {source:<12} " + "  ".join(f"{math.sqrt(value):.3f}" for value in means))
    print(f"trials in choices of at least {PLANS} plans, with the constants of the planner: chance said, true; loss said, true")
    for count in (1, 3, 5):
        rows = [row for row in (tried(points, count) for points in choices.values()) if row is not None]
        chance, held, loss, lost = np.mean(rows, axis=0)
        print(f"  {count} of {len(rows)} choices: {chance:.2f}, {held:.2f}; {loss:.3f}, {lost:.3f}")


if __name__ == "__main__":
    main()
