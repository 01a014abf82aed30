"""Fits global factors to whole measured steps, and says what they do for sources of runs that were left out.

    python benchmarks/fit_end_to_end.py RUNS.csv [-o FILE] [--factors NAME,...] [--choose]

Fitted are the rates of kernels in training that tables leave open, `SET`. The table also says what taking up each other
factor of `planner.fits.factors` does to errors of sources left out, and what leaving out one of the set does. --choose takes
factors up one by one as long as those errors fall by `GAIN` (`chosen`) and judges the choice on sources that took part in
neither choice nor fit (`nested`). -o writes the file that ships, `planner/fits/presets/published-runs.yaml`. Prices are
linear in log factors here; `shardwright validate --fit loso` prices in full.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.documents import rounded, yaml_text
from shardwright.planner.fits.factors import FACTORS, NOTHING_FITTED
from shardwright.planner.fits.fitting import Deviation, fit_factors
from shardwright.planner.problem import PricingOptions
from shardwright.planner.validation.fits import deviations
from shardwright.planner.validation.run import UNSCORED_GROUPS, measured_runs

SET = ("products.hopper", "products.native", "products.below_16_bits", "attention")
"""Rates that tables of kernels leave open: how much slower products get in training was measured on A100 and B200 and is
interpolated for Hopper; tables of products in 8 and 4 bits hold casts; attention was measured in isolation; products of PyTorch
and JAX stacks were measured in training by nobody."""

GAIN = 0.0005
"""Least fall of the error of sources left out for which a factor is taken up."""

P90_SHARE = 0.25
"""How much the 90th percentile counts beside the median in that error."""

Values = Mapping[str, float]


def errors(runs: Sequence[Deviation], names: Sequence[str], values: Values) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1|."""
    x = np.log([values.get(name, 1.0) for name in names])
    found = [abs(math.expm1(run.log_ratio + float(np.dot(run.slope, x)))) for run in runs]
    return float(np.median(found)), float(np.quantile(found, 0.9))


def by_source(runs: Sequence[Deviation]) -> dict[str, list[Deviation]]:
    """Runs of each source, in order of names."""
    return {source: [run for run in runs if run.source == source] for source in sorted({run.source for run in runs})}


def part(runs: Sequence[Deviation], names: Sequence[str], some: Sequence[str]) -> list[Deviation]:
    """The runs with the slopes of some of the factors."""
    places = [names.index(name) for name in some]
    return [
        Deviation(source=run.source, log_ratio=run.log_ratio, slope=tuple(run.slope[place] for place in places)) for run in runs
    ]


