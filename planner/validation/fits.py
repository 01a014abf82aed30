"""`validate --fit`: which fitted factors price which runs, and factors refitted without the source of a run.

    all      `Fits` as shipped                                          `planner.fits.shipped`
    none     every factor at its prior
    loso     the shipped factors, their values fitted to the scored runs of the other sources of the file     `left_out`

Derivatives of a step time by log factors are found once, by pricing the run's plan with one factor changed by STEP (`slopes`);
a factor that is not for the run costs nothing. The values are then used in full prices, so nothing that is printed is linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.planner.estimation import step_time_s
from shardwright.planner.fits.applying import with_fits
from shardwright.planner.fits.factors import FACTORS, NOTHING_FITTED, Fits
from shardwright.planner.fits.fitting import Deviation, fit_factors
from shardwright.planner.fits.shipped import shipped
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem

STEP = 0.1
"""Change of a log factor by which slopes are found."""

WORDS: dict[str, Callable[[], Fits]] = {"all": shipped, "none": lambda: NOTHING_FITTED, "loso": lambda: NOTHING_FITTED}
"""What runs are priced with at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured run that counts.

    Attributes:
        source: its group.
        problem: with every factor at its prior.
        degrees: the plan that ran.
        step_s: its predicted step time.
        log_ratio: log of predicted over measured.
    """

    source: str
    problem: Problem
    degrees: Degrees
    step_s: float
    log_ratio: float


def slopes(run: Measured, names: Sequence[str]) -> tuple[float, ...]:
    """Change of the log step time of a run by each log factor."""
    made, problem = [], run.problem
    for name in names:
        changed = with_fits(problem, Fits(values={name: math.exp(STEP)}))
        same = changed.stack == problem.stack and (changed.kernels, changed.further) == (problem.kernels, problem.further)
        made.append(0.0 if same else math.log(step_time_s(changed, run.degrees) / run.step_s) / STEP)
    return tuple(made)


def deviations(runs: Sequence[Measured], names: Sequence[str]) -> list[Deviation]:
    """Measured runs as a fit sees them."""
    return [Deviation(source=run.source, log_ratio=run.log_ratio, slope=slopes(run, names)) for run in runs]


def left_out(runs: Sequence[Measured], sources: Sequence[str]) -> dict[str, Fits]:
    """For each source the shipped factors, with values fitted to the runs of all others.

    Args:
        runs: those that count.
        sources: all groups of the file.
    """
    names = [name for name in FACTORS if name in shipped().values]
    seen = deviations(runs, names)
    return {source: _fits(seen, names, source) for source in sources}


def _fits(seen: Sequence[Deviation], names: Sequence[str], source: str) -> Fits:
    said = f"runs of the other sources of the file than {source}"
    return Fits(name=f"without {source}", source=said, values=fit_factors(seen, names, without=source))


def note(fit: str) -> str:
    """What was done, in a sentence."""
    count = len(shipped().values)
    prior = "priors of stacks were set knowing published runs: errors on those are no blind test"
    if count == 0:
        return f"nothing is fitted to whole steps, so fit all, none and loso price alike; {prior}"
    said = {
        "all": f"{count} factors fitted to {shipped().source} (show fits); the rows given are never fitted",
        "none": "nothing fitted to whole steps: operator and collective tables, datasheets, stack profiles",
        "loso": f"each group priced with the {count} factors refitted to the other groups of this file",
    }
    return f"{said[fit]}; {prior}"
