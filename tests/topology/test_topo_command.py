"""`shardwright topo` as users call it, and plans on what it writes."""

import io
import sys
from pathlib import Path

import pytest
from topology_dumps import ibnetdiscover, simple_matrix, tree_conf

JOB = ("llama3.1-8b", "--seq-len", "4096", "--global-batch", "64", "--effort", "scan", "--top", "1")


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(simple_matrix(8, 8), encoding="utf-8")
    return path


def test_writes_a_cluster_and_says_what_is_open(shardwright, matrix: Path, tmp_path: Path) -> None:
    code, out, err = shardwright("topo", matrix, "-o", tmp_path / "c.yaml")
    assert code == 0
    assert "islands {0-7}, 300 GB/s a GPU" in out
    assert "rail 3: NIC3 for GPU {3}, rate not known" in out
    assert "warning: groups.node.device:" in err
    assert "device: null" in (tmp_path / "c.yaml").read_text(encoding="utf-8")


def test_without_a_file_the_yaml_is_the_result(shardwright, matrix: Path) -> None:
    code, out, _ = shardwright("topo", matrix, "--node", "dgx-a100-80g")
    assert code == 0
    assert "base: dgx-a100-80g" in out


def test_standard_input(shardwright, monkeypatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(simple_matrix().encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert shardwright("topo", "-")[0] == 0


def test_a_plan_that_needs_what_is_open_names_it_and_the_way_out(shardwright, matrix: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    assert shardwright("topo", matrix, "--nodes", "2", "-o", path)[0] == 0
    code, out, err = shardwright("plan", *JOB, "--cluster", path)
    assert (code, out) == (2, "")
    assert "node.device" in err
    assert "--set cluster.device=" in err
    code, out, err = shardwright("plan", *JOB, "--cluster", path, "--set", "cluster.device=a100")
    assert (code, out) == (2, "")
    assert "cluster.internode_bytes_per_s" in err
    rates = ("--set", "cluster.device=a100", "--set", "cluster.internode_bytes_per_s=100e9")
    assert shardwright("plan", *JOB, "--cluster", path, *rates)[0] == 0


def test_a_plan_on_machine_and_fabric(shardwright, matrix: Path, tmp_path: Path) -> None:
    fabric, path = tmp_path / "fabric.txt", tmp_path / "c.yaml"
    fabric.write_text(ibnetdiscover(["n1", "n2"], rails=8), encoding="utf-8")
    assert shardwright("topo", matrix, fabric, "--device", "a100", "-o", path)[0] == 0
    code, out, _ = shardwright("plan", *JOB, "--cluster", path)
    assert code == 0
    assert "16 GPUs, 2 nodes" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nowhere.txt",), "no such file"),
        (("topo.txt", "-o", "c.json"), ".yaml"),
        (("topo.txt", "-o", "missing/c.yaml"), "cannot write"),
        (("topo.txt", "--device", "h1000"), "h1000"),
        ((), "FILES"),
    ],
)
def test_misuse(shardwright, matrix: Path, monkeypatch, arguments: tuple[str, ...], word: str) -> None:
    monkeypatch.chdir(matrix.parent)
    code, out, err = shardwright("topo", *arguments)
    assert (code, out) == (2, "")
    assert word in err


def test_an_input_is_never_overwritten(shardwright, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("- topology: t\n  tree: {switches: [{switch: a, nodes: n1}]}\n", encoding="utf-8")
    code, _, err = shardwright("topo", path, "-o", path)
    assert code == 2
    assert "one of the inputs" in err
    assert path.read_text(encoding="utf-8").startswith("- topology")


def test_damage_is_told_with_line_and_reason(shardwright, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(tree_conf() + "SwitchName=leaf9 Nodes=n[1-\n", encoding="utf-8")
    code, out, err = shardwright("topo", path)
    assert (code, out) == (2, "")
    assert "topology.conf:5" in err
    assert "brackets" in err