def left_out(runs: Sequence[Deviation], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Errors of each source with factors fitted to the others."""
    groups = by_source(runs)
    return {source: errors(own, names, fit_factors(runs, names, without=source)) for source, own in groups.items()}


def score(found: Mapping[str, tuple[float, float]]) -> float:
    """What is made least: mean over sources of the median and a share of the 90th percentile."""
    return float(np.mean([median + P90_SHARE * p90 for median, p90 in found.values()]))


def chosen(runs: Sequence[Deviation], names: Sequence[str]) -> list[str]:
    """Factors taken up one by one, the one that helps sources left out most first."""
    taken: list[str] = []
    best = score(left_out(part(runs, names, taken), taken))
    while True:
        offers = [
            (score(left_out(part(runs, names, [*taken, name]), [*taken, name])), name) for name in names if name not in taken
        ]
        least, name = min(offers, default=(math.inf, ""))
        if least > best - GAIN:
            return taken
        taken, best = [*taken, name], least


def nested(runs: Sequence[Deviation], names: Sequence[str]) -> dict[str, tuple[tuple[float, float], list[str]]]:
    """Errors of each source with factors chosen and fitted without it, and the choice."""
    made = {}
    for source, own in by_source(runs).items():
        others = [run for run in runs if run.source != source]
        some = chosen(others, names)
        values = fit_factors(part(others, names, some), some)
        made[source] = errors(part(own, names, some), some, values), some
    return made


def jackknife(runs: Sequence[Deviation], names: Sequence[str]) -> dict[str, float]:
    """Standard error of each log factor by leaving out one source at a time."""
    sources = sorted({run.source for run in runs})
    logs = np.log([[fit_factors(runs, names, without=source)[name] for name in names] for source in sources])
    count = len(sources)
    spread = np.sqrt((count - 1) / count * ((logs - logs.mean(axis=0)) ** 2).sum(axis=0))
    return dict(zip(names, spread.tolist(), strict=True))


def document(runs: Sequence[Deviation], names: Sequence[str], figures: Mapping[str, Any]) -> dict[str, Any]:
    """What the file that ships holds."""
    values, spread = fit_factors(runs, names), jackknife(runs, names)
    without = {source: fit_factors(runs, names, without=source) for source in by_source(runs)}
    rows = {
        name: {
            "value": rounded(values[name], 4),
            "prior": 1.0,
            "prior_spread": FACTORS[name].spread,
            "standard_error": rounded(spread[name], 2),
            "left_out_least": rounded(min(v[name] for v in without.values()), 4),
            "left_out_most": rounded(max(v[name] for v in without.values()), 4),
        }
        for name in names
    }
    return {
        "name": "published-runs",
        "runs": len(runs),
        "sources": sorted({run.source for run in runs}),
        "date": date.today().isoformat(),
        "errors": {way: {"median": rounded(m, 3), "p90": rounded(p, 3)} for way, (m, p) in figures.items()},
        "factors": rows,
    }


def means(found: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Median and 90th percentile, averaged over sources."""
    median, p90 = np.mean(list(found.values()), axis=0)
    return float(median), float(p90)


def alternatives(runs: Sequence[Deviation], names: Sequence[str], some: Sequence[str]) -> dict[str, float]:
    """How the median error of sources left out changes with each factor taken up (or left, if it is one of `some`)."""

    def median(chosen_ones: Sequence[str]) -> float:
        return means(left_out(part(runs, names, chosen_ones), chosen_ones))[0]

    base = median(some)
    other = {name: [one for one in some if one != name] if name in some else [*some, name] for name in names}
    return {name: median(ones) - base for name, ones in other.items()}


def ways_of(runs: Sequence[Deviation], names: Sequence[str], some: Sequence[str], *, choose: bool) -> dict[str, Any]:
    """Errors of each source by the way factors are found."""
    own = part(runs, names, some)
    groups, values = by_source(own), fit_factors(own, some)
    made = {
        "none": {source: errors(rows, some, {}) for source, rows in groups.items()},
        "in_sample": {source: errors(rows, some, values) for source, rows in groups.items()},
        "left_out": left_out(own, some),
        "all_factors_left_out": left_out(runs, names),
    }
    if choose:
        made["chosen_and_left_out"] = {source: pair for source, (pair, _) in nested(runs, names).items()}
    return made


def shown(made: Mapping[str, Any], ways: Mapping[str, Any], changes: Mapping[str, float]) -> list[str]:
    """The tables that are printed."""
    lines = [f"{made['runs']} runs of {len(made['sources'])} sources, {len(made['factors'])} factors of {len(FACTORS)}"]
    for name, row in made["factors"].items():
        range_ = f"{row['left_out_least']:.3f} to {row['left_out_most']:.3f} left out"
        less = f"without it {100 * changes[name]:+.2f}"
        lines.append(f"  {name:30} {row['value']:.3f} ± {row['standard_error']:.3f}, {range_}; {less}")
    lines.append(
        "not fitted; with it: " + ", ".join(f"{n} {100 * c:+.2f}" for n, c in changes.items() if n not in made["factors"])
    )
    lines += [f"{way:20} median {100 * means(f)[0]:5.2f} %, p90 {100 * means(f)[1]:5.2f} %" for way, f in ways.items()]
    lines.append("median / p90 by source: " + ", ".join(ways))
    for source in made["sources"]:
        cells = "  ".join(f"{100 * found[source][0]:5.1f} /{100 * found[source][1]:5.1f}" for found in ways.values())
        lines.append(f"  {source:16} {cells}")
    return lines


def main() -> None:
    """Reads runs, fits factors, prints what they do and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--factors", help="fit these instead of the set that ships")
    parser.add_argument("--choose", action="store_true", help="choose among all factors, and judge the choice")
    given = parser.parse_args()
    names = list(FACTORS)
    options = PricingOptions(fits=NOTHING_FITTED)
    runs = deviations(measured_runs(given.runs, options, frozenset(UNSCORED_GROUPS)), names)
    wanted = given.factors.split(",") if given.factors else chosen(runs, names) if given.choose else SET
    some = [name for name in names if name in wanted]
    ways = ways_of(runs, names, some, choose=given.choose)
    made = document(part(runs, names, some), some, {way: means(found) for way, found in ways.items()})
    print("\n".join(shown(made, ways, alternatives(runs, names, some))))
    if given.output:
        given.output.write_text(yaml_text(made), encoding="utf-8")


if __name__ == "__main__":
    main()
