"""Prices the plans at the top of a scan by the recurrence of their schedules, so that the number shown is the same everywhere.

A scan prices by chains (`cost.pipelines`), which are fast and close. They may exceed the exact price of a plan by the share
`OVER` of its schedule at most (tests hold them to it), so with b the least exact price found so far no plan of scan price above
b·(1 + OVER) can be faster; nor can one whose busiest stage works longer than b. `settled` therefore prices exactly

    all plans in the order of max(price / (1 + OVER), time its busiest stage works), until that exceeds b, and
    every plan that the ranking then shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwright.planner.cost.pricing import price
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.ranking import ranked
from shardwright.planner.search.scan import Scan

WAVES = (8, 256)
"""Plans priced at once, at first and at most: each wave is twice the one before, so that few are priced beyond the best."""

OVER: Mapping[str, float] = {
    "1f1b": 1e-9,
    "gpipe": 1e-9,
    "interleaved-1f1b": 0.03,
    "zb-h1": 0.02,
    "zb-v": 0.05,
    "dualpipe-v": 0.05,
}
"""By how much the chains of a schedule may exceed its recurrence on plans near the best."""


def settled(made: Scan, problem: Problem, top: int, tie: float) -> tuple[Scan, IntArray, IntArray]:
    """The scan with exact prices where they matter, and its ranking (`ranked`).

    Args:
        made: a scan.
        problem: what was planned.
        top: how many plans are shown at most.
        tie: relative width of a tie group.
    """
    made = _near_best(made)
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
    """The least price that each plan can have, [candidates]."""
    over = np.array([OVER[name] for name in SCHEDULE_IDS])[made.batch.schedule]
    return np.where(made.exact, made.step_s, np.maximum(made.step_s / (1 + over), made.busy_s))


def _near_best(made: Scan) -> Scan:
    """Prices plans exactly until no other can be faster than the best of them."""
    least = least_s(made)
    fitting = np.flatnonzero(made.fits)
    order = fitting[np.argsort(least[fitting], kind="stable")]
    best, at, size = np.inf, 0, WAVES[0]
    while at < len(order) and least[order[at]] < best:
        wave = order[at : at + size]
        wave = wave[least[wave] < best]
        made = with_exact(made, wave)
        best, at, size = min(best, float(made.step_s[wave].min())), at + len(wave), min(2 * size, WAVES[1])
    return made
