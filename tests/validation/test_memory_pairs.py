"""Plans of measured runs are refused on a device smaller than their peak and accepted on a larger one."""

import pytest
from memory_rows import LARGER, SMALLER, pairs, peaks

SHARE = 0.9
"""Pairs of which both verdicts hold at least."""


@pytest.fixture(scope="module")
def found(reference_data):
    return peaks(reference_data / "ground_truth" / "measured_runs.csv")


def test_complete_runs_are_refused_below_their_peak_and_accepted_above(found):
    made = pairs(found)
    assert len(made) > 50
    assert sum(p.refused and p.accepted for p in made) >= SHARE * len(made)


def test_pairs_say_what_errors_say(found):
    errors = {p.row.id: p.error for p in found}
    for pair in pairs(found):
        error = errors[pair.row.id]
        if abs(error + 1 - SMALLER) > 0.002:
            assert pair.refused == (error > SMALLER - 1)
        if abs(error + 1 - LARGER) > 0.002:
            assert pair.accepted == (error < LARGER - 1)


def test_complete_runs_are_predicted_as_well_as_documented(found):
    errors = sorted(abs(p.error) for p in found if p.error is not None and p.row.config_complete == "yes")
    assert errors[len(errors) // 2] < 0.05
    assert errors[int(0.9 * len(errors))] < 0.12
