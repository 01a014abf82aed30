"""The report of `emit`: what was written and what to do with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report.style import paragraph, table


def emission_parts(data: Mapping[str, Any]) -> list[Any]:
    """Everything `emit` shows."""
    shown = table("step", "what to do", left=("step", "what to do"), wrap=("what to do",))
    for name, what in data["needs"].items():
        shown.add_row("set", f"{name} to {what}")
    shown.add_row("check", f"{data['folder']}/{data['check'].removeprefix('./')}   (needs no GPU)")
    shown.add_row("start", f"in {data['folder']}: {data['start']}")
    world = f"{data['nodes']} x {data['gpus_per_node']} GPUs"
    head = (
        f"Plan {data['plan_id']} for {data['target']} {data['target_version']}, {world}, "
        f"started by {data['launcher']}: {len(data['files'])} files in {data['folder']}"
    )
    return [paragraph(head), paragraph(", ".join(data["files"])), shown, *(paragraph(f"Note: {n}") for n in data["notes"])]
