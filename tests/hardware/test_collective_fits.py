"""The shipped constants against the public tables they were fitted to: a changed formula or constant shows here."""

import csv
import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.collectives import GroupTable, collective_s, fabric_of
from shardwright.hardware.groups import group_shape

KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
NODES = {
    "a100_sxm": "dgx-a100-80g",
    "h100_sxm": "dgx-h100",
    "h200_sxm": "dgx-h200",
    "b200_sxm": "dgx-b200",
    "gb200": "gb200-nvl72",
}


def _error(cluster_name: str, kind: str, ranks: int, sizes: list[float], times: list[float]) -> np.ndarray:
    cluster = load_cluster(cluster_name)
    table = GroupTable.of([group_shape(cluster, ranks, 1)] * len(sizes))
    return np.abs(collective_s(kind, table, np.array(sizes), fabric_of(cluster)).time_s / np.array(times) - 1)


def test_one_node_tables(reference_data: Path) -> None:
    grouped: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    path = reference_data / "calibration" / "aiconfigurator" / "nccl_all_systems.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["system"] in NODES and row["nccl_dtype"] == "half" and float(row["bytes"]) >= 2**20:
                key = (NODES[row["system"]], KINDS[row["op_name"]], int(row["num_gpus"]))
                grouped[key].append((float(row["bytes"]), float(row["latency_ms"]) * 1e-3))
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (node, kind, ranks), rows in grouped.items():
        sizes, times = zip(*rows, strict=True)
        errors[node, kind] += _error(f"{node}:1x{ranks}", kind, ranks, list(sizes), list(times)).tolist()
    assert len(errors) == 20
    for key, found in errors.items():
        assert np.median(found) < 0.13, key


@pytest.mark.parametrize(("usable", "limit"), [(1, 0.08), (2, 0.08), (4, 0.08), (8, 0.15)])
def test_ten_node_logs(reference_data: Path, usable: int, limit: float) -> None:
    with (reference_data / "hardware" / "collectives.csv").open(encoding="utf-8") as stream:
        rows = [r for r in csv.DictReader(stream) if r["series"].startswith(f"h100c01-N10-G{usable}-") and r["op"] in KINDS]
    assert {r["op"] for r in rows} == set(KINDS)
    for op, kind in KINDS.items():
        some = [r for r in rows if r["op"] == op]
        sizes, times = [float(r["message_bytes"]) for r in some], [float(r["time_us"]) * 1e-6 for r in some]
        assert np.median(_error(f"dgx-h100:10x{usable}", kind, 10 * usable, sizes, times)) < limit, kind
