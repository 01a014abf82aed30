"""How much measured runs of a site help to predict others: median error before and after, by number of runs.

    python benchmarks/site_calibration.py RUNS.csv [--draws 5]

A site is a source group on one device with one stack and precision, dense or routed. K of its runs are drawn, the
factors fitted to them, and all others predicted; figures are means over sites of the median error, over several draws. Two
ways: one scalar for all parts (`scalar`, from the mean shift of the K runs) and the factors of `planner.site` (`parts`).
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.hardware.site_factors import SiteFactors
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.runs.table import read_runs
from shardwright.planner.site.fitting import Observation, fit_site
from shardwright.planner.site.stated import at_site
from shardwright.planner.validation.rows import DEFAULT_METER, price_run, read_run
from shardwright.planner.validation.run import FLAG, UNSCORED_GROUPS

COUNTS = (1, 2, 4, 8)
LEAST = 12
"""Runs a site must have, so that enough are left to be predicted."""


def observations(path: Path) -> dict[tuple[str, ...], list[Observation]]:
    """The runs of each site."""
    sites: dict[tuple[str, ...], list[Observation]] = defaultdict(list)
    for row in read_runs(path):
        if FLAG.search(row.notes) or row.source_group in UNSCORED_GROUPS:
            continue
        try:
            run = read_run(row, PricingOptions())
            price_run(run, row.memory_meter or DEFAULT_METER, estimate_degrees)
        except ShardwrightError:
            continue
        if run.measured_s is None:
            continue
        problem = run.problem
        kind = "routed" if problem.graph.spec.moe else "dense"
        site = (row.source_group, problem.device.id, problem.stack.id, problem.job.precision.id, kind)
        sites[site].append(observation(row, run))
    return {site: runs for site, runs in sites.items() if len(runs) >= LEAST}


def observation(row, run) -> Observation:
    known: dict[SiteFactors, float] = {}

    def price(factors: SiteFactors) -> float:
        key = replace(factors, runs=())
        if key not in known:
            here = replace(run, problem=at_site(run.problem, key))
            known[key] = price_run(here, row.memory_meter or DEFAULT_METER, estimate_degrees).step_s
        return known[key]

    return Observation(id=row.id, measured_s=run.measured_s, price=price)


def error(runs: list[Observation], factors: SiteFactors) -> float:
    bare = replace(factors, runs=())
    return float(np.median([abs(run.price(bare) / run.measured_s - 1.0) for run in runs]))


def scalar(runs: list[Observation]) -> SiteFactors:
    shift = [math.log(run.measured_s / run.price(SiteFactors())) for run in runs]
    return SiteFactors.uniform(math.exp(sum(shift) / (len(shift) + 0.64)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    chosen = parser.parse_args()
    sites = observations(chosen.runs)
    print(f"{len(sites)} sites of {LEAST} runs or more, {sum(map(len, sites.values()))} runs, {chosen.draws} draws")
    print(f"{'runs':>5} {'before':>8} {'scalar':>8} {'parts':>8}")
    table = defaultdict(list)
    for site, runs in sorted(sites.items()):
        for count in COUNTS:
            if count > len(runs) // 2:
                continue
            draws = [random.Random(f"{site}{count}{n}").sample(range(len(runs)), count) for n in range(chosen.draws)]
            for draw in draws:
                some = [runs[i] for i in draw]
                rest = [run for i, run in enumerate(runs) if i not in set(draw)]
                ways = (SiteFactors(), scalar(some), fit_site(some))
                table[count, site].append([error(rest, factors) for factors in ways])
    for count in COUNTS:
        made = [np.mean(values, axis=0) for (number, _), values in table.items() if number == count]
        mean = np.mean(made, axis=0)
        print(f"{count:5} " + " ".join(f"{100 * value:6.1f} %" for value in mean) + f"   ({len(made)} sites)")
    print()
    for site in sorted(sites):
        made = [np.mean(table[count, site], axis=0) for count in COUNTS if (count, site) in table]
        shown = "  ".join(f"{100 * m[0]:.1f}>{100 * m[1]:.1f},{100 * m[2]:.1f}" for m in made)
        print(f"{'/'.join(site)[:60]:60} {len(sites[site]):4} {shown}")


if __name__ == "__main__":
    main()
