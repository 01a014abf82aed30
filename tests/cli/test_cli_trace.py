"""`estimate --trace`: what it writes beside the result, and what it refuses before anything is priced."""

from __future__ import annotations

import json

import pytest
from cli_jobs import JOB


def test_the_result_is_printed_and_the_trace_written(shardwright, tmp_path):
    path = tmp_path / "trace.json"
    done = shardwright("estimate", *JOB, "--tp", "2", "--pp", "2", "--trace", path, "--format", "json")
    assert done.code == 0
    assert str(path) in done.err
    told = json.loads(path.read_text(encoding="ascii"))["otherData"]
    assert told["step_time_s"] == pytest.approx(done.json["predicted"]["step_time_s"], rel=1e-9)


def test_a_plan_of_a_file_has_a_trace(shardwright, saved_result, tmp_path):
    assert shardwright("estimate", "--plan", saved_result, "--rank", "2", "--trace", tmp_path / "t.json").code == 0
    assert (tmp_path / "t.json").is_file()


def test_a_plan_without_a_price_has_none(shardwright, tmp_path):
    done = shardwright("estimate", *JOB, "--tp", "3", "--trace", tmp_path / "t.json")
    assert done.code == 1
    assert "no trace" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["", "folder", "nowhere/t.json"])
def test_a_place_that_cannot_be_written_is_refused(shardwright, tmp_path, where):
    (tmp_path / "folder").mkdir()
    given = tmp_path / where if where else ""
    done = shardwright("estimate", *JOB, "--tp", "2", "--trace", given, "--format", "json")
    assert done.code == 2
    assert done.out == ""
    assert done.error["where"] == "--trace"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
