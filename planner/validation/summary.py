"""SUMMARY of a source group and of all groups: errors, memory, ranking, intervals.

    group     median, mean, p90 of |error|; bias = median error; over the rows that count       `group_summary`
    total     mean over the groups that count any row, so that large sources do not swamp it     `total_summary`

Plans are ranked within what one user would choose from: the plans of one job (`jobs`). Runs of one plan are one plan, whose
measured time is their mean, and a job of one plan ranks nothing.
`oom_called` is the share of out-of-memory runs predicted not to fit, `ran_refused` the share of runs that ran
and are predicted not to fit, `interval_coverage` the share of measured times inside the printed interval, `interval_width` its
width over the prediction. `broken_down` sums up the rows of one label (a generation of devices, a precision) the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.planner.validation.labels import ordered
from shardwright.planner.validation.statistics import kendall_tau, mean, median, quantile, regret

AVERAGED = (
    "median", "mean", "p90", "bias", "memory_median", "memory_p90", "oom_called", "ran_refused", "tau", "regret",
    "interval_coverage", "interval_width",
)  # fmt: skip
COUNTED = ("rows", "scored", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row of the result.

    Attributes:
        source_group: whose rows it is averaged with.
        choice: what plans it competes with; equal for plans of one job.
        plan: which of them it is; equal for runs of one plan.
        scored: whether it counts in averages.
        skipped_because: why it was not priced, or None.
        ran: whether the run ran (False: out of memory).
        measured_s, predicted_s: step times; None where there is none.
        low_s, high_s: printed interval.
        measured_gib, predicted_gib: peaks in the row's meter.
        fits: whether the plan is predicted to fit; None where it was not priced.
        labels: what it is, by the ways of `labels`; empty where it was not read.
    """

    source_group: str
    choice: Hashable
    scored: bool
    plan: Hashable = None
    skipped_because: str | None = None
    ran: bool = True
    measured_s: float | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    measured_gib: float | None = None
    predicted_gib: float | None = None
    fits: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """Relative error of the step time: predicted / measured - 1."""
        if not self.ran or self.measured_s is None or self.predicted_s is None:
            return None
        return self.predicted_s / self.measured_s - 1.0

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak: predicted / measured - 1."""
        if not self.ran or self.measured_gib is None or self.predicted_gib is None:
            return None
        return self.predicted_gib / self.measured_gib - 1.0

    @property
    def covered(self) -> bool | None:
        """Whether the measured time lies in the interval."""
        if self.error is None or self.measured_s is None or self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def width(self) -> float | None:
        """Width of the interval over the prediction, where its coverage is judged."""
        if self.covered is None or self.predicted_s is None or self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / self.predicted_s


def group_summary(outcomes: Sequence[Outcome], *, counts: bool = True) -> dict[str, Any]:
    """SUMMARY of one source group.

    Args:
        outcomes: its rows.
        counts: False for a group that is reported and not scored: its figures are over all priced rows.
    """
    used = [o for o in outcomes if o.skipped_because is None and (o.scored or not counts)]
    errors = [o.error for o in used if o.error is not None]
    memory = [abs(o.memory_error) for o in used if o.memory_error is not None]
    sizes = [abs(error) for error in errors]
    return {
        "rows": len(outcomes),
        "scored": len(errors) if counts else 0,
        "skipped": sum(o.skipped_because is not None for o in outcomes),
        "median": median(sizes),
        "mean": mean(sizes),
        "p90": quantile(sizes, 0.9),
        "bias": median(errors),
        "memory_median": median(memory),
        "memory_p90": quantile(memory, 0.9),
        "oom_called": mean([float(not o.fits) for o in used if not o.ran and o.fits is not None]),
        "ran_refused": mean([float(not o.fits) for o in used if o.ran and o.fits is not None]),
        **_ranking(used),
        "interval_coverage": mean([float(o.covered) for o in used if o.covered is not None]),
        "interval_width": mean([o.width for o in used if o.width is not None]),
        "groups": int(counts and bool(errors)),
    }


def total_summary(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """SUMMARY over groups: counts added up, figures averaged over the groups that score a row and state the figure."""
    scoring = [group for group in groups.values() if group["scored"]]
    total: dict[str, Any] = {key: sum(group[key] for group in groups.values()) for key in COUNTED}
    for key in AVERAGED:
        total[key] = mean([group[key] for group in scoring if group[key] is not None])
    return total | {"jobs_ranked": sum(group["jobs_ranked"] for group in scoring), "groups": len(scoring)}


def broken_down(outcomes: Sequence[Outcome], way: str, unscored: Collection[str]) -> dict[str, dict[str, Any]]:
    """SUMMARY of each label, averaged over source groups as the total is.

    Args:
        outcomes: all rows; those that were not read have no label and are left out.
        way: which of their labels.
        unscored: source groups that are reported and not averaged: they count no row here.
    """
    found: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        if way in outcome.labels:
            found[outcome.labels[way]][outcome.source_group].append(outcome)
    return {
        label: total_summary({name: group_summary(rows, counts=name not in unscored) for name, rows in found[label].items()})
        for label in ordered(way, found)
    }


def _ranking(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Mean tau and regret over the jobs of which two plans or more were measured and priced, and the number of these jobs."""
    jobs: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        if outcome.error is not None and outcome.predicted_s is not None and outcome.measured_s is not None:
            jobs[outcome.choice][outcome.plan].append((outcome.predicted_s, outcome.measured_s))
    pairs = [_means(plans.values()) for plans in jobs.values() if len(plans) > 1]
    taus = [kendall_tau(predicted, measured) for predicted, measured in pairs]
    regrets = [regret(predicted, measured) for predicted, measured in pairs]
    return {
        "tau": mean([t for t in taus if t is not None]),
        "regret": mean([r for r in regrets if r is not None]),
        "jobs_ranked": len(pairs),
    }


def _means(plans: Iterable[Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """Predicted and measured time of each plan, the mean of its runs."""
    means = [[sum(times) / len(runs) for times in zip(*runs, strict=True)] for runs in plans]
    return [predicted for predicted, _ in means], [measured for _, measured in means]
