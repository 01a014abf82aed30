"""Prints predicted against measured peaks of memory: by source group, by meter and by completeness, and pairs of devices.

    python benchmarks/memory_rows.py RUNS.csv [--rows]

A pair is a run with a measured peak on a device with 0.9 and with 1.1 times that peak (read with the run's meter): the plan has
to be refused on the first and accepted on the second.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import ShardwrightError
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, Problem
from shardwright.planner.runs.table import RunRow, read_runs
from shardwright.planner.validation.rows import DEFAULT_METER, price_run, read_run
from shardwright.planner.validation.run import FLAG, UNSCORED_GROUPS
from shardwright.planner.validation.statistics import median, quantile

GIB = 2.0**30
SMALLER, LARGER = 0.9, 1.1
"""Devices of a pair, over the measured peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Predicted and measured peak of a run, GiB in its meter.

    Attributes:
        row: the run.
        predicted_gib: prediction.
        beside_gib: what the device holds beside what the meter reads (driver context, communicators).
        fits: whether it was predicted to fit its own device.
    """

    row: RunRow
    predicted_gib: float
    beside_gib: float
    fits: bool

    @property
    def error(self) -> float | None:
        """Prediction over measurement, minus one."""
        measured = self.row.peak_mem_gib
        return None if measured is None else self.predicted_gib / measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Whether a run was refused on the smaller device of its pair and accepted on the larger."""

    row: RunRow
    refused: bool
    accepted: bool


def peaks(path: Path, options: PricingOptions | None = None) -> list[Peak]:
    """Every scored run of a file that states a peak or ran out of memory, and can be priced."""
    found = (_peak(row, options or PricingOptions()) for row in read_runs(path) if _tells(row))
    return [peak for peak in found if peak is not None]


def pairs(found: Iterable[Peak]) -> list[Pair]:
    """The pair of every complete run with a measured peak."""
    return [_pair(peak) for peak in found if peak.row.config_complete == "yes" and peak.row.peak_mem_gib is not None]


def _tells(row: RunRow) -> bool:
    scored = row.source_group not in UNSCORED_GROUPS and not FLAG.search(row.notes)
    return scored and (row.peak_mem_gib is not None or row.outcome == "oom")


def _peak(row: RunRow, options: PricingOptions) -> Peak | None:
    read: list[Mapping[str, Any]] = []

    def estimate(problem: Problem, degrees: Degrees) -> Mapping[str, Any]:
        read.append(estimate_degrees(problem, degrees))
        return read[-1]

    meter = row.memory_meter or DEFAULT_METER
    try:
        price = price_run(read_run(row, options), meter, estimate)
    except ShardwrightError:
        return None
    meters = read[-1]["memory"]["meters"]
    beside = (meters["device_bytes"] - meters[f"{meter}_bytes"]) / GIB
    return Peak(row=row, predicted_gib=price.peak_gib, beside_gib=beside, fits=price.fits)


def _pair(peak: Peak) -> Pair:
    """The run priced again on the two devices."""

    def fits(times: float) -> bool:
        memory = (times * (peak.row.peak_mem_gib or 0.0) + peak.beside_gib) * GIB
        options = PricingOptions(overrides=(f"cluster.memory_bytes={memory:.0f}",))
        again = _peak(peak.row, options)
        return again is not None and again.fits

    return Pair(row=peak.row, refused=not fits(SMALLER), accepted=fits(LARGER))


def _line(name: str, errors: Sequence[float]) -> str:
    size, worst = [abs(e) for e in errors], max(errors, key=abs, default=None)
    figures = (median(size), quantile(size, 0.9), median(errors), worst)
    return f"{name:<24}{len(errors):>6}" + "".join(f"{'-':>9}" if f is None else f"{100 * f:9.1f}" for f in figures)


def _by(found: Iterable[Peak], key: Callable[[RunRow], str]) -> dict[str, list[float]]:
    made: dict[str, list[float]] = defaultdict(list)
    for peak in found:
        if peak.error is not None:
            made[key(peak.row)].append(peak.error)
    return dict(sorted(made.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row as well, the worst first")
    given = parser.parse_args()
    found = peaks(given.runs)
    print(f"{'errors in %':<24}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}{'worst':>9}")
    tables: tuple[Callable[[RunRow], str], ...] = (
        lambda row: row.source_group,
        lambda row: f"meter {row.memory_meter or 'unknown'}",
        lambda row: "complete" if row.config_complete == "yes" else "not complete",
        lambda row: "all",
    )
    for key in tables:
        for name, errors in _by(found, key).items():
            print(_line(name, errors))
    out = [peak for peak in found if peak.row.outcome == "oom"]
    print(f"out of memory: {sum(not peak.fits for peak in out)} of {len(out)} refused")
    made = pairs(found)
    both = sum(pair.refused and pair.accepted for pair in made)
    refused, accepted = sum(pair.refused for pair in made), sum(pair.accepted for pair in made)
    verdicts = f"{refused} refused at {SMALLER:g}, {accepted} accepted at {LARGER:g}, {both} both"
    print(f"pairs of complete runs: {verdicts}, of {len(made)}")
    if given.rows:
        for peak in sorted((p for p in found if p.error is not None), key=lambda p: -abs(p.error or 0.0)):
            print(f"{peak.row.id:<32}{peak.row.peak_mem_gib:>8}{peak.predicted_gib:9.2f}{100 * (peak.error or 0.0):8.1f}")


if __name__ == "__main__":
    main()
