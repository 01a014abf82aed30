"""Fits the kernel constants of every device to public measurements and writes ``hardware/presets/kernels/*.yaml``.

    python benchmarks/fit_kernels.py --data FOLDER [--device ID] [-o DIR]

FOLDER holds the reference tables (``calibration/aiconfigurator``, ``calibration/simumax``,
``hardware/efficiency.csv``). The output depends on the tables only: no random numbers, constants rounded to four digits.

Method. Matrix products: eight constants per device by robust least squares on log(predicted/measured) over three
quarters of the (n, k) pairs; shapes with m, n, k >= 1024 weigh three times the others. Errors are those of the
held-out quarter with m, n, k >= 1024. Attention: the same over (batch, heads, kv heads); two nuisance constants
absorb what serving kernels do besides (writing the key/value cache, start of several kernels) and are dropped.
Sustained factor: time measured in training (SimuMax) over time in isolation (aiconfigurator) on equal shapes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # threads round differently

import kernel_transfers as transfers
import numpy as np
from kernel_documents import four, render
from scipy.optimize import least_squares

from shardwright.hardware.kernel_fits import KernelFit, fit_from_dict
from shardwright.hardware.kernels import THROTTLE_FROM_FLOPS, Array, DeviceRates, attention_s, gemm_s

TILES = [[256, 128], [128, 256], [128, 128], [128, 64], [64, 128], [64, 64]]
GEMM_SPACE = {  # name: (lowest, start, highest)
    "peak_fraction": (0.3, 0.9, 1.0),
    "tile_loss": (0.0, 8.0, 80.0),
    "prologue_k": (0.0, 50.0, 600.0),
    "split_k": (64.0, 512.0, 8192.0),
    "wave_softness": (0.0, 0.1, 1.0),
    "throttle_per_decade": (0.0, 0.06, 0.3),
    "memory_fraction": (0.3, 0.85, 1.0),
    "norm_power": (1.2, 3.0, 12.0),
    "start_s": (1e-7, 2e-6, 8e-6),
}
ATTENTION_SPACE = {"ramp_tokens": (0.0, 800.0, 4000.0), "wave_softness": (0.0, 0.5, 1.0)}
NUISANCE_SPACE = {"start_s": (1e-7, 2e-5, 6e-5), "cache_traffic": (0.0, 1.0, 5.0)}
ATTENTION_FIXED = {"memory_fraction": 0.8, "norm_power": 4.0, "backward_flops_ratio": 2.5}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits kernel constants to public measurements.")
    parser.add_argument("--data", type=Path, required=True, help="folder with calibration/ and hardware/")
    parser.add_argument("--device", help="write this fit only")
    parser.add_argument("-o", "--output", type=Path, default=Path("hardware/presets/kernels"))
    given = parser.parse_args()
    documents = fit_all(given.data)
    for name, document in documents.items():
        if given.device in (None, name):
            fit_from_dict(document)
            (given.output / f"{name}.yaml").write_text(render(document), encoding="utf-8")
            error = document["provenance"]["gemm"].get("mean_error")
            print(f"{name}: matrix products, held-out mean error {error}")


def fit_all(data: Path) -> dict[str, dict[str, Any]]:
    """All fits as documents, measured ones first, then those transferred from them."""
    made: dict[str, dict[str, Any]] = {}
    for name, device in transfers.MEASURED.items():
        made[name] = fit_device(name, device, data)
    for name, document in made.items():
        transfers.shared_sections(name, made, data)
        check_fp8(name, document, data)
    sustained = {name: sustained_section(made[name], name, data) for name in transfers.TRAINING}
    for name, document in made.items():
        transfers.spread_sustained(name, document, sustained)
    for name in transfers.TRANSFERRED:
        made[name] = transfers.transferred(name, made)
    return made


def fit_device(name: str, device: transfers.Measured, data: Path) -> dict[str, Any]:
    """The sections ``gemm`` and ``attention`` of a device with tables."""
    folder = data / "calibration" / "aiconfigurator"
    gemm, gemm_origin = fit_gemm(device, read_table(folder / f"gemm_bf16_{device.system}.csv.gz"))
    document = {"id": name, "gemm": gemm, "provenance": {"gemm": gemm_origin}}
    table = folder / f"context_attention_bf16_{device.system}.csv.gz"
    if table.exists():
        document["attention"], document["provenance"]["attention"] = fit_attention(device, gemm, read_table(table))
    return document


def fit_gemm(device: transfers.Measured, table: Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants of the tile model and their provenance; the table has columns m, n, k, ms."""
    m, n, k, measured_ms = table.T
    held = held_out(n, k)
    large = np.minimum(np.minimum(m, n), k) >= 1024
    weight = np.where(large, 1.0, 0.35)

    def predict(values: Mapping[str, float], rows: Array) -> Array:
        fit = probe(device, gemm_section(device, values))
        return gemm_s(fit, device.rates, m[rows], n[rows], k[rows])

    def residual(values: Mapping[str, float]) -> Array:
        return weight[~held] * np.log(predict(values, ~held) / (measured_ms[~held] * 1e-3))

    values = solve(residual, GEMM_SPACE)
    test = held & large
    errors = np.abs(predict(values, test) / (measured_ms[test] * 1e-3) - 1.0)
    note = "25 % of (n, k) pairs held out; errors for m, n, k >= 1024"
    return gemm_section(device, values), provenance(device.gemm_source, int((~held).sum()), errors, note)


