"""Prices the plans at the top of a scan by the recurrence of their schedules, so that the number shown is the same everywhere.

A scan prices by chains (`cost.pipelines`): fast and close, not exact. But no step is shorter than

    least = the chains          of 1F1B and GPipe, which are lengths of dependent work
            the busy seconds    of the busiest stage, under any other schedule

so with b the least exact price found, no plan with least >= b is faster. `settled` prices exactly

    the `FIRST` plans by price
    all plans with least < b, in the order of least                   while they take no more than `PROOF` operations
    those whose price is up to `REACH` above the last plan shown      in the order of price, up to `NEAR` operations
    every plan that is shown

The second makes the proof; the third leaves no plan out of the list because its chains are too long.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.planner.cost.pricing import price
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES
from shardwright.planner.search.ranking import Traits, ranked, traits_of
from shardwright.planner.search.scan import Scan

FIRST, WAVE = 16, 64
"""Plans priced exactly: the best of the scan, and at once after them."""

PROOF, NEAR = 30_000_000, 6_000_000
"""Operations of pipelines gone through at most; a million takes about a twentieth of a second."""

REACH = 0.05
"""By how much chains may be too long on plans that could be shown."""

PHASES = np.array([3 if schedule.splits_backward else 2 for schedule in SCHEDULES])
"""Operations of a micro-batch on a chunk."""

BOUNDING = np.isin(SCHEDULE_IDS, ("1f1b", "gpipe"))
"""Schedules whose chains never exceed their step."""


def settled(made: Scan, problem: Problem, top: int, tie: float, *, near: bool = True) -> tuple[Scan, IntArray, IntArray]:
    """The scan with exact prices where they matter, and its ranking (`ranked`).

    Args:
        made: a scan.
        problem: what was planned.
        top: how many plans are shown at most.
        tie: relative width of a tie group.
        near: price exactly those too that may belong among the shown ones.
    """
    made = _best_found(made)
    traits = traits_of(problem, made)
    if near:
        made = _neighbours(made, problem, top, tie, traits)
    while True:
        rows, groups = ranked(problem, made, top, tie, traits)
        left = rows[~made.exact[rows]]
        if len(left) == 0:
            return made, rows, groups
        made = with_exact(made, left)


def with_exact(made: Scan, rows: IntArray) -> Scan:
    """The scan with some plans priced exactly."""
    if len(rows) == 0:
        return made
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
    while operations(made, np.flatnonzero(made.exact)).sum() < PROOF:
        least, best = least_s(made)[fitting], float(made.step_s[fitting][made.exact[fitting]].min())
        left = np.flatnonzero((least < best) & ~made.exact[fitting])
        if len(left) == 0:
            break
        made = with_exact(made, fitting[left[np.argsort(least[left], kind="stable")][:WAVE]])
    return made


def _neighbours(made: Scan, problem: Problem, top: int, tie: float, traits: Traits) -> Scan:
    """Prices plans exactly that may belong among those shown though their chains say otherwise."""
    shown = ranked(problem, made, top, tie, traits)[0]
    if len(shown) == 0:
        return made
    reach = made.step_s[shown].max() * (1 + REACH)
    loose = ~made.exact & ~BOUNDING[made.batch.schedule] & (made.batch.pp > 1)
    near = np.flatnonzero(made.fits & loose & (made.step_s <= reach))
    near = near[np.argsort(made.step_s[near], kind="stable")]
    near = near[np.cumsum(operations(made, near)) <= NEAR]
    return with_exact(made, near) if len(near) else made


def operations(made: Scan, rows: IntArray) -> IntArray:
    """Operations of the pipelines of some plans."""
    batch = made.batch.take(rows)
    return np.asarray(batch.pp * batch.vpp * batch.micro_batches * PHASES[batch.schedule])
