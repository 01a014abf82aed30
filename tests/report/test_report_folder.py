"""The folder of `plan -o`: complete or untouched."""

import json

import pytest
import report_samples as samples

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.report.folder import check_folder, write_result
from shardwright.planner.schema import read_plan, read_result

FILES = {"result.json", "plans.csv", "README.txt"}


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_new_folder_holds_the_three_files_and_reads_back(tmp_path):
    folder = tmp_path / "deep" / "out"
    paths = write_result(folder, samples.plan_result())
    assert {p.name for p in paths} == FILES == names(folder)
    assert read_result(folder) == rounded(samples.plan_result())
    assert "estimate --plan result.json" in (folder / "README.txt").read_text(encoding="utf-8")
    assert (folder / "plans.csv").read_text(encoding="utf-8").count("\n") == 4
    assert names(tmp_path / "deep") == {"out"}
    _, plan = read_plan(folder, 2)
    assert plan["rank"] == 2


def test_an_earlier_result_is_replaced_and_other_files_stay(tmp_path):
    write_result(tmp_path, samples.nothing_fits())
    (tmp_path / "notes.md").write_text("mine")
    write_result(tmp_path, samples.plan_result())
    assert len(read_result(tmp_path)["plans"]) == 3
    assert names(tmp_path) == FILES | {"notes.md"}


def test_an_empty_folder_is_filled(tmp_path):
    write_result(tmp_path, samples.plan_result())
    assert names(tmp_path) == FILES


def test_foreign_folders_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConflictError, match="holds no earlier result"):
        write_result(tmp_path, samples.plan_result())
    assert names(tmp_path) == {"thesis.tex"}


def test_files_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidValueError, match="is a file"):
        check_folder(tmp_path / "file")
    with pytest.raises(InvalidValueError, match="cannot write"):
        write_result(tmp_path / "file" / "below", samples.plan_result())


def test_nothing_is_left_behind_where_writing_fails(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(InvalidValueError, match="No space left"):
        write_result(tmp_path / "out", samples.plan_result())
    assert names(tmp_path) == set()


def test_files_do_not_depend_on_the_place(tmp_path):
    write_result(tmp_path / "a", samples.plan_result())
    write_result(tmp_path / "b", samples.plan_result())
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    json.loads((tmp_path / "a" / "result.json").read_text(encoding="utf-8"))
