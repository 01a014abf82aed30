"""Predictions of published runs do not move unnoticed: their errors are those recorded in the same commit."""

import json

import pytest
from record_errors import KEYS, PLACE, errors_of

TOLERANCE = 0.003
"""Errors of a group may move by so much (0.3 points) before they have to be recorded anew."""


def moved(recorded, found):
    """Groups and figures that differ by more than the tolerance."""
    pairs = [(group, key, recorded[group][key], found.get(group, {}).get(key)) for group in recorded for key in KEYS]
    return [p for p in pairs if (p[2] is None) != (p[3] is None) or (p[2] is not None and abs(p[2] - p[3]) > TOLERANCE)]


def test_errors_of_published_runs_are_those_recorded(reference_data):
    recorded, found = (
        json.loads(PLACE.read_text(encoding="utf-8")),
        errors_of(reference_data / "ground_truth" / "measured_runs.csv"),
    )
    assert set(recorded) == set(found)
    assert moved(recorded, found) == [], "run benchmarks/record_errors.py and say in the commit why errors moved"


@pytest.mark.parametrize(("value", "noticed"), [(0.05, False), (0.0529, False), (0.0531, True), (None, True)])
def test_what_moves_is_noticed(value, noticed):
    recorded = {"g": dict.fromkeys(KEYS) | {"median": 0.05}}
    assert bool(moved(recorded, {"g": dict.fromkeys(KEYS) | {"median": value}})) is noticed


def test_the_record_holds_every_figure():
    recorded = json.loads(PLACE.read_text(encoding="utf-8"))
    assert all(set(group) == set(KEYS) for group in recorded.values())
    assert recorded["mean of groups"]["median"] < 0.12
