"""Factors change the fields they name and nothing else, can be taken back, and stay in saved files."""

from dataclasses import fields

import pytest
from fits_problems import SET, problem
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.hardware.kernel_fits import load_fit
from shardwright.planner.estimation import estimate_plan, estimate_problem, step_time_s
from shardwright.planner.fits.applying import with_fits
from shardwright.planner.fits.factors import FACTORS, NOTHING_FITTED, Fits
from shardwright.planner.fits.shipped import MOST_FACTORS, shipped, shipped_data
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.listings import listing
from shardwright.planner.stacks import load_stack, stack_ids

PLAN = Degrees(tp=2, micro_batch=1)
SHIPPED = {name: row["value"] for name, row in shipped_data()["factors"].items()}


def step(made, **more):
    return estimate_problem(made, Degrees(tp=2, micro_batch=1, **more)).data["predicted"]["step_time_s"]


@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_changes_the_fields_it_names_alone(name):
    factor, stack = FACTORS[name], load_stack("torchtitan")
    record = stack if factor.stack else load_fit("h100")
    changed = factor.on(record, 1.5)
    assert {f.name for f in fields(record) if getattr(record, f.name) != getattr(changed, f.name)} <= set(factor.fields)
    assert factor.on(record, 1.0) == record


@pytest.mark.parametrize("name", FACTORS)
def test_above_one_is_never_faster(name):
    factor = FACTORS[name]
    made = problem(NOTHING_FITTED, precision="fp8-tensorwise" if factor.keys else "bf16")
    assert step_time_s(with_fits(made, Fits(values={name: 1.3})), PLAN) >= step_time_s(made, PLAN)


def test_generations_and_families_are_told_apart():
    megatron, native = load_stack("megatron-core"), load_stack("torchtitan")
    assert FACTORS["products.hopper"].holds_for("hopper", megatron)
    assert not FACTORS["products.hopper"].holds_for("ampere", megatron)
    assert FACTORS["products.native"].holds_for("ampere", native)
    assert not FACTORS["products.native"].holds_for("ampere", megatron)
    low = Fits(values={"products.below_16_bits": 0.9})
    assert low.in_force(["hopper"], native, "bf16") == {}
    assert low.in_force(["hopper"], native, "fp8-tensorwise") == low.values


def test_shares_stay_shares():
    for stack_id in stack_ids():
        changed = Fits(values={"exposed.tp": 9.0, "exposed.dp": 9.0, "fsdp": 9.0}).stack(load_stack(stack_id))
        assert max(changed.tp_exposed, changed.dp_exposed_floor, changed.fsdp_interference) <= 1.0


@given(st.sampled_from(sorted(FACTORS)), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_quotients_lead_from_one_set_to_another(name, first, second):
    base = load_stack("pytorch-fsdp2") if FACTORS[name].stack else load_fit("b200")
    one, other = Fits(values={name: first}), Fits(values={name: second})
    if FACTORS[name].most == float("inf"):
        there = FACTORS[name].on(FACTORS[name].on(base, first), other.over(one).values[name])
        for field in FACTORS[name].fields:
            wanted, found = getattr(FACTORS[name].on(base, second), field), getattr(there, field)
            assert found == pytest.approx(wanted)


def test_a_problem_is_priced_with_its_factors():
    plain, fitted = problem(NOTHING_FITTED), problem(SET)
    assert fitted.stack.host_s_per_kernel == pytest.approx(1.2 * plain.stack.host_s_per_kernel)
    assert fitted.kernels.memory_fraction == pytest.approx(plain.kernels.memory_fraction / 1.25)
    assert step(fitted) > step(plain)
    assert step(with_fits(plain, SET)) == step(fitted)


def test_a_saved_plan_keeps_its_factors_and_can_be_asked_without():
    plain, fitted = problem(NOTHING_FITTED), problem(Fits(name="t", source="t", values={"streams": 1.25, "host": 1.2}))
    saved = estimate_problem(fitted, PLAN).data
    assert estimate_plan(saved).data["predicted"] == saved["predicted"]
    without = PricingOptions(overrides=("fit.streams=1", "fit.host=1"))
    again = estimate_plan(saved, options=without).data
    assert again["predicted"]["step_time_s"] == pytest.approx(step(plain), rel=1e-12)
    assert {a["origin"] for a in again["assumptions"] if a["key"].startswith("fit.")} == {"given"}


def test_files_from_before_fits_are_priced_as_they_were():
    saved = estimate_problem(problem(NOTHING_FITTED), PLAN).data
    assert "fits" not in saved["inputs"]["calibration"]["inline"]
    assert estimate_plan(saved).data["predicted"] == saved["predicted"]


def test_a_statement_sets_a_factor():
    assert problem(SET, overrides=("fit.streams=1",)).kernels.memory_fraction == load_fit("h100").memory_fraction
    stated = problem(SET, overrides=("stack.host_s_per_kernel=1e-5",))
    assert stated.stack.host_s_per_kernel == 1e-5


def test_results_name_what_is_fitted():
    data = estimate_problem(problem(SET), PLAN).data
    shown = {a["key"]: a["value"] for a in data["assumptions"] if a["key"].startswith("fit.")}
    assert shown == {f"fit.{name}": value for name, value in SET.values.items()}
    assert data["sources"]["fit.streams"] == {
        "origin": "transferred",
        "source": "memory-bound kernels and the optimizer x 1.25: made up",
    }


@pytest.mark.parametrize(
    ("statement", "error"),
    [("fit.nothing=1", UnknownNameError), ("fit.streams=fast", InvalidValueError), ("fit.streams=1000", InvalidValueError)],
)
def test_what_cannot_be_a_factor_is_refused(statement, error):
    with pytest.raises(error, match="fit"):
        problem(NOTHING_FITTED, overrides=(statement,))


def test_the_shipped_set_is_small_and_says_where_it_comes_from():
    data = shipped_data()
    assert len(shipped().values) <= MOST_FACTORS
    assert set(shipped().values) <= set(FACTORS)
    for row in data["factors"].values():
        assert row["left_out_least"] <= row["value"] <= row["left_out_most"]
        assert row["prior_spread"] > 0


def test_what_ships_is_listed():
    items = listing("fits")["items"]
    assert {item["id"]: item["value"] for item in items} == dict(shipped().values)
    one = listing("fits", items[0]["id"])["item"]
    assert one["fitted_to"]["runs"] > 0
    assert set(one["errors"]) >= {"none", "in_sample", "left_out"}
    with pytest.raises(UnknownNameError, match="fit"):
        listing("fits", "nothing")


@pytest.mark.parametrize("name", FACTORS)
def test_every_factor_that_can_be_set_can_be_shown(name):
    shown = listing("fits", name)["item"]
    assert shown["value"] == SHIPPED.get(name, 1.0)
    assert (shown["fitted_to"] is None) == (name not in SHIPPED)
