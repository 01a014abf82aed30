"""Statistics of predictions against measurements.

    e_i     = predicted_i / measured_i - 1
    p_q     = linear interpolation between order statistics of |e|                          `quantile`
    tau     = (concordant - discordant) / sqrt((n0 - ties_x) (n0 - ties_y))                `kendall_tau`
    regret  = measured of the plan predicted fastest / least measured - 1                  `regret`

Source of tau-b: M. G. Kendall, The treatment of ties in ranking problems, Biometrika 33 (1945).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return float(np.mean(values)) if len(values) else None


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return float(np.median(values)) if len(values) else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The quantile by linear interpolation, or None of nothing."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), share, method="linear")) if len(values) else None


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings; None of fewer than two items or where one ranking is all ties."""
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    above = np.triu_indices(len(x), k=1)
    dx, dy = np.sign(x[above[0]] - x[above[1]]), np.sign(y[above[0]] - y[above[1]])
    ordered_x, ordered_y = float(np.count_nonzero(dx)), float(np.count_nonzero(dy))
    if not ordered_x or not ordered_y:
        return None
    return float(np.sum(dx * dy)) / math.sqrt(ordered_x * ordered_y)


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """How much slower than the best the plan predicted fastest ran; None of fewer than two plans.

    Plans predicted equal are one choice: the mean of their measurements counts.
    """
    if len(predicted) < 2:
        return None
    guess, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    chosen = truth[guess == guess.min()]
    return max(float(chosen.mean() / truth.min()) - 1.0, 0.0)
