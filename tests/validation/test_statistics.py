"""Ranking and error statistics against their definitions."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.planner.validation.statistics import kendall_tau, mean, median, quantile, regret
from shardwright.planner.validation.summary import Outcome, group_summary, total_summary

positive = st.floats(0.01, 100.0)
pairs = st.lists(st.tuples(positive, positive), min_size=2, max_size=12)


def test_nothing_is_none():
    assert mean([]) is None
    assert median([]) is None
    assert quantile([], 0.9) is None
    assert kendall_tau([], []) is None
    assert kendall_tau([1.0], [2.0]) is None
    assert regret([1.0], [2.0]) is None


def test_p90_is_interpolated():
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.9) == pytest.approx(3.7)
    assert median([1.0, 4.0]) == 2.5


def test_tau_of_known_rankings():
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert kendall_tau([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))
    assert kendall_tau([1, 1, 1], [1, 2, 3]) is None


@given(pairs)
def test_tau_counts_pairs(values):
    x, y = zip(*values, strict=True)
    signs = [((a > b) - (a < b)) * ((c > d) - (c < d)) for (a, c), (b, d) in itertools.combinations(values, 2)]
    nx = sum(a != b for a, b in itertools.combinations(x, 2))
    ny = sum(a != b for a, b in itertools.combinations(y, 2))
    expected = sum(signs) / math.sqrt(nx * ny) if nx and ny else None
    assert kendall_tau(x, y) == (None if expected is None else pytest.approx(expected))


def test_regret_is_what_the_first_choice_loses():
    assert regret([1.0, 2.0, 3.0], [12.0, 10.0, 20.0]) == pytest.approx(0.2)
    assert regret([2.0, 1.0, 3.0], [12.0, 10.0, 20.0]) == 0
    assert regret([1.0, 1.0], [10.0, 20.0]) == pytest.approx(0.5)


@given(pairs)
def test_regret_of_a_perfect_guess_is_zero_and_never_negative(values):
    guess, truth = zip(*values, strict=True)
    assert regret(truth, truth) == pytest.approx(0, abs=1e-12)
    assert regret(guess, truth) >= 0


def outcome(predicted, measured, **more):
    fields = {"source_group": "g", "choice": "c", "plan": "p", "scored": True, "predicted_s": predicted, "measured_s": measured}
    return Outcome(**{**fields, "low_s": predicted * 0.9, "high_s": predicted * 1.1, "fits": True, **more})


def test_group_summary():
    rows = [outcome(1.1, 1.0), outcome(1.8, 2.0, plan="q"), outcome(3.3, 3.0, choice="d"), outcome(9.0, 1.0, scored=False)]
    rows.append(Outcome(source_group="g", choice="c", scored=False, skipped_because="no shape"))
    rows.append(outcome(1.0, None, ran=False, fits=False))
    rows.append(outcome(1.0, None, measured_gib=10.0, predicted_gib=12.0, fits=False))
    found = group_summary(rows)
    assert (found["rows"], found["scored"], found["skipped"]) == (7, 3, 1)
    assert found["median"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.1)
    assert found["memory_median"] == pytest.approx(0.2)
    assert found["oom_called"] == 1.0
    assert found["ran_refused"] == pytest.approx(1 / 4)
    assert found["tau"] == 1.0
    assert found["regret"] == 0.0
    assert found["jobs_ranked"] == 1
    assert found["interval_coverage"] == pytest.approx(2 / 3)


def test_runs_of_one_plan_are_one_plan():
    again = [outcome(1.0, measured, plan="fast") for measured in (1.0, 1.4)]
    found = group_summary([*again, outcome(1.5, 1.1, plan="slow")])
    assert found["regret"] == pytest.approx(1.2 / 1.1 - 1)
    assert found["tau"] == -1.0
    assert group_summary([*again, outcome(1.5, 1.3, plan="slow")])["regret"] == 0.0


def test_a_job_of_one_plan_ranks_nothing():
    found = group_summary([outcome(1.0, 1.0), outcome(1.0, 1.4), outcome(2.0, 2.0, choice="d")])
    assert (found["tau"], found["regret"], found["jobs_ranked"]) == (None, None, 0)


def test_an_out_of_memory_run_has_no_error():
    assert outcome(1.0, 2.0, ran=False, measured_gib=1.0, predicted_gib=2.0).error is None
    assert outcome(1.0, 2.0, ran=False, measured_gib=1.0, predicted_gib=2.0).memory_error is None


def test_total_averages_groups_not_rows():
    many = group_summary([outcome(1.1, 1.0)] * 9)
    few = group_summary([outcome(1.5, 1.0)])
    unscored = group_summary([outcome(9.0, 1.0)], counts=False)
    total = total_summary({"many": many, "few": few, "unscored": unscored})
    assert total["median"] == pytest.approx(0.3)
    assert (total["rows"], total["scored"]) == (11, 10)
    assert unscored["scored"] == 0
    assert unscored["median"] == pytest.approx(8.0)
    assert total["memory_median"] is None
