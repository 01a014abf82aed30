"""Which input would have to be wrong, and by how much, for another plan to win.

The winner is the first plan of the ranking on as many GPUs as the explained one uses. It stays so while it is in the first tie,

    margin(x) = (1 + tie) · min over the other plans of t_j(x) − t_1(x) >= 0

with t(x) the printed step times when an input is x times its value, infinite for a plan that does not fit. `figures` prices all
plans of the ranking with each input changed by the same statement as `--set KEY=VALUE`, at a few factors up to `LIMIT` either
way, and where the margin changes its sign closes in on the nearest such factor (`_closed_in`: secant steps, halved where they
stall). The figure that is told has been priced: with it another plan wins, and nearer to the own value by `NEAR` none does.

    elasticity = (ln t(x) − ln t) / ln x  at x = `SLIGHTLY`        how much of a change of the input reaches the step time

Only plans of the ranking are compared: with quite other inputs a plan that is not among them may be better still.
"""

from __future__ import annotations

import math

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.planner.explanation.inputs import Input, inputs_of
from shardwright.planner.explanation.saved import Priced, Record, Saved, priced
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import FloatArray
from shardwright.planner.problem import problem_from_inputs

LIMIT, SLIGHTLY = 2.0, 1.1
"""Inputs are changed up to this factor, either way; and to tell how much they matter."""

NEAR = 0.005
"""Relative width within which a switching point is known."""

FINE = 30
"""Capacities looked at, either way."""

STEPS = 12
"""Prices at most to close in on one."""


class _Trials:
    """Prices of a ranking's plans under factors of one input, each factor priced once."""

    def __init__(self, saved: Saved, base: Priced, one: Input, tie: float) -> None:
        self._saved, self._base, self._input, self._tie = saved, base, one, tie
        self._gpus = int(saved.estimate["parallel"]["world_size"])
        self._value = float(one.value(saved.problem) or 0.0)
        self._known: dict[float, FloatArray] = {1.0: base.step_s}

    def value(self, factor: float) -> float:
        """The input's value."""
        value = self._value * factor
        if self._input.most is not None:
            value = min(value, self._input.most)
        value = max(value, self._input.least)
        return float(round(value)) if self._input.capacity else value

    def step_s(self, factor: float) -> FloatArray:
        """Step times of all plans, [plans]."""
        if factor not in self._known:
            value = self.value(factor)
            said = f"{self._input.key}={int(value) if self._input.capacity else repr(value)}"
            problem = problem_from_inputs(self._saved.document["inputs"], (said,), self._gpus)
            self._known[factor] = self._base.under(problem, same_prices=self._input.capacity).step_s
        return self._known[factor]

    def margin(self, factor: float) -> float:
        """By how much the winner is safe, relative to the fastest of the others; negative where it has lost."""
        steps = self.step_s(factor)
        rival = float(steps[1:].min())
        if not math.isfinite(rival):  # no other wins, even where the winner does not fit
            return 1.0
        return (rival * (1 + self._tie) - float(steps[0])) / rival if math.isfinite(float(steps[0])) else -1.0

    def factors(self, limit: float) -> list[float]:
        """Factors to look at on the way to a limit, nearest first; many where they cost no price."""
        if self._input.capacity:
            return [limit ** (step / FINE) for step in range(1, FINE + 1)]
        return [SLIGHTLY, limit] if limit > 1 else [limit]


def figures(saved: Saved) -> list[Record]:
    """What each input does to the explained plan, and where it would make another plan of the ranking the winner."""
    plans = [degrees_of(plan) for plan in saved.ranked]
    base = priced(saved.problem, plans)
    made = []
    for one in inputs_of(saved.problem):
        trials = _Trials(saved, base, one, saved.tie)
        try:
            made.append(_figure(saved, trials, one))
        except ShardwrightError:  # a value that the input cannot have on this machine
            continue
    return made


def _figure(saved: Saved, trials: _Trials, one: Input) -> Record:
    own = saved.place
    slightly = SLIGHTLY if trials.value(SLIGHTLY) > trials.value(1.0) else 1 / SLIGHTLY
    now, then = trials.step_s(1.0)[own], trials.step_s(slightly)[own]
    able = bool(np.isfinite([now, then]).all())
    return {
        "key": one.key,
        "label": one.label,
        "unit": one.unit,
        "value": trials.value(1.0),
        "elasticity": math.log(then / now) / math.log(trials.value(slightly) / trials.value(1.0)) if able else None,
        "switch": _switch(saved, trials) if len(saved.ranked) > 1 else None,
    }


def _switch(saved: Saved, trials: _Trials) -> Record | None:
    """The nearest value with which another plan wins; None within `LIMIT`, or where the winner has lost already."""
    if trials.margin(1.0) < 0:
        return None
    found = [factor for factor in (_nearest(trials, LIMIT), _nearest(trials, 1 / LIMIT)) if factor is not None]
    if not found:
        return None
    factor = min(found, key=lambda f: abs(math.log(f)))
    steps = trials.step_s(factor)
    rival = int(np.argmin(steps[1:])) + 1
    value = trials.value(factor)
    return {
        "value": value,
        "change_fraction": value / trials.value(1.0) - 1,
        "rank": saved.ranked[rival]["rank"],
        "id": saved.ranked[rival]["id"],
        "step_time_s": float(steps[rival]),
        "winner_step_time_s": float(steps[0]) if math.isfinite(steps[0]) else None,
    }


def _nearest(trials: _Trials, limit: float) -> float | None:
    """The factor towards a limit from which on the winner has lost."""
    kept = 1.0
    for factor in trials.factors(limit):
        if trials.margin(factor) < 0:
            return _closed_in(trials, kept, factor)
        kept = factor
    return None


def _closed_in(trials: _Trials, kept: float, lost: float) -> float:
    """The lost end of the narrow range in which the winner changes.

    Args:
        trials: prices.
        kept: a factor with which the winner stays.
        lost: one with which it does not.
    """
    for step in range(STEPS):
        if abs(math.log(lost / kept)) <= NEAR:
            break
        safe, gone = trials.margin(kept), trials.margin(lost)
        share = safe / (safe - gone) if step % 3 < 2 and abs(gone) < 1 else 0.5
        share = min(max(share, 0.02), 0.98)
        middle = kept * (lost / kept) ** share
        kept, lost = (kept, middle) if trials.margin(middle) < 0 else (middle, lost)
    return lost
