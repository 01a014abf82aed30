"""How kernel fits are written: block YAML, one line a constant, four significant digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ORDER = (
    "id",
    "gemm",
    "attention",
    "sustained_factor",
    "attention_sustained_factor",
    "throttles_in_training",
    "memory_fraction",
    "precision_speedup",
    "backend_factor",
    "provenance",
)


def four(value: float) -> float:
    return float(f"{float(value):.4g}")


def render(document: Mapping[str, Any]) -> str:
    """The document as block YAML with one line per constant."""
    lines = ["# Written by benchmarks/fit_kernels.py; do not edit by hand."]
    for key in ORDER:
        value = document[key]
        if isinstance(value, Mapping):
            lines.append(f"{key}:")
            lines += [f"  {k}: {flow(v)}" for k, v in value.items()]
        else:
            lines.append(f"{key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def flow(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    if isinstance(value, str):
        return value if value.replace("-", "").replace("_", "").isalnum() else '"' + value.replace('"', "'") + '"'
    return f"{value:.4e}" if isinstance(value, float) and 0 < abs(value) < 1e-4 else str(value)
