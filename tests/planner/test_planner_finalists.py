"""The plans that are shown are priced exactly, and no plan of the space is faster than the best of them."""

import numpy as np
import planner_problems as problems
import pytest

from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search import finalists
from shardwright.planner.search.finalists import least_s, settled, with_exact
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import account, plan
from shardwright.planner.search.stages.dividing import divide

NAMES = ("dense-7", "dense-8-odd", "torch-8", "torch-moe-16")


@pytest.mark.parametrize("name", NAMES)
def test_the_best_is_the_best_of_all_plans_priced_exactly(name):
    problem, made = problems.problem_of(name), problems.scan_of(name)
    fitting = np.flatnonzero(made.fits)
    every = with_exact(made, fitting)
    found, rows, _ = settled(made, problem, 10, 0.01)
    assert found.step_s[fitting].min() == pytest.approx(every.step_s[fitting].min(), rel=1e-12)
    assert found.exact[rows].all()
    np.testing.assert_allclose(found.step_s[rows], every.step_s[rows], rtol=1e-12)
    assert (least_s(found)[fitting] <= every.step_s[fitting] * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", NAMES)
def test_shown_plans_carry_the_number_that_estimate_prints(name):
    problem, made = problems.problem_of(name), problems.scan_of(name)
    found, rows, _ = settled(made, problem, 6, 0.01)
    for row in rows:
        record = estimate_degrees(problem, problems.degrees_at(made, row))
        assert record["predicted"]["step_time_s"] == pytest.approx(found.step_s[row], rel=1e-9)


def test_what_is_left_unpriced_lowers_the_bound(monkeypatch):
    monkeypatch.setattr(finalists, "FIRST", 1)
    monkeypatch.setattr(finalists, "PROOF", 1)
    monkeypatch.setattr(finalists, "NEAR", 1)
    problem, made = problems.problem_of("moe-16"), problems.scan_of("moe-16")
    found, _, _ = settled(made, problem, 1, 0.0)
    division = divide(problem, problems.space_of("moe-16"), found, "scan")
    said = account(problems.space_of("moe-16"), problems.legal_of("moe-16"), division)
    assert said["lower_bound_step_time_s"] <= said["best_step_time_s"]
    assert said["gap"] == pytest.approx(1 - said["lower_bound_step_time_s"] / said["best_step_time_s"], abs=1e-12)
    assert said["proven_optimal"] == (said["gap"] <= 1e-4)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe-v", "gpipe", "1f1b", "interleaved-1f1b"])
def test_a_fixed_schedule_is_planned(schedule):
    search = SearchOptions(fix={"schedule": schedule, "pp": "4"}, top=3)
    options = PricingOptions(framework="pytorch")
    result = plan("llama3-8b", "dgx-h100:1", seq_len=1024, global_batch=32, options=options, search=search)
    assert result.exit_code == 0
    assert {p["parallel"]["schedule"] for p in result.plans} == {schedule}
    assert all("torchrun" in p["expressible_by"] for p in result.plans)
    assert result.data["search"]["gap"] <= 0.01


@pytest.mark.parametrize(
    ("framework", "schedules"),
    [
        ("megatron", {"1f1b", "interleaved-1f1b"}),
        ("deepspeed", {"1f1b"}),
        ("torchtitan", {"1f1b", "gpipe", "interleaved-1f1b", "zb-v", "dualpipe-v"}),
        ("pytorch", {"1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"}),
        ("any", {"1f1b", "interleaved-1f1b"}),
    ],
)
def test_the_search_tries_what_the_framework_has(framework, schedules):
    legal = problems.legal_of("dense-1000", framework)
    assert {SCHEDULE_IDS[index] for index in np.unique(legal.columns["schedule"])} <= schedules
    assert {"1f1b"} <= {SCHEDULE_IDS[index] for index in np.unique(legal.columns["schedule"])}
    piped = problems.legal_of("dense-8", framework)
    assert {SCHEDULE_IDS[index] for index in np.unique(piped.columns["schedule"])} == schedules
