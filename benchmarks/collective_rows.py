"""Reads public measurements of collectives: one `Row` per measured time, with the node preset it was measured on.

The folder holds ``calibration/aiconfigurator/nccl_all_systems.csv.gz`` (NCCL tables of ai-dynamo/aiconfigurator),
``hardware/collectives.csv`` (published nccl-tests logs) and ``calibration/public_nccl_results/allreduce_tables.csv``.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import statistics
from dataclasses import dataclass
from pathlib import Path

KIND = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
SYSTEM_NODE = {
    "a100_sxm": "dgx-a100-80g",
    "h100_sxm": "dgx-h100",
    "h200_sxm": "dgx-h200",
    "b200_sxm": "dgx-b200",
    "b300_sxm": "dgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l40s": "l40s-pcie-8",
}
SERIES_NODE = {
    "polaris": "polaris",
    "sophia": "dgx-a100-40g",
    "aws-p4de": "p4de.24xlarge",
    "aws-p4d": "p4d.24xlarge",
    "oci-a100": "bm.gpu4.8",
    "a100-4gpu": "dgx-a100-80g",
    "mleng-a100": "dgx-a100-80g",
    "azure-ND_A100": "nd96amsr-a100-v4",
    "mleng-b200-n4": "p6-b200.48xlarge",
    "mleng-b200": "dgx-b200",
    "mleng-B200": "dgx-b200",
    "gcp-a4": "a4-highgpu-8g",
    "azure-ND_GB200": "gb200-nvl72",
    "cw-gb200": "gb200-nvl72",
    "oci-gb200": "bm.gpu.gb200.4",
    "alps-gh200": "gh200-alps",
    "h100c01": "dgx-h100",
    "aws-p5-": "p5.48xlarge",
    "aws-p5en": "p5en.48xlarge",
    "azure-ND_H100": "nd96isr-h100-v5",
    "gcp-a3mega": "a3-megagpu-8g",
    "gcp-a3u": "a3-ultragpu-8g",
    "mleng-h200": "dgx-h200",
    "mleng-H200": "dgx-h200",
    "azure-ND_H200": "nd96isr-h200-v5",
    "h200-n2": "dgx-h200",
    "cw-h100": "dgx-h100",
    "cw-b200": "dgx-b200",
    "mleng-mi300x": "mi300x-8",
    "oci-mi300x": "bm.gpu.mi300x.8",
    "mi350x": "mi350x-8",
    "dgx2": "dgx2-v100-32g",
    "oci-v100": "dgx1-v100-32g",
    "4090x4": "rtx-4090-pcie-8",
    "4090x6": "rtx-4090-pcie-8",
    "4090x8-p2p": "rtx-4090-pcie-8",
}
# Rows that the collection marks as outliers or that were measured with a setting the model does not describe.
SKIPPED_SERIES = (
    "aws-p5en-n16",
    "aws-p5-n2-ar-2.18",
    "oci-a100-n2-ar-44f",
    "mi350x-n2-ar-before",
    "aws-p4d-n2-scatter",
    "dgx2-12gpu-ag",
)
# Half of what pairs of the same nodes reach, whatever the number of GPUs: unexplained in the source.
SKIPPED_SENDS = ("h100c01-N10",)
# Beyond a pair this machine reaches 5.6 GB/s on four and 0.7 GB/s on eight GPUs, where other PCIe 4 boxes reach 20 to 25.
HEALTHY_L40S = 2
# Eight times the latency of the all-reduce on the same nodes: only its large messages are taken.
SLOW_START = {"gcp-a4-n2-ag": 2.0**28}
MI350X_OUTLIERS = (2**26, 2**28, 2**31)  # named as anomalous by the collection


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured collective.

    Attributes:
        node: node preset.
        nodes: nodes used.
        gpus_per_node: GPUs used of each.
        kind: as in `shardwright.hardware.collectives.KINDS`.
        message_bytes: as nccl-tests counts.
        time_s: measured.
        in_switch: the scale-up switch may reduce.
        series: rows of one run or table; hold-outs split by it.
        origin: which file.
    """

    node: str
    nodes: int
    gpus_per_node: int
    kind: str
    message_bytes: float
    time_s: float
    in_switch: bool
    series: str
    origin: str


def all_rows(data: Path) -> list[Row]:
    return table_rows(data) + log_rows(data) + published_rows(data)


