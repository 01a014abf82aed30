"""Values of factors that measured step times make likely, robust against sources that are odd.

    x = log factors,  r_i = log(measured / predicted),  A_i = change of log price of run i by x
    minimise  Σ_i w_i ρ(r_i − A_i·x) / RUN²  +  Σ_k (x_k / spread_k)²                            `fit_factors`
    ρ(e) = e² up to FAR, then linear (Huber);  Σ w_i of a source = min(runs, MOST_RUNS)          `_weights`

A source of runs says as much as MOST_RUNS independent runs at most, however many rows it has: what runs of a source have in
common (its cluster, its images) is not averaged away by more of them. Solved by reweighting (`ROUNDS` steps of least squares).
Left out means: w_i = 0 for the runs of one source.

Source of the method: Huber 1964 for ρ; priors as in ridge regression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.planner.fits.factors import FACTORS

Array = npt.NDArray[np.float64]

RUN, FAR, MOST_RUNS = 0.06, 0.05, 4
"""Deviation of a run, where a deviation counts linearly, runs that a source counts as. Day to day and from release to release
the same plan differs by 2 to 6 % (published repeats); sources deviate from the model by several per cent each."""

ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A measured run as the fit sees it.

    Attributes:
        source: group of runs it belongs to.
        log_ratio: log of predicted over measured, every factor at its prior.
        slope: change of log price by log factor, one number a factor.
    """

    source: str
    log_ratio: float
    slope: tuple[float, ...]


def fit_factors(runs: Sequence[Deviation], names: Sequence[str], without: str | None = None) -> dict[str, float]:
    """The most likely values of factors.

    Args:
        runs: their slopes are in the order of `names`.
        names: factors that are fitted.
        without: source whose runs are left out.

    Returns:
        Value by name; 1 where no run says anything.
    """
    kept = [run for run in runs if run.source != without]
    if not kept or not names:
        return dict.fromkeys(names, 1.0)
    slope, wanted = np.array([run.slope for run in kept]), -np.array([run.log_ratio for run in kept])
    prior = np.diag([FACTORS[name].spread ** -2 for name in names])
    once, x = _weights(kept), np.zeros(len(names))
    for _ in range(ROUNDS):
        weight = once / np.maximum(np.abs(wanted - slope @ x) / FAR, 1.0)
        x = np.linalg.solve(slope.T @ (weight[:, None] * slope) + prior, slope.T @ (weight * wanted))
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def _weights(runs: Sequence[Deviation]) -> Array:
    count = Counter(run.source for run in runs)
    return np.array([min(count[run.source], MOST_RUNS) / count[run.source] / RUN**2 for run in runs])
