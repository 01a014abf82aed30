"""Widths of intervals from measured runs: weights, fallbacks, and coverage of sources left out."""

import math

import numpy as np
import pytest
from interval_widths import (
    COVERAGE,
    LEAST_RUNS,
    NARROWEST,
    PRIOR_SOURCES,
    TAILS,
    Deviation,
    deviations,
    document,
    inside,
    judged,
    quantiles,
    tail_of,
    widths_of,
)

from shardwright.documents import parse_yaml, yaml_text
from shardwright.planner.intervals import ALL, KINDS, Width


def runs(source, *log_ratios, kind="dense"):
    return [Deviation(source=source, kind=kind, log_ratio=value) for value in log_ratios]


def spread(sources, kind="dense", scale=0.1, seed=1, many=40):
    random = np.random.default_rng(seed)
    return [run for i in range(sources) for run in runs(f"s{i}", *random.normal(0.0, scale, many), kind=kind)]


def test_quantiles_of_equal_weights_are_those_of_the_sample():
    values = np.linspace(-1, 1, 2001)
    ((low, high),) = quantiles(values, np.ones(2001), np.asarray([0.1]))
    assert (low, high) == (pytest.approx(-0.8, abs=1e-3), pytest.approx(0.8, abs=1e-3))


def test_every_source_weighs_the_same():
    few, many = runs("a", *[0.3] * 4), runs("b", *[-0.3] * 400)
    low, high = widths_of([*few, *many], np.asarray([0.4]))[ALL][0]
    assert low == pytest.approx(math.exp(-0.3))
    assert high == pytest.approx(math.exp(0.3))


def test_the_sides_may_differ():
    low, high = widths_of(runs("a", *np.linspace(-0.02, 0.5, 100)), np.asarray([0.1]))["dense"][0]
    assert low == 1 - NARROWEST
    assert high > 1.4


def test_a_kind_of_its_own_is_drawn_towards_all():
    wide, narrow = spread(6, "routed", 0.3, seed=2), spread(6, "dense", 0.05, seed=3)
    both = widths_of([*wide, *narrow], np.asarray([0.1]))
    alone = widths_of(wide, np.asarray([0.1]))["routed"]
    assert both["dense"][0, 1] < both[ALL][0, 1] < both["routed"][0, 1] < alone[0, 1]
    assert PRIOR_SOURCES > 0


@pytest.mark.parametrize(("sources", "many"), [(1, 40), (2, LEAST_RUNS // 2 - 1)])
def test_a_kind_of_one_source_or_few_runs_is_never_narrower_than_all(sources, many):
    rest = spread(8, "dense", 0.2)
    made = widths_of([*rest, *spread(sources, "routed", 0.01, many=many)])
    assert np.all(made["routed"][:, 0] <= made[ALL][:, 0])
    assert np.all(made["routed"][:, 1] >= made[ALL][:, 1])


def test_a_kind_nobody_saw_takes_the_width_of_all():
    made = widths_of(spread(3))
    assert np.array_equal(inside(runs("x", 0.0, kind="adapters"), made), inside(runs("x", 0.0, kind="none"), made))


def test_a_source_is_judged_by_the_others_alone():
    seen = spread(5)
    tame, wild = judged([*seen, *runs("new", 0.0, 0.0)])["new"], judged([*seen, *runs("new", 2.0, 2.0)])["new"]
    assert tame == (1.0, tame[1])
    assert wild == (0.0, tame[1])


def test_about_as_many_are_inside_as_asked_for():
    found = judged(spread(8, many=60))
    assert 0.72 < np.mean([held for held, _ in found.values()]) < 0.88


def test_tails_shrink_until_sources_left_out_are_covered():
    even, odd = (
        spread(6),
        [run for i in range(6) for run in runs(f"s{i}", *(0.1 * np.random.default_rng(i).normal(2 * i - 5, 1, 40)))],
    )
    assert TAILS[tail_of(odd)] < TAILS[tail_of(even)]
    assert TAILS[tail_of(even)] == pytest.approx((1 - COVERAGE) / 2, abs=0.025)


def test_only_scored_rows_count():
    rows = [
        {"source_group": "a", "interval_kind": "dense", "error": -0.5, "scored": True},
        {"source_group": "a", "interval_kind": None, "error": None, "scored": False},
    ]
    assert deviations(rows) == [Deviation(source="a", kind="dense", log_ratio=pytest.approx(math.log(2)))]


def test_the_document_is_what_predictions_read():
    made = parse_yaml(yaml_text(document([*spread(5), *spread(3, "routed", 0.3)], "2026-01-01")), "x").data
    found = {kind: Width(kind=kind, **entry) for kind, entry in made["kinds"].items()}
    assert set(found) == {ALL, *KINDS}
    assert (found["dense"].runs, found["routed"].sources, found["small"].runs) == (200, 3, 0)
    assert found["small"].low == found[ALL].low
    assert set(made["left_out"]["sources"]) == {f"s{i}" for i in range(5)}
