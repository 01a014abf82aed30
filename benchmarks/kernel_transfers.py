"""What ``fit_kernels.py`` takes from datasheets and publications, and how fits pass on to devices without tables."""

from __future__ import annotations

import copy
import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_documents import four

from shardwright.hardware.kernels import DeviceRates

AICONFIGURATOR = "ai-dynamo/aiconfigurator@095f58a51c4c (Apache-2.0)"
SIMUMAX = "MooreThreads/SimuMax@4dcaae513ba7 (Apache-2.0)"
STREAM = "Azure/AI-benchmarking-guide@8fd0c6e1bd0f, BabelStream triad"
ML_ENGINEERING = "stas00/ml-engineering@744d01e18b79, compute/accelerator (best matrix product found)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A device with tables; ``rates`` are datasheet figures, bf16 dense."""

    system: str
    rates: DeviceRates
    family: str
    stack: str = "TensorRT-LLM 1.3.0rc20"
    attention: Mapping[str, float]

    @property
    def gemm_source(self) -> str:
        """Table of matrix products."""
        return f"{AICONFIGURATOR}, gemm of {self.system}, {self.stack}, bf16"

    @property
    def attention_source(self) -> str:
        """Table of fused attention."""
        return f"{AICONFIGURATOR}, context attention of {self.system}, bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Training over isolated time: of matrix products (on how many shapes), attention, grouped products; backward rate.

    `slope` is the change of the logarithm of the first a decade of FLOPs, `unthrottled` its median over isolated times without
    the throttle of large products.
    """

    gemm: float
    rows: int
    attention: float
    backward_rate: float
    grouped: float
    slope: float = 0.0
    unthrottled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A device without tables: whose constants it takes, scaled by what, and how well that can work."""

    sibling: str
    sm_count: int
    scale: float = 1.0
    origin: str = "transferred"
    source: str
    note: str
    median_error: float
    p90_error: float
    speedup: Mapping[str, float] | None = None
    backends: Mapping[str, float] | None = None
    memory_fraction: float | None = None


# FlashAttention-2 on Ampere pads 192/128 heads to 192 (SimuMax A100: 1.2 times the time of its FLOPs, forward and backward);
# Blackwell kernels do so in the backward pass only. Blocks of 256 queries on Blackwell: 4 and 8 heads of 4096 tokens
# leave 1/2 of the multiprocessors idle in SimuMax.
AMPERE = {"query_tile": 128, "backward_rate": 0.85, "head_padding": 1.0, "backward_head_padding": 1.0}
HOPPER = {"query_tile": 128, "backward_rate": 0.85, "head_padding": 0.0, "backward_head_padding": 1.0}
BLACKWELL = {"query_tile": 256, "backward_rate": 0.85, "head_padding": 0.0, "backward_head_padding": 1.0}


def _rates(peak_tflops: float, memory_tb_per_s: float, sm_count: int) -> DeviceRates:
    return DeviceRates(peak_flops=peak_tflops * 1e12, memory_bytes_per_s=memory_tb_per_s * 1e12, sm_count=sm_count)


MEASURED = {
    "a100": Measured(
        system="a100_sxm", rates=_rates(312, 2.039, 108), family="ampere", stack="SGLang 0.5.10", attention=AMPERE
    ),
    "h100": Measured(system="h100_sxm", rates=_rates(989, 3.35, 132), family="hopper", attention=HOPPER),
    "h200": Measured(system="h200_sxm", rates=_rates(989, 4.8, 132), family="hopper", attention=HOPPER),
    "b200": Measured(system="b200_sxm", rates=_rates(2250, 8.0, 148), family="blackwell", attention=BLACKWELL),
    "gb200": Measured(system="gb200", rates=_rates(2500, 8.0, 148), family="blackwell", attention=BLACKWELL),
    "b300": Measured(system="b300_sxm", rates=_rates(2250, 8.0, 148), family="blackwell", attention=BLACKWELL),
    "l40s": Measured(system="l40s", rates=_rates(362, 0.864, 142), family="ada", attention=AMPERE),
}
EXTRA_HEADS = {"a100": [[64.0, round(179.5 / 312, 4)]]}
"""Head sizes missing in a table: FlashAttention-2 forward, head size 64, 8192 tokens (Azure/AI-benchmarking-guide)."""
ATTENTION_FROM = {"b300": "b200", "l40s": "a100"}
TRAINING = {"a100": "a100_pcie", "b200": "b200_bf16_ceperm"}

