"""Memory of every pipeline stage by component, in GiB, against what the device has.

Neighbouring stages whose figures read the same share a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.mixed_lines import stage_parts
from shardwright.planner.report.plan_table import layers_of
from shardwright.planner.report.style import BARS, paragraph, table

PARTS = {
    "parameters_bytes": "params",
    "gradients_bytes": "grads",
    "optimizer_bytes": "optim",
    "activations_bytes": "activ",
    "logits_bytes": "logits",
    "buffers_bytes": "buffers",
    "reserve_bytes": "reserve",
}
NAMES = {"optimizer_bytes": "optimizer states"}
BAR = 7


def memory_parts(estimate: Mapping[str, Any]) -> list[Any]:
    """The table, and the reading of each meter."""
    shown = table("stage", "layers", *PARTS.values(), "total", "of", BARS)
    for stages in _alike(estimate["stages"]):
        memory = stages[0]["memory"]
        shown.add_row(
            _span(stages),
            _layers(stages),
            *(words.gib(memory[name]) for name in PARTS),
            words.gib(memory["total_bytes"]),
            words.gib(memory["capacity_bytes"]),
            words.bar(memory["total_bytes"] / memory["capacity_bytes"], BAR),
        )
    fullest = estimate["stages"][estimate["memory"]["peak_stage"]]["memory"]
    return [shown, paragraph(_peak(estimate["memory"])), paragraph(_largest(fullest)), *stage_parts(estimate)]


def _alike(stages: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    def reading(stage: Mapping[str, Any]) -> tuple[str, ...]:
        memory = stage["memory"]
        return (
            str(layers_of(stage)),
            str(stage["node_type"]),
            *(words.gib(memory[k]) for k in (*PARTS, "total_bytes", "capacity_bytes")),
        )

    return [list(group) for _, group in groupby(stages, key=reading)]


def _span(stages: Sequence[Mapping[str, Any]]) -> str:
    first, last = stages[0]["index"], stages[-1]["index"]
    return str(first) if first == last else f"{first}-{last}"


def _layers(stages: Sequence[Mapping[str, Any]]) -> str:
    return str(layers_of(stages[0])) + (" each" if len(stages) > 1 else "")


def _largest(memory: Mapping[str, Any]) -> str:
    """The part that dominates a stage, and the next one."""
    first, second = sorted(PARTS, key=lambda part: -memory[part])[:2]
    share = words.percent(memory[first] / memory["total_bytes"], 0)
    most, next_most = (f"{_name(part)} {words.gib(memory[part])} GiB" for part in (first, second))
    return f"what dominates it: {most} ({share}), then {next_most}"


def _name(part: str) -> str:
    return NAMES.get(part, part.removesuffix("_bytes"))


def _peak(memory: Mapping[str, Any]) -> str:
    meters = {name.removesuffix("_bytes"): value for name, value in memory["meters"].items()}
    read = ", ".join(f"{name} {words.gib(value)}" for name, value in meters.items() if value is not None)
    share = words.percent(memory["peak_bytes"] / memory["capacity_bytes"], 0)
    meter = words.meter_of(memory)
    led = f", {share} of the device" if meter == "device" else f" {meter}; with all it holds, {share} of the device"
    said = f"peak on stage {memory['peak_stage']}: {words.gib(words.peak_bytes(memory))} GiB{led} ({read} GiB)"
    host = memory["host_peak_bytes"]
    return said if host is None else f"{said}; {words.gib(host)} GiB of host memory a node"
