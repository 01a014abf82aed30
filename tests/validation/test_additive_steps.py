"""Steps that were added up are told from steps that were run."""

import pytest
from additive_steps import departures
from rows import row


def times(seconds, **cells):
    return [row(global_batch=16 * 2**n, dp=4, step_time_s=t, **cells) for n, t in enumerate(seconds)]


def test_steps_added_up_lie_on_a_line():
    assert departures(times([1.5, 2.5, 4.5, 8.5])) == {"g": [pytest.approx(0.0, abs=1e-12)] * 2}


def test_steps_that_were_run_do_not():
    assert departures(times([1.5, 2.51, 4.5])) == {"g": [pytest.approx(1 - 2.5 / 2.51)]}
    assert departures(times([1.5, 2.51, 4.5]))["g"][0] > 1e-3


def test_other_plans_make_no_line():
    mixed = [*times([1.0, 2.0]), *times([9.0], tp=1)]
    assert departures(mixed) == {}


def test_a_run_again_counts_by_its_mean():
    assert departures([*times([1.0, 2.0, 4.0]), *times([1.0, 2.2], id="again")])["g"] == [pytest.approx(1 - 2 / 2.1)]


def test_published_steps_of_one_node_are_added_up(reference_data):
    """The rows that docs/accuracy.md says were not run whole."""
    from shardwright.planner.runs.table import read_runs

    found = departures(read_runs(reference_data / "ground_truth" / "vtrain_single_node.csv"))
    assert len(found["vtrain-s"]) > 30
    assert max(found["vtrain-s"]) < 1e-5
