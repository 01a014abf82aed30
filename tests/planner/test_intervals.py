"""Which kind of run a plan is, and that its interval is as wide as measured runs of that kind were off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DamagedFileError
from shardwright.hardware.calibration import Calibration
from shardwright.hardware.site_factors import SiteFactors
from shardwright.planner.description import predicted_record
from shardwright.planner.intervals import ALL, KINDS, Width, interval, kind_of, widths
from shardwright.planner.problem import PricingOptions, build_problem

BUSY = {"compute_s": 0.9, "exposed_dp_s": 0.05, "bubble_s": 0.05}
WAITS = {"compute_s": 0.7, "exposed_tp_s": 0.2, "exposed_dp_s": 0.1}


def problem(model="llama3.1-8b", node="dgx-h100:1", **options):
    return build_problem(model, node, seq_len=4096, global_batch=64, options=PricingOptions(**options))


@pytest.mark.parametrize(
    ("model", "node", "options", "time", "kind"),
    [
        ("llama3.1-8b", "dgx-h100:1", {}, BUSY, "dense"),
        ("llama3.1-8b", "dgx-h100:1", {}, WAITS, "exchange"),
        ("llama3.1-8b", "dgx-h100:1", {"lora": "rank=16"}, WAITS, "adapters"),
        ("gpt2", "dgx-h100:1", {"lora": "rank=16"}, BUSY, "small"),
        ("mixtral-8x7b", "dgx-h100:1", {}, WAITS, "routed"),
        ("llama3.1-8b", "mi300x-8:1", {}, BUSY, "transferred"),
    ],
)
def test_kinds(model, node, options, time, kind):
    assert kind_of(problem(model, node, **options), time) == kind


def test_every_kind_has_a_width_that_holds_the_prediction():
    found = widths()
    assert set(found) == {*KINDS, ALL}
    for kind, width in found.items():
        assert width.kind == kind
        assert 0.3 < width.low < 1 < width.high < 3
        assert width.runs >= 0
    assert found[ALL].runs == sum(width.runs for kind, width in found.items() if kind != ALL)


@given(share=st.floats(0.05, 0.99), step=st.floats(1e-3, 1e3))
def test_runs_of_the_site_narrow_both_sides_alike(share, step):
    site = Calibration(name="here", node=None, series=(), site=SiteFactors(interval_share=share))
    width = widths()["dense"]
    made = interval(problem(calibration=site), step, BUSY)
    assert made["step_time_low_s"] == pytest.approx(step * (1 - (1 - width.low) * share))
    assert made["step_time_high_s"] == pytest.approx(step * (1 + (width.high - 1) * share))
    assert made["step_time_low_s"] < step < made["step_time_high_s"]
    assert made["interval"]["site_share"] == share


def test_a_prediction_names_its_kind_and_the_runs_behind_it():
    record = predicted_record(problem("mixtral-8x7b"), 2.0, BUSY)
    routed = widths()["routed"]
    assert record["interval"] == {"kind": "routed", "runs": routed.runs, "sources": routed.sources, "site_share": 1.0}
    assert record["step_time_low_s"] == pytest.approx(2.0 * routed.low)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.2), (0.8, 1.0), (0.0, 1.2), (1.1, 1.3)])
def test_a_width_that_leaves_the_prediction_out_is_damage(low, high):
    with pytest.raises(DamagedFileError, match="does not hold"):
        Width(kind="dense", low=low, high=high, runs=1, sources=1)
