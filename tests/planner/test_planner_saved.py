"""Files that earlier versions wrote are read: fields that came since then have the value they stood for."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from shardwright.errors import DamagedFileError
from shardwright.planner.estimation import estimate_plan
from shardwright.planner.schema import read_result
from shardwright.planner.stacks import ADDED, StackProfile, load_stack, stack_from_dict, stack_ids

FOLDER = Path(__file__).with_name("saved")
FILES = sorted(FOLDER.glob("*.json"))


def first_of(document):
    return document["plans"][0] if document["kind"] == "plan-result" else document


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_an_earlier_version_is_priced_near_what_it_says(path):
    """Near, as predictions change between versions."""
    saved = first_of(json.loads(path.read_text()))
    again = estimate_plan(path).data
    assert again["feasible"]
    assert {name: again["parallel"][name] for name in saved["parallel"] if name != "offload"} == {
        name: value for name, value in saved["parallel"].items() if name != "offload"
    }
    assert again["parallel"]["loss_chunks"] == 1
    assert not any(again["parallel"]["offload"].values())
    assert again["predicted"]["step_time_s"] == pytest.approx(saved["predicted"]["step_time_s"], rel=0.25)
    assert again["memory"]["peak_bytes"] == pytest.approx(saved["memory"]["peak_bytes"], rel=0.25)


def test_what_was_saved_lacks_fields_of_today():
    """The files would prove nothing if they held all fields."""
    assert FILES
    for path in FILES:
        old = set(read_result(path)["inputs"]["calibration"]["inline"]["stack"])
        new = {field.name for field in fields(StackProfile)}
        assert old < new
        assert new - old <= set(ADDED)


@pytest.mark.parametrize("stack", stack_ids())
def test_every_added_field_may_be_missing(stack):
    profile = load_stack(stack)
    values = {field.name: getattr(profile, field.name) for field in fields(StackProfile)}
    for name in ADDED:
        made = stack_from_dict({key: value for key, value in values.items() if key != name})
        assert getattr(made, name) == ADDED[name]


def test_a_profile_of_a_later_version_says_what_to_do():
    values = {field.name: getattr(load_stack("megatron-core"), field.name) for field in fields(StackProfile)}
    with pytest.raises(DamagedFileError, match="missing or unknown fields: warp_drive") as caught:
        stack_from_dict(values | {"warp_drive": True})
    assert "another release" in caught.value.hint
