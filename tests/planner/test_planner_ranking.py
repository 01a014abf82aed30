"""The order of plans: ties, simplicity, time, and the best that is told whatever its rank."""

import numpy as np
import planner_problems as problems
import pytest

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.planner.problem import PricingOptions
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.ranking import UNLAUNCHABLE, families, launchable, ranked, simplicity
from shardwright.planner.search.run import plan

NAMES = ("dense-7", "dense-8", "moe-16", "moe-96", "dense-1000")


def order_of(name, top=200, tie=0.01):
    made = problems.scan_of(name)
    rows, groups = ranked(problems.problem_of(name), made, top, tie)
    return made, rows, groups


@pytest.mark.parametrize("tie", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("name", NAMES)
def test_plans_come_by_group_then_simplicity_then_time(name, tie):
    made, rows, groups = order_of(name, tie=tie)
    simple = simplicity(problems.problem_of(name), made, rows)
    keys = list(zip(groups, simple, made.step_s[rows], strict=True))
    assert keys == sorted(keys)
    assert groups[0] == 1
    assert set(np.diff(groups)) <= {0, 1}
    assert made.fits[rows].all()
    assert len(set(rows.tolist())) == len(rows)


@pytest.mark.parametrize("tie", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("name", NAMES)
def test_groups_reach_as_far_as_the_tie_and_do_not_overlap(name, tie):
    made, rows, groups = order_of(name, tie=tie)
    able = launchable(problems.problem_of(name), made, np.arange(len(made.batch)))
    best = made.step_s[made.fits & able].min()
    first = made.step_s[rows[groups == 1]]
    assert (first <= best * (1 + tie) * (1 + 1e-12)).all()
    for group in range(2, int(groups[-1]) + 1):
        members, earlier = made.step_s[rows[groups == group]], made.step_s[rows[groups < group]]
        if members.size:
            assert members.max() <= members.min() * (1 + tie) * (1 + 1e-12) or tie == 0
            assert members.min() > earlier.max()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_fits_and_is_faster_is_left_out(name):
    """Every candidate as fast as one of a group shown whole is of a family that is shown."""
    made, rows, groups = order_of(name, top=10)
    family = families(made)
    shown = {int(family[row]) for row in rows}
    assert len(shown) == len(rows)
    whole = rows[groups < groups[-1]]
    if whole.size:
        faster = np.flatnonzero(made.fits & (made.step_s <= made.step_s[whole].max()))
        assert {int(f) for f in family[faster]} <= shown


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_that_nobody_can_launch_is_not_first(name):
    made, rows, _ = order_of(name)
    able = launchable(problems.problem_of(name), made, rows)
    assert able[0]
    assert (simplicity(problems.problem_of(name), made, rows)[~able] >= UNLAUNCHABLE).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_first_plan_is_the_simplest_of_all_that_tie(name):
    problem, (made, rows, _) = problems.problem_of(name), order_of(name)
    able = launchable(problem, made, np.arange(len(made.batch)))
    best = made.step_s[made.fits & able].min()
    tied = np.flatnonzero(made.fits & (made.step_s <= best * 1.01))
    simple = simplicity(problem, made, tied)
    least = simple.min()
    assert simplicity(problem, made, rows[:1])[0] == least
    assert made.step_s[rows[0]] == made.step_s[tied[simple == least]].min()


def result_of(name, **search):
    model, cluster, seq_len, batch = problems.CASES[name]
    options = PricingOptions(framework=search.pop("framework", "any"))
    return plan(model, cluster, seq_len=seq_len, global_batch=batch, options=options, search=SearchOptions(**search)).data


@pytest.mark.parametrize("framework", ["megatron", "pytorch"])
@pytest.mark.parametrize("name", ["dense-8", "moe-16"])
def test_without_ties_only_time_counts(name, framework):
    data = result_of(name, tie_percent=0, top=30, framework=framework)
    steps = [record["predicted"]["step_time_s"] for record in data["plans"]]
    assert steps == sorted(steps)
    assert steps[0] == pytest.approx(data["search"]["best_step_time_s"], rel=1e-12)


@pytest.mark.parametrize("name", ["dense-7", "dense-8", "moe-16", "dense-1000"])
def test_the_best_step_is_the_least_of_all_that_fit_whatever_its_rank(name):
    made, data = problems.scan_of(name), result_of(name)
    search = data["search"]
    fitting = np.flatnonzero(made.fits)
    exact = problems.priced(problems.problem_of(name), made.batch.take(fitting), made.splits, exact=True).step_s
    assert result_of(name, effort="scan")["search"]["best_step_time_s"] == pytest.approx(exact.min(), rel=1e-12)
    assert search["best_step_time_s"] <= exact.min() * (1 + 1e-12)
    assert search["lower_bound_step_time_s"] <= search["best_step_time_s"]
    assert search["fits"] == int(made.fits.sum())
    assert search["priced"] == len(made.batch)
    assert search["candidates"] == sum(search["rejected"].values()) + search["pruned_by_bound"] + search["priced"]
    assert all(r["predicted"]["step_time_s"] >= search["best_step_time_s"] * (1 - 1e-9) for r in data["plans"])


@pytest.mark.parametrize("name", ["dense-8", "moe-16"])
def test_shown_plans_are_numbered_named_apart_and_feasible(name):
    data = result_of(name, top=25)
    assert [record["rank"] for record in data["plans"]] == list(range(1, 26))
    assert len({record["id"] for record in data["plans"]}) == 25
    assert all(record["feasible"] and record["violations"] == [] for record in data["plans"])
    mesh = ("tp", "sequence_parallel", "cp", "pp", "ep", "etp", "micro_batch")
    assert len({tuple(record["parallel"][name] for name in mesh) for record in data["plans"]}) == 25


def test_fewer_plans_are_the_first_of_more():
    few, many = (result_of("dense-8", top=count)["plans"] for count in (3, 12))
    assert [record["id"] for record in few] == [record["id"] for record in many[:3]]


@pytest.mark.parametrize("effort", ["scan", "search", "prove"])
def test_every_effort_accounts_for_all_candidates(effort):
    search = result_of("dense-8", effort=effort)["search"]
    assert search["candidates"] == sum(search["rejected"].values()) + search["pruned_by_bound"] + search["priced"]
    assert 0 <= search["gap"] <= 1
    assert search["proven_optimal"] == (search["gap"] <= 1e-4)
    if effort == "scan":
        assert search["pruned_by_bound"] == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"top": 0}, InvalidValueError),
        ({"tie_percent": 3.5}, InvalidValueError),
        ({"tie_percent": -1}, InvalidValueError),
        ({"workers": 0}, InvalidValueError),
        ({"effort": "most"}, UnknownNameError),
    ],
)
def test_options_out_of_range_are_refused(options, error):
    with pytest.raises(error, match=r".") as caught:
        result_of("dense-8", **options)
    assert caught.value.hint