BACKENDS: Mapping[str, Mapping[str, float]] = {
    "ampere": {"table": 1.0, "fa2": 1.0, "cudnn": 1.0, "fa1": 0.62, "triton": 0.62},
    "ada": {"table": 1.0, "fa2": 1.0, "cudnn": 1.0, "fa1": 0.62, "triton": 0.62},
    "hopper": {"table": 1.0, "fa3": 1.0, "cudnn": 1.0, "fa2": 0.6, "fa1": 0.37, "triton": 0.37, "fp8": 1.25},
    "blackwell": {"table": 1.0, "fa4": 1.0, "cudnn": 1.0, "fa2": 0.35, "triton": 0.35, "fp8": 1.25},
}
"""Rate of an attention backend relative to the best one. First-generation kernels do not use Hopper's asynchronous products,
so they gain what multiprocessors and clock gain over the A100: 0.62 x 211 x (132 x 1830) / (108 x 1410) = 208 of 564."""
MATRIX_GAIN = {"a100": None, "l40s": 1.76, "h100": 1402.6 / 794.5, "h200": 1402.6 / 794.5}
MATRIX_GAIN |= {"b200": 3432.5 / 1745.0, "b300": 3353.3 / 1769.0, "gb200": 3615.6 / 1822.0}
FP4_GAIN = {"b200": 3.4, "gb200": 3.4, "b300": 5.1}
FP32_SHARE = {"a100": 19.5 / 312, "l40s": 91.6 / 362, "h100": 67 / 989, "h200": 67 / 989}
FP32_SHARE |= {"b200": 80 / 2250, "gb200": 80 / 2500, "b300": 80 / 2250}

_H100_BEST = 794.5 / 989.0
_MI = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp32": 0.125}
_MI3 = _MI | {"fp8": 1.76, "fp8-tensorwise": 1.76, "fp8-blockwise": 1.67}
_MI35 = _MI3 | {"fp32": 0.063, "tf32": 0.063, "mxfp8": 1.67}
_MI_BACKENDS = {"table": 1.0, "ck": 1.0, "aiter": 1.0, "fa2": 1.0, "triton": 0.8, "fp8": 1.0}


def _instinct(best_tflops: float, peak_tflops: float, cus: int, speedup: Mapping[str, float], note: str = "") -> Transfer:
    return Transfer(
        sibling="h100",
        sm_count=cus,
        scale=best_tflops / peak_tflops / _H100_BEST,
        source=ML_ENGINEERING,
        note=f"H100 constants, rate scaled by the best product found: {best_tflops} of {peak_tflops} TFLOP/s{note}",
        median_error=0.15,
        p90_error=0.35,
        speedup=speedup,
        backends=_MI_BACKENDS,
        memory_fraction=0.8,
    )


