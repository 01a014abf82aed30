"""What tables say of memory: the meter that leads, plans with little to spare."""

import re

import pytest
import report_samples as samples

from shardwright.planner.report.output import render
from shardwright.planner.report.style import Style

GIB = 2**30


def table(record):
    return " ".join(render(record, "table", Style()).split())


def led_by(meter, memory):
    return memory | {"headline": {"meter": meter, "bytes": memory["meters"][f"{meter}_bytes"]}}


def tight(plan):
    memory = plan["memory"]
    return plan | {"memory": memory | {"peak_bytes": round(0.97 * memory["capacity_bytes"])}}


@pytest.mark.parametrize("meter", ["allocated", "reserved", "device"])
def test_the_meter_asked_for_leads_the_estimate(meter):
    record = samples.estimate()
    shown = table(record | {"memory": led_by(meter, record["memory"])})
    assert f"peak on stage 0: {record['memory']['meters'][f'{meter}_bytes'] / GIB:.1f} GiB" in shown


@pytest.mark.parametrize("meter", ["allocated", "reserved", "device"])
def test_the_meter_asked_for_fills_the_column_of_plans(meter):
    record = samples.plan_result()
    plans = [plan | {"memory": led_by(meter, plan["memory"])} for plan in record["plans"]]
    shown = table(record | {"plans": plans})
    for plan in plans:
        assert f" {plan['memory']['headline']['bytes'] / GIB:.1f}" in shown
    assert ("GiB: fullest rank" if meter == "device" else f"GiB: {meter} on the fullest rank") in shown


def test_a_first_plan_with_little_to_spare_is_said_with_the_first_that_has_more():
    record = samples.plan_result()
    first, *rest = record["plans"]
    shown = table(record | {"plans": [tight(first), *rest]})
    assert f"Rank 1 is one of them; the first that leaves more is rank {rest[0]['rank']}; --memory-margin 4" in shown
    every = table(record | {"plans": [tight(plan) for plan in record["plans"]]})
    assert "Rank 1 is one of them; --memory-margin 4 asks for plans that leave 4 GiB" in every


def test_later_plans_with_little_to_spare_are_marked_alone():
    record = samples.plan_result()
    first, second, *rest = record["plans"]
    shown = table(record | {"plans": [first, tight(second), *rest]})
    assert re.search(r"\d!", shown)
    assert "Rank 1 is one of them" not in shown
