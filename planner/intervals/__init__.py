"""How wide the interval of a step time is: by the kind of run, from the errors of published runs.

    step_time_low_s = (1 - (1 - low) n) step_time_s,   step_time_high_s = (1 + (high - 1) n) step_time_s     `interval`

low, high: the shares of the predicted time within which 80 % of measured runs of that kind lie (`widths.yaml`, which
`benchmarks/interval_widths.py` derives from `validate`); n: what measured runs of the user's own site leave of the width
(`planner.site.shrinkage`). A plan is of the first of `KINDS` that describes it (`kind_of`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from shardwright.documents import parse_yaml
from shardwright.errors import DamagedFileError
from shardwright.planner.problem import Problem

SMALL_PARAMETERS = 3e9
"""Models below this are held up by their host and by launches as much as by their products."""

EXCHANGE_SHARE = 0.25
"""From this share of the step on, waiting for exchanges is what decides the time."""

KINDS: Mapping[str, str] = {
    "routed": "models with experts",
    "small": "models below 3 B parameters",
    "adapters": "fine-tuning with adapters or frozen modules",
    "transferred": "devices whose kernels nobody measured",
    "exchange": "plans that wait for exchanges a quarter of the step or more",
    "dense": "other dense models",
}
"""What a kind holds, the first that fits counts; the last holds what is left."""

ALL = "all"
"""The entry of `widths.yaml` for all kinds together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """How far measured runs of a kind lie from their predictions.

    Attributes:
        kind: one of `KINDS`.
        low, high: measured over predicted time that a tenth of the runs fall below, and a tenth exceed.
        runs, sources: measured runs of the kind, and how many sources they come from.
    """

    kind: str
    low: float
    high: float
    runs: int
    sources: int

    def __post_init__(self) -> None:
        if not 0 < self.low < 1 < self.high:
            raise DamagedFileError(f"the interval of {self.kind} does not hold the prediction: {self.low} to {self.high}")


@functools.cache
def widths() -> Mapping[str, Width]:
    """The widths of every kind, and of `ALL`.

    Raises:
        DamagedFileError: the file lacks a kind or has one too many.
    """
    text = resources.files("shardwright.planner.intervals").joinpath("widths.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = parse_yaml(text, "widths.yaml").data["kinds"]
    if set(found) != {*KINDS, ALL}:
        raise DamagedFileError("widths.yaml has missing or unknown kinds: " + ", ".join(sorted(set(found) ^ {*KINDS, ALL})))
    return {kind: Width(kind=kind, **values) for kind, values in found.items()}


def kind_of(problem: Problem, time: Mapping[str, float]) -> str:
    """The kind of run a plan is.

    Args:
        problem: model, device, job.
        time: parts of the step in seconds, those named `exposed_…` waiting for exchanges.
    """
    waits = sum(seconds for name, seconds in time.items() if name.startswith("exposed_"))
    holds = {
        "routed": problem.graph.spec.moe is not None,
        "small": problem.graph.parameters < SMALL_PARAMETERS,
        "adapters": bool(problem.job.frozen),
        "transferred": any(fit.provenance["gemm"].origin != "measured" for fit in (problem.kernels, *problem.further)),
        "exchange": waits >= EXCHANGE_SHARE * sum(time.values()),
    }
    return next((kind for kind, held in holds.items() if held), "dense")


def interval(problem: Problem, step_s: float, time: Mapping[str, float]) -> dict[str, Any]:
    """The keys of an ESTIMATE's `predicted` on how far its step time may be off.

    Args:
        problem: model, device, job and site.
        step_s: predicted seconds.
        time: its parts, seconds.
    """
    width, left = widths()[kind_of(problem, time)], problem.site.interval_share
    return {
        "step_time_low_s": step_s * (1 - (1 - width.low) * left),
        "step_time_high_s": step_s * (1 + (width.high - 1) * left),
        "interval": {"kind": width.kind, "runs": width.runs, "sources": width.sources, "site_share": left},
    }
