"""`explain` from the command line: formats, what it refuses, exit codes, and that the file alone is enough."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from shardwright.planner.schema import json_schema

ROOT = Path(__file__).parents[2]


def test_all_formats_say_the_same(shardwright, saved_result):
    made = {form: shardwright("explain", saved_result, "--format", form) for form in ("json", "yaml", "csv", "table")}
    assert {done.code for done in made.values()} == {0}
    data = made["json"].json
    jsonschema.validate(data, json_schema("explanation"))
    rows = list(csv.DictReader(io.StringIO(made["csv"].out)))
    assert [row["part"] for row in rows] == [part["part"] for part in data["waterfall"]]
    assert "kind: explanation" in made["yaml"].out
    assert all(len(line) <= 80 for line in made["table"].out.splitlines())
    for heading in ("Time of one step", "What binds", "Next best changes", "What the inputs decide"):
        assert heading in made["table"].out


def test_the_file_alone_is_enough(saved_result, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(saved_result / "result.json", elsewhere / "saved.json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "shardwright", "explain", "saved.json", "--rank", "2", "--format", "json"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rank"] == 2


def test_standard_input_is_read(shardwright, saved_result, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO((saved_result / "result.json").read_text(encoding="utf-8")))
    assert shardwright("explain", "-", "--format", "json").json["rank"] == 1


def test_a_broken_rule_is_an_answer(shardwright, saved_result):
    done = shardwright("explain", saved_result, "--why-not", "tp=3")
    assert done.code == 1
    assert "attention-heads" in done.out
    assert "→" in done.out


def test_another_plan_is_shown_by_part(shardwright, saved_result):
    done = shardwright("explain", saved_result, "--why-not", "tp=4", "--why-not", "pp=2")
    assert "Why not tp=4, pp=2" in done.out
    assert "this plan that plan" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())


BAD = {
    "no such rank": (("--rank", "99"), "--rank", "1 to"),
    "rank 0": (("--rank", "0"), "--rank", ""),
    "unknown key": (("--why-not", "tq=4"), "--why-not", "tp"),
    "no value": (("--why-not", "tp"), "--why-not", "tp=8"),
    "bad value": (("--why-not", "tp=x"), "--why-not", "whole number"),
    "derived": (("--why-not", "dp=4"), "--why-not", "tp"),
    "unknown schedule": (("--why-not", "schedule=2f2b"), "--why-not schedule", "1f1b"),
    "format": (("--format", "xml"), "--format", "yaml"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_misuse_is_explained(shardwright, saved_result, case):
    arguments, where, hint = BAD[case]
    form = () if "--format" in arguments else ("--format", "json")
    done = shardwright("explain", saved_result, *arguments, *form)
    assert done.code == 2
    assert done.out == ""
    if form:
        assert done.error["where"].startswith(where)
        assert hint in done.error["hint"]


@pytest.mark.parametrize("damage", ["cut", "empty", "other kind", "no inputs", "folder", "missing", "text"])
def test_damaged_results_are_refused(shardwright, saved_result, tmp_path, damage):
    text = (saved_result / "result.json").read_text(encoding="utf-8")
    path = tmp_path / "damaged.json"
    data = json.loads(text)
    written = {
        "cut": text[: len(text) // 2],
        "empty": "",
        "other kind": json.dumps(data | {"kind": "validation"}),
        "no inputs": json.dumps({k: v for k, v in data.items() if k != "inputs"}),
        "text": "not json",
    }
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_text(written[damage], encoding="utf-8")
    done = shardwright("explain", path, "--format", "json")
    assert done.code == 2
    assert done.out == ""
    assert done.error["hint"]


def test_an_impossible_plan_is_refused(shardwright, tmp_path):
    made = shardwright(
        "estimate",
        "gpt2",
        "--cluster",
        "dgx-h100:1",
        "--seq-len",
        "1024",
        "--global-batch",
        "8",
        "--tp",
        "5",
        "--format",
        "json",
    )
    path = tmp_path / "plan.json"
    path.write_text(made.out, encoding="utf-8")
    done = shardwright("explain", path)
    assert done.code == 2
    assert "cannot be priced" in done.err
