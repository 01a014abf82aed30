"""Prices the plans at the top of a scan by the recurrence of their schedules, so that the number shown is the same everywhere.

A scan prices by chains (`cost.pipelines`): fast and close, not exact. But no step is shorter than

    least = the chains          of 1F1B and GPipe, which are lengths of dependent work
            the busy seconds    of the busiest stage, under any other schedule

so with b the least exact price found, no plan with least >= b is faster. `settled` prices exactly the `FIRST` plans by price,
all others in the order of least until that reaches b (at most `MOST`), and every plan that the ranking then shows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.planner.cost.pricing import price
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.ranking import ranked
from shardwright.planner.search.scan import Scan

FIRST, WAVE, MOST = 16, 64, 2048
"""Plans priced exactly: the best of the scan; at once after them; at most, before the bound is left below the best."""

BOUNDING = np.isin(SCHEDULE_IDS, ("1f1b", "gpipe"))
"""Schedules whose chains never exceed their step."""


def settled(made: Scan, problem: Problem, top: int, tie: float) -> tuple[Scan, IntArray, IntArray]:
    """The scan with exact prices where they matter, and its ranking (`ranked`).

    Args:
        made: a scan.
        problem: what was planned.
        top: how many plans are shown at most.
        tie: relative width of a tie group.
    """
    made = _best_found(made)
    while True:
        rows, groups = ranked(problem, made, top, tie)
        left = rows[~made.exact[rows]]
        if len(left) == 0:
            return made, rows, groups
        made = with_exact(made, left)


def with_exact(made: Scan, rows: IntArray) -> Scan:
    """The scan with some plans priced exactly."""
    step, exact = made.step_s.copy(), made.exact.copy()
    step[rows] = price(made.context, made.batch.take(rows), made.key[rows], exact=True).step_s
    exact[rows] = True
    return replace(made, step_s=step, exact=exact)


def least_s(made: Scan) -> FloatArray:
    """No plan takes less, [candidates]."""
    known = made.exact | BOUNDING[made.batch.schedule]
    return np.where(known, made.step_s, made.busy_s)


def _best_found(made: Scan) -> Scan:
    """Prices plans exactly until no other can be faster than the best of them, or `MOST` are."""
    fitting = np.flatnonzero(made.fits)
    if len(fitting) == 0:
        return made
    by_price = fitting[np.argsort(made.step_s[fitting], kind="stable")]
    made = with_exact(made, by_price[:FIRST])
    while int(made.exact.sum()) < MOST:
        least, best = least_s(made)[fitting], float(made.step_s[fitting][made.exact[fitting]].min())
        left = np.flatnonzero((least < best) & ~made.exact[fitting])
        if len(left) == 0:
            break
        made = with_exact(made, fitting[left[np.argsort(least[left], kind="stable")][:WAVE]])
    return made
