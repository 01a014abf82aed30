"""`compare` from the command line."""

from __future__ import annotations

import csv
import io
import json

import jsonschema
import pytest

from shardwright.planner.schema import json_schema


def test_all_formats_say_the_same(shardwright, saved_result):
    call = ("compare", saved_result, saved_result, "--rank-b", "2")
    made = {form: shardwright(*call, "--format", form) for form in ("json", "yaml", "csv", "table")}
    assert {done.code for done in made.values()} == {0}
    data = made["json"].json
    jsonschema.validate(data, json_schema("comparison"))
    rows = list(csv.DictReader(io.StringIO(made["csv"].out)))
    assert [(row["name"], float(row["delta_s"])) for row in rows] == [(p["name"], p["delta_s"]) for p in data["parts"]]
    assert "kind: comparison" in made["yaml"].out
    assert all(len(line) <= 80 for line in made["table"].out.splitlines())


def test_a_plan_and_a_result(shardwright, saved_result, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(shardwright("estimate", "--plan", saved_result, "--rank", "3", "--format", "json").out, encoding="utf-8")
    data = shardwright("compare", plan, saved_result, "--rank-b", "3", "--format", "json").json
    assert data["total_s"] == 0
    assert (data["a"]["form"], data["b"]["form"]) == ("estimate", "plan-result")


@pytest.mark.parametrize(("percent", "code"), [("100", 0), ("0.000001", 1)])
def test_over_the_tolerance_is_exit_1(shardwright, saved_result, percent, code):
    done = shardwright("compare", saved_result, saved_result, "--rank-b", "3", "--tolerance", percent)
    assert done.code == code
    assert ("over the tolerance" in done.out) == bool(code)


BAD = {
    "rank": (("--rank-a", "99"), "--rank-a"),
    "tolerance": (("--tolerance", "-1"), "--tolerance"),
    "no number": (("--tolerance", "much"), "--tolerance"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_misuse_is_explained(shardwright, saved_result, case):
    arguments, where = BAD[case]
    done = shardwright("compare", saved_result, saved_result, *arguments, "--format", "json")
    assert done.code == 2
    assert done.out == ""
    assert where in done.error["where"]


def test_another_model_is_refused(shardwright, saved_result, tmp_path):
    other = tmp_path / "other.json"
    call = ("plan", "gpt2", "--cluster", "dgx-h100:1", "--seq-len", "1024", "--global-batch", "64", "--format", "json")
    other.write_text(shardwright(*call).out, encoding="utf-8")
    done = shardwright("compare", saved_result, other, "--format", "json")
    assert done.code == 2
    assert "gpt2" in done.error["message"]


def test_a_damaged_file_is_refused(shardwright, saved_result, tmp_path):
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps({"kind": "estimate"})[:-4], encoding="utf-8")
    done = shardwright("compare", saved_result, cut, "--format", "json")
    assert done.code == 2
    assert done.error["code"] == "damaged-file"
