"""Failures and checkpoints: published arithmetic, limits, and what a run of that size was published to reach."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.hardware.reliability import (
    PUBLISHED,
    Operation,
    daly_interval_s,
    goodput,
    mtti_s,
    young_interval_s,
)

DAY = 86_400.0
SECONDS = st.floats(1.0, 5_000.0)
MEANS = st.floats(3_600.0, 1e7)


def test_young_and_daly_by_hand():
    # δ = 300 s, M = 24 h: √(2·300·86400) = 7200; δ/2M = 1/576, its root 1/24: 7200·(1 + 1/72 + 1/5184) − 300
    assert young_interval_s(300, DAY) == pytest.approx(7200.0)
    assert daly_interval_s(300, DAY) == pytest.approx(7200 * (1 + 1 / 72 + 1 / 5184) - 300)
    assert daly_interval_s(200, 100) == 100  # a checkpoint longer than twice the time between failures


def test_goodput_by_hand():
    # M = 1000, R = 100, τ = 90, δ = 10: 90 / (1000·e^0.1·(e^0.1 − 1))
    assert goodput(90, 10, 100, 1000) == pytest.approx(90 / (1000 * math.exp(0.1) * (math.exp(0.1) - 1)))
    assert goodput(math.inf, 10, 100, math.inf) == 1.0
    assert goodput(0.0, 0.0, 100, 1000) == pytest.approx(math.exp(-0.1))
    assert goodput(1.0, 0.0, 1e9, 1.0) == 0.0


def test_the_published_rates():
    rates = {run.name: run.per_gpu_hour for run in PUBLISHED}
    assert rates["Llama 3 405B"] == pytest.approx(1.97e-5, rel=2e-3)
    assert rates["Crusoe H200"] == pytest.approx(4.39e-5, rel=2e-3)
    assert rates["OPT-175B"] == pytest.approx(1.344e-4, rel=2e-3)
    assert mtti_s(rates["Llama 3 405B"], 16_384) / 3600 == pytest.approx(54 * 24 / 419)


def test_a_run_of_the_size_of_llama_3_reaches_what_was_published():
    outlook = Operation().outlook(16_384, 405e9 * 14)
    assert outlook.mtti_high_s / 3600 == pytest.approx(3.09, abs=0.01)
    assert outlook.fraction_low < outlook.fraction < outlook.fraction_high
    at_its_rate = replace(Operation(), interruptions_per_gpu_hour=PUBLISHED[0].per_gpu_hour).outlook(16_384, 405e9 * 14)
    assert at_its_rate.fraction > 0.90  # "over 90 % effective training time"


@given(SECONDS, MEANS, st.floats(0.0, 3_000.0))
def test_daly_is_close_to_the_best_interval(checkpoint_s, mean_s, restart_s):
    best = max(goodput(checkpoint_s * 1.05**n, checkpoint_s, restart_s, mean_s) for n in range(1, 400))
    assert goodput(daly_interval_s(checkpoint_s, mean_s), checkpoint_s, restart_s, mean_s) >= best * 0.98


@given(st.integers(1, 100_000), st.floats(1e9, 1e14))
def test_more_gpus_or_a_larger_checkpoint_never_keep_more(gpus, size):
    small, more, larger = (Operation().outlook(*ask) for ask in ((gpus, size), (2 * gpus, 2 * size), (gpus, 2 * size)))
    for other in (more, larger):  # twice the GPUs write twice the bytes in the same time
        assert other.fraction <= small.fraction <= 1
        assert other.fraction_low <= small.fraction_low


@given(st.floats(0.0, 1e-3), st.floats(0.0, 1e-3), st.integers(1, 20_000))
def test_more_failures_never_keep_more(one, other, gpus):
    low, high = (replace(Operation(), interruptions_per_gpu_hour=rate).outlook(gpus, 1e12) for rate in sorted((one, other)))
    assert high.fraction <= low.fraction + 1e-12


def test_without_failures_everything_counts():
    never = replace(Operation(), **{f"interruptions_per_gpu_hour{end}": 0.0 for end in ("", "_low", "_high")})
    assert never.outlook(1024, 1e12).fraction == 1.0


@pytest.mark.parametrize("wrong", [{"pue": 0.5}, {"restart_s": -1}, {"power_share": True}, {"checkpoint_exposed": math.nan}])
def test_figures_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidValueError):
        Operation.from_dict(wrong)


def test_unknown_figures_are_refused():
    with pytest.raises(UnknownNameError):
        Operation.from_dict({"restarts": 1})


def test_figures_are_read_back():
    some = replace(Operation(), pue=1.1, restart_s=60.0)
    assert Operation.from_dict(some.to_dict()) == some
