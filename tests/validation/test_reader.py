"""Reading a CSV of measured runs: what is read, and that damage is named with its place."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.planner.runs.table import COLUMNS, COUNTS, NUMBERS, REQUIRED, RunRow, read_runs

GOOD = {
    "id": "a-1", "model": "Llama-2-7B", "node": "dgx-h100", "gpus": "16", "seq_len": "4096", "global_batch": "64", "tp": "2",
    "step_time_s": "1.25", "outcome": "ok", "notes": "one, two",
}  # fmt: skip


def write(path, rows, columns=None):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns or list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def test_reads_types(tmp_path):
    (row,) = read_runs(write(tmp_path / "runs.csv", [GOOD]))
    assert (row.id, row.gpus, row.tp, row.step_time_s, row.notes) == ("a-1", 16, 2, 1.25, "one, two")
    assert row.pp is None
    assert row.recompute == ""
    assert row.line == 2


def test_columns_are_the_fields():
    assert set(COLUMNS) | {"line"} == set(RunRow.__dataclass_fields__)
    assert len(COLUMNS) == len(set(COLUMNS))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("gpus", "eight"), ("gpus", "8.5"), ("gpus", "0"), ("gpus", "-8"), ("gpus", "inf"), ("gpus", "1e99"),
        ("step_time_s", "nan"), ("step_time_s", "-1"), ("step_time_s", "0"), ("step_time_s", "1,5"), ("outcome", "crashed"),
        ("memory_meter", "smi"), ("seq_parallel", "maybe"), ("id", ""), ("model", " "), ("node", ""),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_named_with_line_and_column(tmp_path, cell, text):
    path = write(tmp_path / "runs.csv", [GOOD, GOOD | {"id": "a-2", "memory_meter": "", "seq_parallel": ""} | {cell: text}],
                 [*GOOD, "memory_meter", "seq_parallel"])  # fmt: skip
    with pytest.raises(InvalidValueError) as caught:
        read_runs(path)
    assert f":3: {cell}" in caught.value.where
    assert caught.value.hint


def test_whole_numbers_may_be_written_as_floats(tmp_path):
    (row,) = read_runs(write(tmp_path / "runs.csv", [GOOD | {"gpus": "16.0"}]))
    assert row.gpus == 16


def test_an_unknown_column_offers_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="step_time") as caught:
        read_runs(write(tmp_path / "runs.csv", [GOOD | {"step_time_sec": "1"}]))
    assert "step_time_s" in caught.value.hint
    assert caught.value.where.endswith(":1")


@pytest.mark.parametrize("absent", REQUIRED)
def test_a_missing_required_column(tmp_path, absent):
    with pytest.raises(InvalidValueError, match=absent):
        read_runs(write(tmp_path / "runs.csv", [{k: v for k, v in GOOD.items() if k != absent}]))


def test_repeated_column_and_repeated_id(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("id,model,node,gpus,seq_len,global_batch,gpus\n1,m,n,8,1,1,8\n", encoding="utf-8")
    with pytest.raises(InvalidValueError, match="twice"):
        read_runs(path)
    with pytest.raises(InvalidValueError, match="lines 2 and 3"):
        read_runs(write(path, [GOOD, GOOD]))


@pytest.mark.parametrize("text", ["", "\n\n", "id,model,node,gpus,seq_len,global_batch\n", '"id,model\n'])
def test_empty_and_torn_files(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ShardwrightError):
        read_runs(path)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_marks_than_commas_are_named(tmp_path, mark):
    path = tmp_path / "runs.csv"
    path.write_text(f"id{mark}model{mark}node\n1{mark}m{mark}n\n", encoding="utf-8")
    with pytest.raises(DamagedFileError, match="not separated by commas"):
        read_runs(path)


def test_a_short_row_is_named(tmp_path):
    path = write(tmp_path / "runs.csv", [GOOD])
    path.write_text(path.read_text(encoding="utf-8") + "a-2,x\n", encoding="utf-8")
    with pytest.raises(DamagedFileError, match="2 cells") as caught:
        read_runs(path)
    assert caught.value.where.endswith(":3")


def test_no_such_file(tmp_path):
    with pytest.raises(DamagedFileError):
        read_runs(tmp_path / "none.csv")


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"id,model\n\xff\xfe\x00")
    with pytest.raises(DamagedFileError):
        read_runs(path)


@given(
    cells=st.fixed_dictionaries(
        {name: st.text(max_size=12) for name in ("gpus", "tp", "step_time_s", "outcome", "model", "notes")}
    )
)
def test_any_cell_is_read_or_refused_by_us(tmp_path_factory, cells):
    path = write(tmp_path_factory.mktemp("runs") / "runs.csv", [GOOD | cells])
    try:
        rows = read_runs(path)
    except ShardwrightError:
        return
    assert all(isinstance(getattr(rows[0], name), int | None) for name in COUNTS)
    assert all(isinstance(getattr(rows[0], name), float | None) for name in NUMBERS)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_us(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    path.write_bytes(data)
    with pytest.raises(ShardwrightError):
        read_runs(path)


def test_published_files(reference_data):
    for name in ("measured_runs", "vtrain_single_node"):
        rows = read_runs(reference_data / "ground_truth" / f"{name}.csv")
        assert len(rows) > 600