TRANSFERRED = {
    "v100": Transfer(
        sibling="a100",
        sm_count=80,
        source="A100 constants on the V100 datasheet",
        note="fp16 products; fused attention assumed at 0.62 of the A100 rate, there is no FlashAttention-2",
        median_error=0.12,
        p90_error=0.3,
        speedup={"fp16": 1.0, "fp32": 15.7 / 125},
        backends={"table": 0.62, "fa1": 0.62, "triton": 0.62},
    ),
    "h100-500w": Transfer(
        sibling="h100",
        sm_count=132,
        scale=(500 / 700) ** (1 / 3),
        source="H100 constants",
        note="rate scaled by (500 W / 700 W)^(1/3), power growing with the cube of the clock",
        median_error=0.06,
        p90_error=0.15,
    ),
    "gb300": Transfer(
        sibling="gb200",
        sm_count=148,
        source="GB200 constants",
        note="same bf16 datasheet peak; fp4 gain as B300",
        median_error=0.1,
        p90_error=0.2,
    ),
    "mi300x": _instinct(668.4, 1307.4, 304, _MI3),
    "mi325x": _instinct(784.9, 1307.4, 304, _MI3),
    "mi350x": _instinct(1565.0, 2500.0, 256, _MI35, ", measured on MI355X"),
    "mi355x": _instinct(1565.0, 2500.0, 256, _MI35),
    "generic": Transfer(
        sibling="h100",
        sm_count=132,
        origin="assumed",
        source="H100 constants",
        note="for a device without a fit of its own; bring measurements",
        median_error=0.2,
        p90_error=0.4,
        memory_fraction=0.85,
    ),
}


def shared_sections(name: str, made: Mapping[str, dict[str, Any]], data: Path) -> dict[str, Any]:
    """Memory fraction, precisions and backends of a device with tables; attention where it has to be borrowed."""
    document = made[name]
    if name in EXTRA_HEADS:
        document["attention"]["peak_fraction"] = EXTRA_HEADS[name] + document["attention"]["peak_fraction"]
    if name in ATTENTION_FROM:
        sibling = made[ATTENTION_FROM[name]]
        document["attention"] = sibling["attention"]
        origin = sibling["provenance"]["attention"]
        document["provenance"]["attention"] = _borrowed(origin, ATTENTION_FROM[name], 2.0)
    document["memory_fraction"], document["provenance"]["memory_fraction"] = _memory(name, made, data)
    document["precision_speedup"], document["provenance"]["precision_speedup"] = _speedup(name)
    document["backend_factor"] = dict(BACKENDS[MEASURED[name].family])
    return document


def spread_sustained(name: str, document: dict[str, Any], measured: Mapping[str, Sustained]) -> None:
    """Sets the sustained factors: measured, interpolated between A100 and B200 (Hopper), or taken from the sibling."""
    ampere, blackwell = measured["a100"], measured["b200"]
    family = MEASURED[name].family
    chosen = {"hopper": _between(ampere, blackwell), "blackwell": blackwell}.get(family, ampere)
    document["throttles_in_training"] = chosen.unthrottled is None or chosen.slope > -document["gemm"]["throttle_per_decade"]
    flat = chosen.unthrottled is not None and not document["throttles_in_training"]
    document["sustained_factor"] = chosen.unthrottled if flat else chosen.gemm
    document["attention_sustained_factor"] = max(1.0, chosen.attention)
    document["attention"] = {**document["attention"], "backward_rate": chosen.backward_rate}
    origin = "measured" if name in measured else "transferred"
    how = {
        "hopper": "no training table of Hopper: geometric mean of A100 and B200",
        "ada": "taken from A100",
        "ampere": "median ratio on equal shapes with m, n, k >= 1024, all three layouts; SXM table, PCIe card in training",
        "blackwell": "median ratio on equal shapes with m, n, k >= 1024, all three layouts; from B200",
    }[family]
    how += (
        f"; grouped products then take {chosen.grouped} of their predicted time (median), so they have no factor of their own"
    )
    if flat:
        how += (
            f"; it falls by {-chosen.slope:.3f} a decade of FLOPs: all sizes run at the clocks of large ones, so they share it"
        )
    attention = f"forward, at least 32 heads of 4096 tokens, ratio {chosen.attention}; never below 1; backward rate likewise"
    both = f"{SIMUMAX}, over {AICONFIGURATOR}"
    sections = document["provenance"]
    sections["sustained_factor"] = {"origin": origin, "source": both, "rows": chosen.rows, "note": how}
    sections["attention_sustained_factor"] = {"origin": origin, "source": both, "note": attention}


