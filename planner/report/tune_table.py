"""The report of `tune`: what was measured, what it says of the site, and the plans after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.hardware.site_factors import PARTS
from shardwright.planner.report import words
from shardwright.planner.report.pareto_table import degrees
from shardwright.planner.report.run_table import trial_parts
from shardwright.planner.report.style import heading, paragraph, table

SHOWN = 10


def tune_parts(data: Mapping[str, Any]) -> list[Any]:
    """Everything `tune` shows."""
    parts: list[Any] = [paragraph(f"{data['model']['name']} on {data['cluster']['name']}: {data['cluster']['gpus']:,} GPUs")]
    parts += trial_parts(data) if data["trials"] else []
    if data["site"] is None:
        said = (
            "Nothing that was measured here can be compared with its prediction, so nothing is learned. Measure plans on the "
        )
        return [*parts, paragraph(said + "planned cluster and state them: --measured RANK=SECONDS.")]
    warned = [paragraph(f"warning: {text}", style="yellow", indent=0) for text in data["warnings"]]
    return [*parts, *_measured(data), *_plans(data), *warned]


def _measured(data: Mapping[str, Any]) -> list[Any]:
    shown = table("#", "measured", "predicted", "error", "now", "error")
    for run in data["measured"]:
        measured, before, after = (run[f"{name}_step_time_s"] for name in ("measured", "before", "after"))
        shown.add_row(
            str(run["rank"]),
            *(words.seconds(measured, 4), words.seconds(before, 4), _percent(before / measured - 1)),
            *(words.seconds(after, 4), _percent(after / measured - 1)),
        )
    factors = ", ".join(f"{part} {data['site'][part]:.3f}" for part in PARTS)
    one = " One run gives one factor for all parts." if len(data["measured"]) == 1 else ""
    return [heading("Measured"), shown, paragraph(f"Times of this site over modelled times: {factors}.{one}")]


def _plans(data: Mapping[str, Any]) -> list[Any]:
    shown = table("#", "was", "measured", "predicted", "before", "plan", left=("plan",), wrap=("plan",))
    for plan in data["plans"][:SHOWN]:
        shown.add_row(
            str(plan["rank"]),
            words.count(plan["rank_before"]),
            words.seconds(plan["measured_step_time_s"], 4),
            words.seconds(plan["step_time_s"], 4),
            words.seconds(plan["before_step_time_s"], 4),
            degrees(plan["parallel"]),
        )
    return [heading("Plans after it"), shown, paragraph(_said(data))]


def _said(data: Mapping[str, Any]) -> str:
    first = data["plans"][0]
    counted = (
        "By measured time where there is one, else by predicted time; was and before: its rank and time in the result, -: "
        "not listed there. "
    )
    if first["measured_step_time_s"] is not None:
        return counted + "The first plan was measured, and none is predicted to be faster."
    return counted + "The first plan was not measured: measure it next."


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
