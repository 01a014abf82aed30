"""Measured runs of a site, a row each as `validate` reads them, made a calibration.

    RUNS.csv -> `read_run` (a problem and a plan each) -> `fitting.Observation` -> `fit_site` -> Calibration

All rows must be of one machine; what cannot be read or priced is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError
from shardwright.hardware.calibration import Calibration, same_machine
from shardwright.hardware.cluster import Node
from shardwright.hardware.site_factors import SiteFactors
from shardwright.planner.problem import PricingOptions
from shardwright.planner.runs.table import RunRow, read_runs
from shardwright.planner.site.fitting import Observation, fit_site
from shardwright.planner.site.stated import at_site
from shardwright.planner.validation.rows import DEFAULT_METER, Estimator, Run, price_run, read_run

WHERE = "--from-runs"
MAX_RUNS = 2000
"""More runs than this tell nothing new about four factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCalibration:
    """What the runs of a file say.

    Attributes:
        calibration: to price with; measured collectives are kept.
        notes: rows that were left out, runs that are odd.
    """

    calibration: Calibration
    notes: tuple[str, ...]


def site_of_runs(path: str | Path, *, name: str, collectives: Calibration | None = None) -> SiteCalibration:
    """The calibration of a site by its measured runs.

    Args:
        path: CSV with the columns of `runs.COLUMNS`.
        name: of the calibration.
        collectives: measured on the same machine; runs are priced with them.

    Raises:
        ConflictError: rows of different machines, or of another machine than the collectives.
        InvalidValueError: no row can be used.
    """
    options = PricingOptions(calibration=collectives)
    runs, notes = _usable(read_runs(path)[:MAX_RUNS], options)
    if not runs:
        message = f"no run of {path} has a step time that can be compared" + (f": {notes[0]}" if notes else "")
        raise InvalidValueError(message, where=WHERE, hint="`validate` says what each row lacks")
    node = _one_machine([run.problem.cluster.node for _, run in runs], collectives)
    factors = fit_site([_observation(row, run) for row, run in runs])
    series = () if collectives is None else collectives.series
    calibration = Calibration(name=name, node=node, series=series, site=factors)
    return SiteCalibration(calibration=calibration, notes=(*notes, *factors.warnings()))


def _usable(rows: Sequence[RunRow], options: PricingOptions) -> tuple[list[tuple[RunRow, Run]], list[str]]:
    made, notes = [], []
    for row in rows:
        try:
            run = read_run(row, options)
            price_run(run, row.memory_meter or DEFAULT_METER, _estimate())
        except DamagedFileError:
            raise  # a preset of ours, not the row
        except ShardwrightError as error:
            notes.append(f"{row.id} is left out: {error}")
            continue
        if run.measured_s is None:
            notes.append(f"{row.id} is left out: it states no time")
        else:
            made.append((row, run))
    return made, notes


def _estimate() -> Estimator:
    from shardwright.planner.estimation import estimate_degrees

    return estimate_degrees


def _one_machine(nodes: Sequence[Node], collectives: Calibration | None) -> Node:
    """The machine of all runs.

    Raises:
        ConflictError: they are of several.
    """
    known = collectives.node if collectives is not None and collectives.node is not None else nodes[0]
    for node in nodes:
        if not same_machine(known, node):
            message = f"runs on {known.id} and on {node.id}: a calibration is of one machine"
            raise ConflictError(message, where=WHERE, hint="keep the rows of one machine in a file")
    return known


def _observation(row: RunRow, run: Run) -> Observation:
    def price(factors: SiteFactors) -> float:
        here = replace(run, problem=at_site(run.problem, factors))
        return price_run(here, row.memory_meter or DEFAULT_METER, _estimate()).step_s

    return Observation(id=row.id, measured_s=float(run.measured_s or 0.0), price=price)
