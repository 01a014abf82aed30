"""`shardwright sweep` as its callers see it."""

import csv
import io
import json

import pytest

JOB = ("gpt2", "--node", "dgx-h100", "--nodes", "1,2", "--seq-len", "1024", "--global-batch", "256", "--workers", "1")
QUICK = (*JOB, "--effort", "scan", "--fix", "pp=1,cp=1")


def test_formats_agree(shardwright):
    data = shardwright("sweep", *QUICK, "--format", "json").json
    rows = list(csv.DictReader(io.StringIO(shardwright("sweep", *QUICK, "--format", "csv").out)))
    table = shardwright("sweep", *QUICK)
    assert (data["kind"], len(data["points"]), len(rows)) == ("sweep-result", 2, 2)
    assert [float(row["step_time_s"]) for row in rows] == [p["best"]["predicted"]["step_time_s"] for p in data["points"]]
    assert table.out.startswith("Sweep of 2 points: 2 with a plan, 0 where nothing fits\n")
    assert all(len(line) <= 80 for line in table.out.splitlines())
    assert table.code == 0


def test_a_file_and_options(shardwright, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("model: gpt2\nnode: [dgx-h100]\nnodes: 1..2x2\nglobal_batch: 256\neffort: scan\nfix: {pp: 1, cp: 1}\n")
    done = shardwright("sweep", path, "--seq-len", "1024", "--workers", "1", "--format", "json")
    ours = shardwright("sweep", *QUICK, "--format", "json").json
    assert done.json["points"] == ours["points"]
    refused = shardwright("sweep", path, "--nodes", "8")
    assert (refused.code, refused.out) == (2, "")
    assert "contradicts" in refused.err
    assert "sweep.yaml:3: nodes" in refused.err


def test_a_figure_is_drawn(shardwright, tmp_path):
    path = tmp_path / "s.svg"
    done = shardwright("sweep", *QUICK, "--figure", path)
    assert f"wrote {path}" in done.err
    first = path.read_text()
    shardwright("sweep", *QUICK, "--figure", path)
    assert path.read_text() == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.svg"]


def test_a_store_is_used(shardwright, tmp_path):
    for reused in (0, 2):
        done = shardwright("sweep", *QUICK, "--store", tmp_path / "s.db", "--format", "json")
        assert done.json["run"]["reused"] == reused


def test_nothing_fits_anywhere(shardwright):
    job = ("llama3.1-405b", "--node", "dgx-h100", "--nodes", "1", "--seq-len", "8192", "--global-batch", "8")
    done = shardwright("sweep", *job, "--effort", "scan", "--workers", "1", "--figure", "x.svg")
    assert (done.code, done.out) == (2, "")
    done = shardwright("sweep", *job, "--effort", "scan", "--workers", "1")
    assert done.code == 1
    assert "nothing fits: the leanest plan needs" in done.out


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--nodes", "4..2x2"), "--nodes"),
        (("--nodes", ","), "--nodes"),
        (("--nodes", "1", "--node", "dgx-h10"), "--node"),
        (("--nodes", "1", "--figure", "no/such/folder/x.svg"), "--figure"),
        (("--nodes", "1", "--figure", "x.gif"), "--figure"),
        (("--nodes", "1", "--store", "."), "--store"),
        (("--nodes", "1", "--engine", "dask"), "--engine"),
        (("--nodes", "1", "--address", "a:1"), "--address"),
        (("--nodes", "1", "--objective", "speed"), "--objective"),
    ],
)
def test_misuse_is_told_with_its_place(shardwright, options, where):
    node = () if "--node" in options else ("--node", "dgx-h100")
    done = shardwright("sweep", "gpt2", *node, *options, "--format", "json")
    assert (done.code, done.out) == (2, "")
    assert done.error["where"] == where
    assert done.error["hint"]


def test_schemas_are_published(shardwright):
    for name in ("sweep", "sweep-result"):
        assert json.loads(shardwright("schema", name).out)["type"] == "object"
