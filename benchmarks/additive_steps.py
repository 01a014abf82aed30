"""Whether step times were measured whole or put together from the times of their parts.

python benchmarks/additive_steps.py RUNS.csv

Runs alike in everything but the number of micro-batches m: of three such runs the middle one lies off the line through the
others by

    d = |t_line(m) / t - 1|

Steps that were run differ from one another by noise, 0.1 % and more. Steps that a simulator adds up from one profile lie on
the line up to the digits they are printed with. Printed are, by source, the number of such triples, the median of d and its
largest value.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

from shardwright.planner.runs.table import RunRow, read_runs

FREE = (
    "line", "id", "source", "notes", "global_batch", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu_reported",
    "mfu_reported", "peak_mem_gib",
)  # fmt: skip
"""Columns in which runs of one line may differ."""

Point = tuple[float, float]


def departures(rows: Iterable[RunRow]) -> dict[str, list[float]]:
    """How far middle runs lie off the line through their neighbours, over their time, by source group."""
    held = [f.name for f in fields(RunRow) if f.name not in FREE]
    alike: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for row in rows:
        if row.step_time_s and row.global_batch and row.micro_batch:
            count = row.global_batch / (row.micro_batch * (row.dp or 1))
            alike[tuple(getattr(row, name) for name in held)].append((count, row.step_time_s))
    made: dict[str, list[float]] = defaultdict(list)
    for key, points in alike.items():
        made[str(key[held.index("source_group")])] += _off_line(_means(points))
    return {name: found for name, found in sorted(made.items()) if found}


def _means(points: Sequence[Point]) -> list[Point]:
    """One point for each number of micro-batches, in rising order."""
    times: dict[float, list[float]] = defaultdict(list)
    for count, seconds in points:
        times[count].append(seconds)
    return [(count, statistics.mean(found)) for count, found in sorted(times.items())]


def _off_line(points: Sequence[Point]) -> list[float]:
    return [_departure(first, middle, last) for (first, middle), (_, last) in pairwise(pairwise(points))]


def _departure(first: Point, middle: Point, last: Point) -> float:
    share = (middle[0] - first[0]) / (last[0] - first[0])
    return abs((first[1] + share * (last[1] - first[1])) / middle[1] - 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    found = departures(read_runs(parser.parse_args().runs))
    print("source         triples     median    largest")
    for name, sizes in found.items():
        print(f"{name:<14}{len(sizes):>8}{statistics.median(sizes):>11.2g}{max(sizes):>11.2g}")


if __name__ == "__main__":
    main()
