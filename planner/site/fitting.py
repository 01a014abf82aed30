"""Factors of a site from measured steps: one scalar from one run, a physical decomposition from several.

    x = log factors of `PARTS`,  y_i = log(measured / f_i(x))
    minimise  Σ_i w_i (y_i / noise)^2 + x' C^-1 x,   w_i = 1 / (1 + (y_i / odd)^2)
    C = spread^2 + diag(own^2)                  what all parts of a site share, and what each has of its own

f_i is the price of run i, the same that every other number comes from. Gauss-Newton, with derivatives by pricing again with
one factor changed (`_sensitivities`); a few rounds suffice, f being nearly linear in the factors (`ROUNDS`). One run cannot
tell parts apart: it gives one factor for all (`shrinkage.site_shift`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.hardware.site_factors import AS_MODELLED, PARTS, SiteFactors, SiteRun
from shardwright.planner.plans import FloatArray
from shardwright.planner.site.shrinkage import ODD_RUN, RUN_NOISE, SITE_SPREAD, interval_share, site_shift

OWN_SPREAD = {"device": 0.04, "host": 0.30, "scaleup": 0.05, "scaleout": 0.16}
"""What a part of a site deviates by beside the others: held-out errors of kernel fits (3.5 %), of collectives within a node
(4 %) and across nodes (16 %), see docs/model.md; host times differ from machine to machine by a third (prior, assumed)."""

STEP = 0.05
"""Change of a log factor by which sensitivities are found."""

ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured run.

    Attributes:
        id: its name.
        measured_s: seconds a step.
        price: the predicted step time, given the site's factors.
    """

    id: str
    measured_s: float
    price: Callable[[SiteFactors], float]


def fit_site(runs: Sequence[Observation]) -> SiteFactors:
    """The factors that measured runs make likely, with each run's time before and after.

    Args:
        runs: at least one.
    """
    before = [run.price(AS_MODELLED) for run in runs]
    if len(runs) == 1:
        factors = SiteFactors.uniform(math.exp(-site_shift(before[0] / runs[0].measured_s - 1.0)))
    else:
        factors = _decomposed(runs, before)
    lines = tuple(_compared(run, at_first, factors) for run, at_first in zip(runs, before, strict=True))
    known = replace(factors, runs=lines, interval_share=interval_share(len(runs)))
    return SiteFactors.from_dict(known.to_dict())  # to the digits that files keep, so that both are priced alike


def _compared(run: Observation, before_s: float, factors: SiteFactors) -> SiteRun:
    return SiteRun(
        id=run.id, measured_step_time_s=run.measured_s, before_step_time_s=before_s, after_step_time_s=run.price(factors)
    )


def _decomposed(runs: Sequence[Observation], before: Sequence[float]) -> SiteFactors:
    measured = np.log([run.measured_s for run in runs])
    own = np.array([OWN_SPREAD[part] for part in PARTS])
    prior = np.linalg.inv(SITE_SPREAD**2 + np.diag(own**2))
    x: FloatArray = np.zeros(len(PARTS))
    priced: FloatArray = np.log(before)
    for round_ in range(ROUNDS):
        slope = _sensitivities(runs, x, priced)
        residual = measured - priced
        weight = 1.0 / (1.0 + (residual / ODD_RUN) ** 2) / RUN_NOISE**2
        pull = slope.T @ (weight * (residual + slope @ x))
        x = np.asarray(np.linalg.solve(slope.T @ (weight[:, None] * slope) + prior, pull))
        if round_ + 1 < ROUNDS:
            priced = _log_prices(runs, x)
    return _factors(x)


def _sensitivities(runs: Sequence[Observation], x: FloatArray, priced: FloatArray) -> FloatArray:
    """Change of log price by log factor, [runs, parts]."""
    columns = [(_log_prices(runs, x + STEP * unit) - priced) / STEP for unit in np.eye(len(PARTS))]
    return np.stack(columns, axis=1)


def _log_prices(runs: Sequence[Observation], x: FloatArray) -> FloatArray:
    factors = _factors(x)
    return np.asarray(np.log([run.price(factors) for run in runs]))


def _factors(x: FloatArray) -> SiteFactors:
    values = np.exp(x).tolist()
    return SiteFactors(**dict(zip(PARTS, values, strict=True)))
