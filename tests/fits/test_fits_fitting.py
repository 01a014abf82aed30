"""Known factors are found again; a source that is left out, or odd, has no say."""

import math

import numpy as np
import pytest

from shardwright.planner.fits.fitting import Deviation, fit_factors

NAMES = ("streams", "attention")
TRUE = (1.15, 0.95)


def runs(sources=12, each=8, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for source in range(sources):
        for _ in range(each):
            slope = rng.uniform(0.0, 1.0, 2)
            log = -float(slope @ np.log(TRUE)) + noise * rng.normal()
            made.append(Deviation(source=f"s{source}", log_ratio=log, slope=tuple(slope.tolist())))
    return made


def test_known_factors_are_recovered():
    found = fit_factors(runs(), NAMES)
    assert [found[name] for name in NAMES] == pytest.approx(TRUE, abs=0.02)


def test_noise_averages_out():
    found = fit_factors(runs(sources=30, noise=0.05), NAMES)
    assert [found[name] for name in NAMES] == pytest.approx(TRUE, abs=0.04)


def test_the_source_left_out_has_no_say():
    made = runs(noise=0.02)
    spoilt = [Deviation(source=r.source, log_ratio=r.log_ratio + 3.0 * (r.source == "s3"), slope=r.slope) for r in made]
    assert fit_factors(made, NAMES, without="s3") == fit_factors(spoilt, NAMES, without="s3")
    assert fit_factors(made, NAMES) != fit_factors(spoilt, NAMES)


def test_an_odd_source_moves_little():
    made = runs()
    odd = [Deviation(source=r.source, log_ratio=r.log_ratio - 0.6 * (r.source == "s3"), slope=r.slope) for r in made]
    calm, moved = fit_factors(made, NAMES), fit_factors(odd, NAMES)
    assert all(abs(math.log(moved[name] / calm[name])) < 0.05 for name in NAMES)


def test_many_rows_of_a_source_count_as_a_few():
    small, large = runs(sources=1, each=400), runs(sources=1, each=4)
    both = [
        fit_factors([Deviation(source="a", log_ratio=-0.1, slope=(1.0, 0.0))] * len(some), NAMES) for some in (small, large)
    ]
    assert both[0] == pytest.approx(both[1])


def test_factors_nothing_speaks_of_stay_at_their_prior():
    found = fit_factors([Deviation(source="a", log_ratio=0.2, slope=(0.0, 1.0))], NAMES)
    assert found["streams"] == 1.0
    assert 0.8 < found["attention"] < 1.0
    assert fit_factors([], NAMES) == dict.fromkeys(NAMES, 1.0)
    assert fit_factors(runs(), ()) == {}
