"""The part of the report of `plan --trials`: which plans to measure, and the chance that the fastest is among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.pareto_table import degrees
from shardwright.planner.report.style import heading, paragraph, table


def trials_parts(result: Mapping[str, Any]) -> list[Any]:
    """The plans to measure, in order; nothing where they were not asked for or nothing fits."""
    trials = result.get("trials")
    if not trials or not trials["plans"]:
        return []
    shown = table("#", "step", "adds %", "holds %", "loss %", "plan", left=("plan",))
    for plan in trials["plans"]:
        shown.add_row(
            words.UNKNOWN if plan["rank"] is None else str(plan["rank"]),
            words.seconds(plan["step_time_s"], 4),
            *(_percent(plan[key]) for key in ("probability", "cumulative_probability", "expected_loss")),
            degrees(plan["parallel"]),
        )
    said = (
        "#: rank above. adds: chance that this plan is the fastest of "
        f"{words.many(trials['candidates'], 'different plan')} up to {words.seconds(trials['slowest_step_time_s'])} a step; "
        "holds: that the fastest is among the plans so far; loss: what the best of these is expected to take more. Predictions "
        "err as they do between published runs of one job."
    )
    return [heading("To measure"), shown, paragraph(said, style="dim")]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
