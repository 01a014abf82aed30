"""Which plans to measure: chances add up, alike plans earn nothing twice, and the same draws every time."""

from itertools import combinations

import numpy as np
import pytest
from planner_problems import legal_of, problem_of, scan_of

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.finalists import settled
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan, plan_problem
from shardwright.planner.search.trials import (
    AXES,
    DRAWS,
    VARIANCES,
    Chances,
    chances_of,
    choose_trials,
    distance,
    drawn,
    values,
    values_of,
)

JOB = {"seq_len": 4096, "global_batch": 32}


def some_plans(count, seed=3):
    """Random plans: seconds ascending, and what they have on each axis."""
    random = np.random.default_rng(seed)
    rows = np.stack(
        [2 ** random.integers(0, 4, count) if axis in AXES[:7] else random.integers(0, 3, count) for axis in AXES], 1
    )
    rows = np.unique(rows, axis=0)
    return np.sort(random.uniform(1.0, 1.2, len(rows))), rows


def test_the_chance_grows_with_every_trial_and_is_one_with_all():
    seconds, rows = some_plans(40)
    whole = chances_of(seconds, rows, len(rows))
    assert np.all(whole.probability > 0)
    assert np.all(np.diff(whole.probability) <= 0)
    assert whole.probability.sum() == 1.0
    assert whole.loss[-1] == 0.0
    assert np.all(np.diff(whole.loss) <= 0)
    for count in (1, 2, 7):
        some = chances_of(seconds, rows, count)
        assert np.array_equal(some.chosen, whole.chosen[:count])
        assert np.array_equal(some.loss, whole.loss[:count])


def test_the_greedy_choice_is_the_best_set_of_its_size():
    seconds, rows = some_plans(9)
    fastest = drawn(seconds, rows).argmin(axis=1)
    made = chances_of(seconds, rows, 3)
    best = max(np.isin(fastest, group).mean() for group in combinations(range(len(rows)), 3))
    assert made.probability.sum() == pytest.approx(best, abs=1e-12)


def test_like_plans_earn_nothing_twice():
    seconds, rows = some_plans(12)
    twice = np.repeat(np.arange(len(rows)), 2)
    once, doubled = chances_of(seconds, rows, 100), chances_of(seconds[twice], rows[twice], 100)
    assert np.array_equal(doubled.chosen, 2 * once.chosen)
    assert np.array_equal(doubled.probability, once.probability)


def test_a_plan_that_errs_as_a_faster_one_is_never_tried():
    rows = np.ones((3, len(AXES)), dtype=np.int64)
    rows[2, 0] = 8
    made = chances_of(np.array([1.0, 1.001, 1.05]), rows, 3)
    assert made.chosen.tolist() == [0, 2]


def test_draws_have_the_stated_spread():
    rows = np.ones((4, len(AXES)), dtype=np.int64)
    rows[1, AXES.index("tp")] = 8
    rows[2, AXES.index("micro_batch")], rows[2, AXES.index("recompute")] = 2, 3
    rows[3, AXES.index("tp")] = 2
    true = drawn(np.ones(4), rows)
    said = [3 * VARIANCES["tp"], VARIANCES["micro_batch"] + VARIANCES["recompute"], VARIANCES["tp"]]
    assert np.var(true[:, 1:] - true[:, :1], axis=0) == pytest.approx(said, rel=0.05)
    assert np.var(true[:, 1] - true[:, 3]) == pytest.approx(2 * VARIANCES["tp"], rel=0.05)
    assert len(true) == DRAWS


def test_distances_are_doublings_or_choices():
    assert distance("tp", 2, 16) == distance("tp", 16, 2) == 3.0
    assert distance("schedule", "1f1b", "gpipe") == distance("schedule", "1f1b", "zb-v") == 1.0
    assert distance("sharding", (1, False), (1, False)) == 0.0


