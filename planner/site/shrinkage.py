"""How far measured runs of a site are believed: constants of the prior, and the factor that one run gives.

With r = log(predicted / measured) of one run, sites differing by `SITE_SPREAD` and runs of one site by `RUN_NOISE`,

    log factor = -r / (1 + (noise / spread)^2 + (r / odd)^2)                               `site_shift`
    interval   = sqrt(noise^2 + left) / sqrt(noise^2 + spread^2),
                 left = 1 / (1 / spread^2 + n / noise^2)       of n runs                   `interval_share`

the posterior mean and spread of a normal scalar, where a run further off than `ODD_RUN` says more of itself than of its site.
"""

from __future__ import annotations

import math

SITE_SPREAD = 0.10
RUN_NOISE = 0.08
ODD_RUN = 0.30
"""Relative deviations: of sites from the priors, of runs from their site, and from where a run counts as odd."""


def site_shift(error: float | None) -> float:
    """Log of predicted over measured that the site is held responsible for, given the error of one measured run there.

    Args:
        error: predicted / measured - 1.
    """
    residual = math.log1p(error or 0.0)
    return residual / (1.0 + (RUN_NOISE / SITE_SPREAD) ** 2 + (residual / ODD_RUN) ** 2)


def interval_share(runs: int) -> float:
    """What an interval keeps of its width once so many runs of the site are known."""
    left = 1.0 / (1.0 / SITE_SPREAD**2 + runs / RUN_NOISE**2)
    return math.sqrt((RUN_NOISE**2 + left) / (RUN_NOISE**2 + SITE_SPREAD**2))