def table_rows(data: Path) -> list[Row]:
    path = data / "calibration" / "aiconfigurator" / "nccl_all_systems.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        found = [_table_row(r) for r in csv.DictReader(stream)]
    repeats: dict[Row, list[float]] = {}
    for row in found:
        if row is not None:
            repeats.setdefault(dataclasses.replace(row, time_s=0.0), []).append(row.time_s)
    return [dataclasses.replace(row, time_s=statistics.median(times)) for row, times in repeats.items()]


def log_rows(data: Path) -> list[Row]:
    with (data / "hardware" / "collectives.csv").open(encoding="utf-8") as stream:
        found = [_log_row(r) for r in csv.DictReader(stream)]
    return [r for r in found if r is not None]


def published_rows(data: Path) -> list[Row]:
    path = data / "calibration" / "public_nccl_results" / "allreduce_tables.csv"
    with path.open(encoding="utf-8") as stream:
        found = [_published_row(r) for r in csv.DictReader(stream)]
    return [r for r in found if r is not None]


def _table_row(r: dict[str, str]) -> Row | None:
    node, ranks = SYSTEM_NODE.get(r["system"]), int(r["num_gpus"])
    integers_tell_nothing = r["nccl_dtype"] == "int8" and r["op_name"] != "all_reduce"  # only all-reduce depends on the type
    if node is None or integers_tell_nothing or (r["system"] == "l40s" and ranks > HEALTHY_L40S):
        return None
    return Row(
        node=node,
        nodes=1,
        gpus_per_node=ranks,
        kind=KIND[r["op_name"]],
        message_bytes=float(r["bytes"]),
        time_s=float(r["latency_ms"]) * 1e-3,
        in_switch=r["nccl_dtype"] == "half",
        series=f"{r['system']} {r['nccl_version']}",
        origin="aiconfigurator",
    )


def _log_row(r: dict[str, str]) -> Row | None:
    series, kind = r["series"], KIND.get(r["op"]) or ("send" if r["op"] == "sendrecv" else None)
    node = next((n for start, n in SERIES_NODE.items() if series.startswith(start)), None)
    if node is None or kind is None or series.startswith(SKIPPED_SERIES) or "MSCCL" in r["library"] or not r["message_bytes"]:
        return None
    if not (r["nodes"] and r["gpus_per_node"]) or (kind == "send" and int(r["gpus_per_node"]) > 4):
        return None
    time_s = _time(r, kind, int(r["gpus"]))
    size = float(r["message_bytes"])
    if time_s is None or (series.startswith("mleng-b200-n4") and size < 2**18):
        return None
    if size < SLOW_START.get(series, 0) or (kind == "send" and series.startswith(SKIPPED_SENDS)):
        return None
    if series.startswith("mi350x-n1") and (size in MI350X_OUTLIERS or ("1proc" in series and size < 2**25)):
        return None
    return Row(
        node=node,
        nodes=int(r["nodes"]),
        gpus_per_node=int(r["gpus_per_node"]),
        kind=kind,
        message_bytes=float(r["message_bytes"]),
        time_s=time_s,
        in_switch="disabled" not in r["algo"],
        series=series,
        origin="collectives",
    )


def _time(r: dict[str, str], kind: str, ranks: int) -> float | None:
    if r["time_us"]:
        return float(r["time_us"]) * 1e-6
    busbw = float(r["busbw_GBps"] or r["busbw_inplace_GBps"] or 0)
    share = {"all_reduce": 2 * (ranks - 1) / ranks, "send": 1.0}.get(kind, (ranks - 1) / ranks)
    return share * float(r["message_bytes"]) / (busbw * 1e9) if busbw > 0 else None


def _published_row(r: dict[str, str]) -> Row | None:
    if not r["hardware"].startswith("GB200") or not r["algbw_GBps"] or r["hardware"].startswith("GB200 NVL72 1 rack"):
        return None
    return Row(
        node="gb200-nvl72",
        nodes=int(r["nodes"]),
        gpus_per_node=4,
        kind="all_reduce",
        message_bytes=float(r["bytes"]),
        time_s=float(r["bytes"]) / (float(r["algbw_GBps"]) * 1e9),
        in_switch=True,
        series=f"cw-{r['ranks']}",
        origin="coreweave",
    )