def fit_attention(device: transfers.Measured, gemm: dict[str, Any], table: Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants of fused attention; the table has columns batch, tokens, heads, kv heads, head size, ms."""
    keep = (table[:, 1] >= 256) & (table[:, 4] <= 256) & (2 * table[:, 0] * table[:, 2] * table[:, 4] * table[:, 1] ** 2 > 1e10)
    batch, tokens, heads, kv_heads, size, measured_ms = table[keep].T
    kv_heads = np.where(kv_heads == 0, heads, kv_heads)
    sizes = [float(s) for s in np.unique(size) if s in (64, 128, 256)]
    space = {f"head_{s:.0f}": (0.1, 0.6, 1.0) for s in sizes} | ATTENTION_SPACE | NUISANCE_SPACE
    held = held_out(batch, heads, kv_heads)
    large = 2 * batch * heads * size * tokens**2 > 1e11
    weight = np.where(large, 1.0, 0.4)
    cache_s = 2 * batch * tokens * size * (heads + 2 * kv_heads) / device.rates.memory_bytes_per_s

    def predict(values: Mapping[str, float]) -> Array:
        fit = probe(device, gemm, attention_section(device, values, sizes, start_s=values["start_s"]))
        core = attention_s(fit, device.rates, batch, heads, kv_heads, tokens, tokens, size, size)
        return core + values["cache_traffic"] * cache_s

    def residual(values: Mapping[str, float]) -> Array:
        return (weight * np.log(predict(values) / (measured_ms * 1e-3)))[~held]

    values = solve(residual, space)
    errors = np.abs(predict(values) / (measured_ms * 1e-3) - 1.0)[held & large]
    note = "25 % of (batch, heads, kv heads) held out; errors above 0.1 TFLOP, forward, causal, head size 64 to 256"
    section = attention_section(device, values, sizes, start_s=gemm["start_s"])
    return section, provenance(device.attention_source, int((~held).sum()), errors, note)


def gemm_section(device: transfers.Measured, values: Mapping[str, float]) -> dict[str, Any]:
    return {k: four(values[k]) for k in GEMM_SPACE} | {"sm_count": device.rates.sm_count, "tiles": TILES}


def attention_section(
    device: transfers.Measured, values: Mapping[str, float], sizes: Sequence[float], start_s: float
) -> dict[str, Any]:
    heads = [[s, four(values[f"head_{s:.0f}"])] for s in sizes]
    fitted = {k: four(values[k]) for k in ATTENTION_SPACE}
    return {"peak_fraction": heads, **fitted, **ATTENTION_FIXED, "start_s": four(start_s), **device.attention}


def probe(device: transfers.Measured, gemm: dict[str, Any], attention: dict[str, Any] | None = None) -> KernelFit:
    """A fit that predicts isolated kernels: all factors are 1."""
    placeholder = {"head_64": 0.5, "ramp_tokens": 0.0, "wave_softness": 0.0}
    return fit_from_dict(
        {
            "id": device.system,
            "gemm": gemm,
            "attention": attention or attention_section(device, placeholder, [64.0], 1e-6),
            "sustained_factor": 1.0,
            "attention_sustained_factor": 1.0,
            "memory_fraction": 0.85,
            "precision_speedup": {"bf16": 1.0},
            "backend_factor": {"table": 1.0},
            "provenance": {},
        }
    )


def solve(
    residual: Callable[[Mapping[str, float]], Array], space: Mapping[str, tuple[float, float, float]]
) -> dict[str, float]:
    """The best of two robust least-squares runs from fixed starting points, in the unit box."""
    low, start, high = (np.array(v) for v in zip(*space.values(), strict=True))

    def at(unit: Array) -> dict[str, float]:
        return dict(zip(space, low + unit * (high - low), strict=True))

    first = np.clip((start - low) / (high - low), 1e-6, 1 - 1e-6)
    runs = [
        least_squares(lambda u: residual(at(u)), x0, bounds=(0, 1), loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=60)
        for x0 in (first, 0.7 * first + 0.15)
    ]
    best = min(runs, key=lambda run: float(run.cost)).x
    return at(np.where(best < 1e-6, 0.0, best))


def check_fp8(name: str, document: dict[str, Any], data: Path) -> None:
    """Adds the error of fp8 against the tables (which contain casts) for m, n, k >= 4096 to the provenance."""
    device = transfers.MEASURED[name]
    path = data / "calibration" / "aiconfigurator" / f"gemm_fp8_{device.system}.csv.gz"
    if not path.exists():
        return
    table = read_table(path)
    m, n, k, measured_ms = table[table[:, :3].min(axis=1) >= 4096].T
    gain = document["precision_speedup"]["fp8"]
    rates = replace(device.rates, peak_flops=device.rates.peak_flops * gain)
    errors = np.abs(gemm_s(probe(device, document["gemm"]), rates, m, n, k, 1.0, 1.0, 2.0) / (measured_ms * 1e-3) - 1.0)
    checked = provenance("", 0, errors, "")
    document["provenance"]["precision_speedup"] |= {key: checked[key] for key in ("median_error", "p90_error", "mean_error")}
    document["provenance"]["precision_speedup"]["note"] += (
        "; errors: fp8 serving tables with casts, m, n, k >= 4096, not fitted"
    )


def sustained_section(document: dict[str, Any], name: str, data: Path) -> transfers.Sustained:
    """How much slower the kernels of one device run in training than in isolation, from equal shapes of both tables."""
    device, system = transfers.MEASURED[name], transfers.TRAINING[name]
    with (data / "calibration" / "simumax" / "operator_efficiency.csv").open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["system"] == system]
    table = read_table(data / "calibration" / "aiconfigurator" / f"gemm_bf16_{device.system}.csv.gz")
    isolated_s = {(int(m), int(n), int(k)): ms * 1e-3 for m, n, k, ms in table}
    found = [(r, flops_of(row)) for row in rows if row["op"] == "matmul" if (r := gemm_ratio(row, isolated_s))]
    ratios, flops = (np.array(part) for part in zip(*found, strict=True))
    decades = np.log10(flops / THROTTLE_FROM_FLOPS)
    throttle = 1.0 + document["gemm"]["throttle_per_decade"] * np.maximum(decades, 0.0)
    fit = probe(device, document["gemm"], document["attention"])
    attention = [r for row in rows if row["op"] == "sdp_fwd" if (r := attention_ratio(row, fit, device.rates))]
    return transfers.Sustained(
        gemm=four(np.median(ratios)),
        rows=len(ratios),
        slope=float(np.polyfit(decades, np.log(ratios), 1)[0]),
        unthrottled=four(np.median(ratios * throttle)),
        attention=four(np.median(attention)),
        backward_rate=backward_rate(rows),
        grouped=four(
            np.median([grouped_ratio(row, fit, device.rates) for row in rows if row["op"] == "group_matmul"])
            / np.median(ratios)
        ),
    )


def backward_rate(rows: Sequence[Mapping[str, str]]) -> float:
    """Median of backward over forward FLOP/s on equal attention shapes (2.5 times the FLOPs are counted backward)."""
    forward = {row["shape"]: rate_of(row) for row in rows if row["op"] == "sdp_fwd" and is_full_wave(shape_of(row))}
    return four(
        np.median([rate_of(row) / forward[row["shape"]] for row in rows if row["op"] == "sdp_bwd" and row["shape"] in forward])
    )


def is_full_wave(shape: Mapping[str, str]) -> bool:
    """Equal head sizes and at least 32 heads of 4096 tokens."""
    return shape["qk_head_dim"] == shape["v_head_dim"] and int(shape["head_num"]) * int(shape["seq_len"]) >= 32 * 4096


def gemm_ratio(row: Mapping[str, str], isolated_s: Mapping[tuple[int, int, int], float]) -> float | None:
    shape = shape_of(row)
    m, n, k = (int(shape[d]) for d in "mnk")
    if int(shape["b"]) != 1 or min(m, n, k) < 1024 or (m, n, k) not in isolated_s:
        return None
    return 2.0 * m * n * k / rate_of(row) / isolated_s[m, n, k]


def flops_of(row: Mapping[str, str]) -> float:
    shape = shape_of(row)
    return 2.0 * int(shape["m"]) * int(shape["n"]) * int(shape["k"])


def attention_ratio(row: Mapping[str, str], fit: KernelFit, rates: DeviceRates) -> float | None:
    """Training over model time of a forward pass; the causal half of the FLOPs counts as full there."""
    shape = shape_of(row)
    if not is_full_wave(shape):
        return None
    tokens, heads, kv_heads = (int(shape[d]) for d in ("seq_len", "head_num", "kv_head_num"))
    size = int(shape["qk_head_dim"])
    model_s = float(attention_s(fit, rates, 1, heads, kv_heads, tokens, tokens, size, size))
    return 4.0 * heads * size * tokens**2 / rate_of(row) / model_s


def grouped_ratio(row: Mapping[str, str], fit: KernelFit, rates: DeviceRates) -> float:
    """Training over model time of a grouped product; the weight gradient reads and writes fp32."""
    shape = shape_of(row)
    groups, rows, columns, depth = (int(shape[d]) for d in ("ng", "M", "N", "K"))
    order = {"fwd": (rows, columns, depth), "bwd_grad_act": (rows, depth, columns), "bwd_grad_w": (columns, depth, rows)}
    output_bytes = 8.0 if shape["stage"] == "bwd_grad_w" else 2.0
    model_s = float(gemm_s(fit, rates, *order[shape["stage"]], groups, 2.0, output_bytes))
    return 2.0 * groups * rows * columns * depth / rate_of(row) / model_s


def rate_of(row: Mapping[str, str]) -> float:
    return float(row["peak_tflops"]) * 1e12 * float(row["efficiency_fraction_of_peak"])


def shape_of(row: Mapping[str, str]) -> dict[str, str]:
    return dict(part.split("=") for part in row["shape"].replace(" ", "").split(","))


def read_table(path: Path) -> Array:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1)


def held_out(*columns: Array) -> np.ndarray:
    """A quarter of the keys, chosen by their checksum."""
    keys = ("x".join(str(int(v)) for v in key) for key in zip(*columns, strict=True))
    return np.array([zlib.crc32(key.encode()) % 4 == 0 for key in keys])


def provenance(source: str, rows: int, errors: Array, note: str) -> dict[str, Any]:
    median, p90, mean = (round(float(v), 3) for v in (np.median(errors), np.percentile(errors, 90), errors.mean()))
    return {
        "origin": "measured",
        "source": source,
        "rows": rows,
        "median_error": median,
        "p90_error": p90,
        "mean_error": mean,
        "note": note,
    }


if __name__ == "__main__":
    main()
