"""Stores of finished points: durable, shared, and careful with files that are none."""

import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import shardwright
from shardwright.errors import DamagedFileError, InvalidValueError, UnsupportedError
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.sweep import store as stores
from shardwright.planner.sweep.run import stored_points
from shardwright.planner.sweep.store import Store


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_put_is_there_again(tmp_path):
    path = tmp_path / "s.db"
    with closing(Store.open(path)) as store:
        assert store.get("a") is None
        store.put("a", "1")
        store.put("a", "2")
        assert (store.get("a"), store.has("a"), store.has("b")) == ("1", True, False)
    with closing(Store.open(path)) as store:
        assert store.get("a") == "1"


def test_it_is_written_ahead_and_synchronised(tmp_path):
    with closing(Store.open(tmp_path / "s.db")) as store:
        connection = store._connection
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_an_empty_file_becomes_a_store(tmp_path):
    path = tmp_path / "s.db"
    path.touch()
    Store.open(path).close()
    Store.open(path).close()


def test_a_store_that_was_being_made_is_finished(tmp_path):
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as connection:  # the header is written, the tables are not
        connection.execute(f"PRAGMA application_id = {stores.APPLICATION}")
        connection.execute(f"PRAGMA user_version = {stores.VERSION}")
    with closing(Store.open(path)) as store:
        store.put("a", "1")


def foreign_database(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE points (x)")


def foreign_log(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")


def other_version(path):
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute(f"PRAGMA user_version = {stores.VERSION + 1}")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: path.write_text("some text that is no database\n" * 20), DamagedFileError),
        (lambda path: path.write_bytes(b"SQLite"), DamagedFileError),
        (foreign_database, DamagedFileError),
        (foreign_log, DamagedFileError),
        (other_version, UnsupportedError),
    ],
    ids=["text", "cut", "foreign", "foreign-wal", "version"],
)
def test_other_files_are_refused_untouched(tmp_path, make, error):
    path = tmp_path / "s.db"
    make(path)
    before = contents(tmp_path)
    with pytest.raises(error, match=r"left as it is|leaves it as it is"):
        Store.open(path)
    assert contents(tmp_path) == before


def test_a_damaged_store_is_said_to_be_one(tmp_path):
    path = tmp_path / "s.db"
    Store.open(path).close()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 8000)
    with pytest.raises(DamagedFileError, match="no usable store"):
        Store.open(path)


def test_places_that_cannot_be_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "s.db"):
        with pytest.raises(InvalidValueError) as fault:
            Store.open(path)
        assert fault.value.where == "--store"


def fill(path, offset):
    with closing(Store.open(path)) as store:
        for number in range(offset, offset + 60):
            store.put(f"{number}", f"result {number}")


def test_two_processes_write_one_store(tmp_path):
    path = tmp_path / "s.db"
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=fill, args=(path, offset)) for offset in (0, 30)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    with closing(Store.open(path)) as store:
        assert [store.get(f"{number}") for number in range(90)] == [f"result {number}" for number in range(90)]
        assert store._connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_temporary_store_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(Store.temporary()) as store:
        store.put("a", "1")
        assert store.get("a") == "1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_only_regular_files_are_stores(tmp_path, kind):
    path = tmp_path / "s.db"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path = Path(os.devnull)
    with pytest.raises(InvalidValueError, match="no regular file"):
        Store.open(path)


@pytest.mark.parametrize(
    "text", ['{"status":"ok"', "[]", "NaN", '{"status":"ok"}', "\x1b", '{"status":"infeasible","best":{}}']
)
def test_a_result_that_is_none_is_refused_where_it_is_used(tmp_path, text):
    path = tmp_path / "s.db"
    job = {"node": "dgx-h100", "nodes": 1, "seq_len": 1024, "global_batch": 8, "store": path, "workers": 1}
    shardwright.sweep("gpt2", search=SearchOptions(effort="scan", top=1), **job).store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE points SET result = ?", (text,))
        connection.commit()
    with pytest.raises(DamagedFileError, match="damaged result"):
        shardwright.sweep("gpt2", search=SearchOptions(effort="scan", top=1), **job)
    with pytest.raises(DamagedFileError, match="damaged result"):
        stored_points(path)
