"""How wide intervals of step times have to be, from measured runs: writes `planner/intervals/widths.yaml`.

    python benchmarks/interval_widths.py RUNS.csv [--write]

    d_i = log(measured_i / predicted_i)             of the runs that `validate --fit loso` scores
    low, high of a kind = exp of the quantiles a and 1 - a of d; every source weighs as much as any other, and the runs of all
                          other kinds together as much as PRIOR_SOURCES sources                                  `widths_of`
    a = the largest share for which 80 % of the runs of a source left out lie inside, mean over sources            `tail_of`

A kind of few runs or of one source takes the wider of its own quantiles and those of all runs, on either side. `judged` leaves
each source out of everything, the choice of a included, and says how many of its runs lie inside and how wide intervals are.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.documents import yaml_text
from shardwright.planner.intervals import ALL, KINDS
from shardwright.planner.validation.run import validate

PLACE = Path(__file__).parents[1] / "planner" / "intervals" / "widths.yaml"

COVERAGE = 0.8
PRIOR_SOURCES = 3.0
"""A kind of as many sources is half its own, half what all other runs show."""

LEAST_RUNS, LEAST_SOURCES = 10, 2
"""A kind with fewer is never narrower than all runs together."""

NARROWEST = 0.03
"""No side is closer to the prediction: releases of one stack differ by so much."""

TAILS = np.round(np.arange(0.14, 0.02, -0.005), 3)

Sides = dict[str, np.ndarray]
"""Of each kind and every tail: low and high, measured over predicted; [tails x 2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far a measured run lies from its prediction: log of measured over predicted."""

    source: str
    kind: str
    log_ratio: float


def deviations(rows: Sequence[Mapping[str, Any]]) -> list[Deviation]:
    """The runs of a document of `validate` that are scored."""
    return [
        Deviation(source=row["source_group"], kind=row["interval_kind"], log_ratio=-math.log1p(row["error"]))
        for row in rows
        if row["scored"]
    ]


def quantiles(values: Sequence[float], weights: Sequence[float], tails: np.ndarray) -> np.ndarray:
    """The weighted quantiles a and 1 - a of every tail a, linear between the middles of the steps; [tails x 2]."""
    order = np.argsort(values, kind="stable")
    mass = np.asarray(weights, dtype=np.float64)[order]
    middles = (np.cumsum(mass) - mass / 2) / mass.sum()
    return np.interp(np.stack((tails, 1 - tails), axis=1), middles, np.asarray(values, dtype=np.float64)[order])


def widths_of(runs: Sequence[Deviation], tails: np.ndarray = TAILS) -> Sides:
    """Low and high of every kind the runs have, and of all."""
    made = {ALL: _sides(runs, (), tails)}
    for kind in sorted({run.kind for run in runs}):
        own, rest = [r for r in runs if r.kind == kind], [r for r in runs if r.kind != kind]
        made[kind] = _sides(own, rest, tails)
        if len(own) < LEAST_RUNS or len({run.source for run in own}) < LEAST_SOURCES:
            made[kind] = _outer(made[kind], made[ALL])
    return made


def _outer(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.stack((np.minimum(one[:, 0], other[:, 0]), np.maximum(one[:, 1], other[:, 1])), axis=1)


def _sides(own: Sequence[Deviation], rest: Sequence[Deviation], tails: np.ndarray) -> np.ndarray:
    weights = _weights(own)
    if rest:
        others = _weights(rest)
        weights += [PRIOR_SOURCES * weight / math.fsum(others) for weight in others]
    found = np.exp(quantiles([run.log_ratio for run in (*own, *rest)], weights, tails))
    return _outer(found, np.asarray([[1 - NARROWEST, 1 + NARROWEST]]))


def _weights(runs: Sequence[Deviation]) -> list[float]:
    of_a_source = Counter(run.source for run in runs)
    return [1 / of_a_source[run.source] for run in runs]


def inside(runs: Sequence[Deviation], sides: Sides) -> np.ndarray:
    """Share of the runs inside, and mean width over the prediction, for every tail; [tails x 2]."""
    bounds = np.stack([sides.get(run.kind, sides[ALL]) for run in runs], axis=1)  # [tails x runs x 2]
    ratios = np.exp([run.log_ratio for run in runs])
    held = (bounds[..., 0] <= ratios) & (ratios <= bounds[..., 1])
    return np.stack((held.mean(axis=1), (bounds[..., 1] - bounds[..., 0]).mean(axis=1)), axis=1)


def without(runs: Sequence[Deviation], source: str) -> tuple[list[Deviation], list[Deviation]]:
    """The runs of a source, and those of all others."""
    return [run for run in runs if run.source == source], [run for run in runs if run.source != source]


def sources_of(runs: Sequence[Deviation]) -> list[str]:
    """All sources, by name."""
    return sorted({run.source for run in runs})


def tail_of(runs: Sequence[Deviation]) -> int:
    """Index of the largest tail whose intervals hold COVERAGE of the runs of sources left out; the last where none does."""
    split = [without(runs, name) for name in sources_of(runs)]
    held = np.mean([inside(own, widths_of(others))[:, 0] for own, others in split if others], axis=0)
    enough = np.flatnonzero(held >= COVERAGE)
    return int(enough[0]) if len(enough) else len(TAILS) - 1


def judged(runs: Sequence[Deviation]) -> dict[str, tuple[float, float]]:
    """Share inside and mean width of each source, where neither widths nor tail have seen it."""
    made = {}
    for name in sources_of(runs):
        own, others = without(runs, name)
        held, width = inside(own, widths_of(others))[tail_of(others)]
        made[name] = float(held), float(width)
    return made


def document(runs: Sequence[Deviation], date: str) -> dict[str, Any]:
    """What `widths.yaml` holds: widths of every kind, and where they come from."""
    tail = tail_of(runs)
    sides, found = {kind: both[tail] for kind, both in widths_of(runs).items()}, judged(runs)
    return {
        "source": "runs scored by `validate --fit loso`, each source weighing the same",
        "by": "benchmarks/interval_widths.py",
        "date": date,
        "tail": float(TAILS[tail]),
        "left_out": {
            "coverage": round(float(np.mean([held for held, _ in found.values()])), 3),
            "width": round(float(np.mean([width for _, width in found.values()])), 3),
            "sources": {name: {"coverage": round(held, 3), "width": round(width, 3)} for name, (held, width) in found.items()},
        },
        "kinds": {kind: _entry(runs, kind, sides.get(kind, sides[ALL])) for kind in (ALL, *KINDS)},
    }


def _entry(runs: Sequence[Deviation], kind: str, sides: np.ndarray) -> dict[str, Any]:
    own = [run for run in runs if kind in (ALL, run.kind)]
    sources = len({run.source for run in own})
    return {"low": round(float(sides[0]), 3), "high": round(float(sides[1]), 3), "runs": len(own), "sources": sources}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {PLACE.name}")
    given = parser.parse_args()
    runs = deviations(validate(given.runs, fit="loso").to_dict()["rows"])
    made = document(runs, datetime.datetime.now(tz=datetime.UTC).date().isoformat())
    for kind, entry in made["kinds"].items():
        print(f"{kind:12} {entry['low']:.3f} to {entry['high']:.3f}  {entry['runs']} runs of {entry['sources']} sources")
    for name, found in made["left_out"]["sources"].items():
        print(f"left out: {name:14} {100 * found['coverage']:3.0f} % inside, width {100 * found['width']:.0f} %")
    mean = made["left_out"]
    print(f"mean of sources left out: {100 * mean['coverage']:.1f} % inside, width {100 * mean['width']:.1f} %")
    if given.write:
        PLACE.write_text(yaml_text(made), encoding="utf-8")


if __name__ == "__main__":
    main()
