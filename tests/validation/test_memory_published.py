"""Every stage of runs whose whole configuration is published is predicted as well as documented."""

import pytest
from memory_published import CASES, errors, graph_of, reserved_errors

from shardwright.planner.validation.statistics import median, quantile

WORST, P90, MEDIAN = 0.025, 0.015, 0.005
DENSE = 0.006
"""Of models without experts."""


@pytest.fixture(scope="module")
def found():
    return errors(CASES)


def test_every_stage(found):
    assert len(found) == sum(len(case.allocated) for case in CASES)
    assert max(abs(error) for *_, error in found) < WORST


def test_every_stage_of_models_without_experts(found):
    dense = [error for case, _, _, error in found if case.degrees.ep == 1]
    assert len(dense) > 15
    assert max(map(abs, dense)) < DENSE


def test_all_of_them_together(found):
    size = [abs(error) for *_, error in found]
    assert median(size) < MEDIAN
    assert quantile(size, 0.9) < P90


def test_what_allocators_reserved():
    size = [abs(error) for error in reserved_errors(CASES)]
    assert median(size) < 0.03
    assert max(size) < 0.06


def test_the_fuller_stage_is_the_one_that_was_fuller(found):
    for case in CASES:
        made = [gib for other, _, gib, _ in found if other is case]
        assert made.index(max(made)) == case.allocated.index(max(case.allocated))


def test_models_are_those_of_the_runs():
    parameters = {case.model: graph_of(case).parameters for case in CASES}
    assert parameters["llama3-70b"] == pytest.approx(12.37e9, rel=0.001)
    assert parameters["deepseek-v2"] == pytest.approx(13.30e9, rel=0.001)
