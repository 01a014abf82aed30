"""The report of `compare`: the two plans, what they differ in, their parts, and the fewest changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.estimate_table import degrees_text, violation
from shardwright.planner.report.explanation_table import compared_parts, signed_percent
from shardwright.planner.report.plan_table import header
from shardwright.planner.report.style import heading, paragraph, table


def comparison_parts(data: Mapping[str, Any]) -> list[Any]:
    """Everything `compare` shows."""
    parts = [header(data["a"])]
    for name in ("a", "b"):
        side = data[name]
        parts += [paragraph(f"{name.upper()}: {_side(side)}", indent=0), *map(violation, side["violations"])]
    other = [name for name in data["differs"] if not name.startswith(("parallel.", "stages."))]
    if other:
        parts.append(
            paragraph(f"not the same job: {', '.join(other)} of B {'is' if len(other) == 1 else 'are'} another", style="yellow")
        )
    parts += [heading("Time of one step"), *compared_parts(data, "A", "B")]
    if data["tolerance_percent"] is not None:
        verdict = "over" if data["over_tolerance"] else "within"
        parts.append(paragraph(f"{verdict} the tolerance of {data['tolerance_percent']:g} %"))
    return [*parts, *_changes(data["changes"], data["a"])]


def _side(side: Mapping[str, Any]) -> str:
    rank = "" if side["rank"] is None else f" rank {side['rank']}"
    fits = "" if side["feasible"] else "; cannot run"
    return f"{side['source']}{rank}: {degrees_text(side)}{fits}"


def _changes(changes: Mapping[str, Any] | None, side: Mapping[str, Any]) -> list[Any]:
    if changes is None:
        return []
    count, share = len(changes["steps"]), -changes["realised_s"] / side["predicted"]["step_time_s"]
    target = "B" if changes["towards"] == "b" else "a better plan"
    head = f"From A to {target}: change {'this' if count == 1 else f'these {count}'}: {signed_percent(share)} step time"
    shown = table("change", "step", "from A", "peak GiB", "runs", left=("runs",), wrap=("change",))
    for step in changes["steps"]:
        delta = words.UNKNOWN if step["delta_fraction"] is None else signed_percent(step["delta_fraction"])
        runs = "yes" if step["feasible"] else "no, with the next"
        shown.add_row(step["change"], words.seconds(step["step_time_s"], 4), delta, words.gib(step["peak_bytes"]), runs)
    parts = [heading(head), shown]
    total, left = len(changes["turned"]), words.percent(changes["realised_fraction"], 0)
    parts.append(paragraph(f"{left} of what all {total} differences make" if total > count else "all that differs"))
    flags = changes["flags"]
    return [*parts, paragraph("arguments: " + " ".join(flags))] if flags else parts