def transferred(name: str, made: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The document of a device without tables."""
    rule = TRANSFERRED[name]
    document = copy.deepcopy(made[rule.sibling])
    document["id"] = name
    document["gemm"] |= {"peak_fraction": four(document["gemm"]["peak_fraction"] * rule.scale), "sm_count": rule.sm_count}
    heads = document["attention"]["peak_fraction"]
    document["attention"]["peak_fraction"] = [[size, four(share * rule.scale)] for size, share in heads]
    document["precision_speedup"] = dict(rule.speedup or document["precision_speedup"])
    if name == "gb300":
        document["precision_speedup"] |= {"nvfp4": FP4_GAIN["b300"], "fp4": FP4_GAIN["b300"]}
    document["backend_factor"] = dict(rule.backends or document["backend_factor"])
    document["memory_fraction"] = rule.memory_fraction or document["memory_fraction"]
    document["provenance"] = {key: _passed_on(key, rule) for key in document["provenance"]}
    return document


def _passed_on(section: str, rule: Transfer) -> dict[str, Any]:
    if section in ("gemm", "attention"):
        errors = {"median_error": rule.median_error, "p90_error": rule.p90_error}
        return {"origin": rule.origin, "source": rule.source, **errors, "note": rule.note + "; errors are stated, not measured"}
    own = {"memory_fraction": rule.memory_fraction, "precision_speedup": rule.speedup}.get(section)
    if own is not None:
        return {"origin": "assumed", "source": "datasheet and experience with similar devices"}
    return {"origin": rule.origin, "source": f"the fit {rule.sibling}", "note": f"taken from {rule.sibling}"}


def _borrowed(origin: Mapping[str, Any], sibling: str, wider: float) -> dict[str, Any]:
    errors = {key: round(origin[key] * wider, 3) for key in ("median_error", "p90_error")}
    return {"origin": "transferred", "source": origin["source"], **errors, "note": f"constants of {sibling}; errors are stated"}


def _memory(name: str, made: Mapping[str, dict[str, Any]], data: Path) -> tuple[float, dict[str, Any]]:
    triad = _triad(data)
    if name in triad:
        return four(triad[name]), {"origin": "measured", "source": STREAM}
    if MEASURED[name].family == "blackwell":
        share = triad["h100"] * made[name]["gemm"]["memory_fraction"] / made["h100"]["gemm"]["memory_fraction"]
        note = "triad of H100 times the ratio of the memory fractions in the matrix fits"
        return four(share), {"origin": "transferred", "source": STREAM, "note": note}
    return 0.85, {"origin": "assumed", "source": STREAM, "note": "middle of the measured devices"}


def _triad(data: Path) -> dict[str, float]:
    with (data / "hardware" / "efficiency.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == "BabelStream triad"]
    return {row["device"].split()[0].lower(): float(row["fraction_of_peak"]) for row in rows}


def _speedup(name: str) -> tuple[dict[str, float], dict[str, Any]]:
    gain = MATRIX_GAIN[name]
    rates = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp32": four(FP32_SHARE[name])}
    if gain is not None:
        blockwise = four(0.95 * gain)
        rates |= {"fp8": four(gain), "fp8-tensorwise": four(gain), "fp8-blockwise": blockwise}
        if MEASURED[name].family == "blackwell":
            rates |= {"mxfp8": blockwise, "fp4": FP4_GAIN[name], "nvfp4": FP4_GAIN[name]}
    note = (
        "fp8: ratio of the best products found; scaled in blocks 5 % less; fp4 3.4 (5.1 Blackwell Ultra); tf32, fp32: datasheet"
    )
    return rates, {"origin": "transferred", "source": ML_ENGINEERING, "note": note}


def _between(one: Sustained, other: Sustained) -> Sustained:
    return Sustained(
        gemm=four(math.sqrt(one.gemm * other.gemm)),
        rows=one.rows + other.rows,
        attention=four(math.sqrt(one.attention * other.attention)),
        backward_rate=four(math.sqrt(one.backward_rate * other.backward_rate)),
        grouped=four(math.sqrt(one.grouped * other.grouped)),
    )