def test_without_candidates_nothing_is_chosen():
    made = chances_of(np.zeros(0), np.zeros((0, len(AXES)), dtype=np.int64), 3)
    assert isinstance(made, Chances)
    assert len(made.chosen) == len(made.probability) == len(made.loss) == 0


@pytest.mark.parametrize("name", ["dense-8", "moe-16"])
def test_candidates_differ_and_are_priced_as_estimate_does(name):
    problem = problem_of(name)
    made, shown, _ = settled(scan_of(name), problem, 5, 0.01)
    trials = choose_trials(problem, made, shown, 4)
    table = values(trials.made.batch.take(trials.rows))
    assert len(np.unique(table, axis=0)) == len(table) <= 300
    assert trials.made.exact[trials.rows].all()
    assert trials.made.fits[trials.rows].all()
    assert np.all(np.diff(trials.made.step_s[trials.rows]) >= 0)
    assert len(legal_of(name)) > len(table)
    held = [tuple(row) for row in table]
    for row in values(made.batch.take(shown)):
        assert tuple(row) in held


def test_records_and_columns_say_the_same():
    data = plan("llama3.1-8b", "dgx-h100:1", **JOB, search=SearchOptions(effort="scan", trials=6)).data
    seen = [values_of(trial["parallel"]) for trial in data["trials"]["plans"]]
    assert len(set(seen)) == len(seen) == 6


def test_the_result_names_them():
    search = SearchOptions(effort="scan", trials=5, top=3)
    data = plan("llama3.1-8b", "dgx-h100:1", **JOB, search=search).data
    trials = data["trials"]
    sums = [trial["cumulative_probability"] for trial in trials["plans"]]
    assert sums == pytest.approx(np.cumsum([trial["probability"] for trial in trials["plans"]]), rel=1e-12)
    assert 0 < sums[0] < sums[-1] <= 1
    ids = {plan["id"]: plan["rank"] for plan in data["plans"]}
    assert [trial["rank"] for trial in trials["plans"]] == [ids.get(trial["id"]) for trial in trials["plans"]]
    assert 1 in [trial["rank"] for trial in trials["plans"]]


def test_workers_change_nothing():
    found = [
        plan("llama3.1-8b", "dgx-h100:1", **JOB, search=SearchOptions(trials=5, workers=workers)).data["trials"]
        for workers in (1, 2, 4)
    ]
    assert found[0] == found[1] == found[2]


def test_more_trials_than_plans_with_a_chance_are_not_named():
    fix = {"tp": "8", "cp": "1", "pp": "1", "micro_batch": "1", "recompute": "selective"}
    data = plan("llama3.1-8b", "dgx-h100:1", **JOB, search=SearchOptions(effort="scan", trials=100, fix=fix)).data
    trials = data["trials"]
    assert 1 <= len(trials["plans"]) <= trials["candidates"] < 100
    assert trials["plans"][-1]["cumulative_probability"] == 1.0
    assert trials["plans"][-1]["expected_loss"] == 0.0


def test_without_the_option_there_is_no_key():
    assert "trials" not in plan("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8, search=SearchOptions(effort="scan")).data


def test_where_nothing_fits_no_trial_is_named():
    search = SearchOptions(effort="scan", trials=2, remedies=False)
    data = plan("llama3.1-405b", "dgx-h100:1", seq_len=4096, global_batch=8, search=search).data
    assert data["trials"]["plans"] == []
    assert data["trials"]["candidates"] == 0
    assert data["trials"]["slowest_step_time_s"] is None


def test_wrong_requests_are_refused():
    with pytest.raises(InvalidValueError, match="101 trials"):
        plan("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8, search=SearchOptions(trials=101))
    problem = build_problem("gpt2", "dgx-h100:2", seq_len=1024, global_batch=16, options=PricingOptions(objective="cost"))
    with pytest.raises(ConflictError, match="same GPUs"):
        plan_problem(problem, search=SearchOptions(trials=2))
