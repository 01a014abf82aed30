"""The report of `run`: what was measured, and whether it may be compared with what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report.style import paragraph, table

GIB = 2**30


def run_parts(data: Mapping[str, Any]) -> list[Any]:
    """Everything `run` shows."""
    parts = [paragraph(_head(data)), *trial_parts(data)]
    if data["stopped"]:
        parts.append(paragraph("Stopped by the user: the plans after these did not run."))
    return parts


def trial_parts(data: Mapping[str, Any]) -> list[Any]:
    """The trials of a run, and remarks on them."""
    shown = table(
        "rank", "plan", "step s", "tokens/s", "peak GiB", "loss", "predicted s", "error", left=("plan",), wrap=("plan",)
    )
    for trial in data["trials"]:
        shown.add_row(*_row(trial))
    return [shown, *(paragraph(line) for trial in data["trials"] for line in _remarks(trial))]


def _head(data: Mapping[str, Any]) -> str:
    machine = data["machine"]
    there = f"{machine['gpus']} x {machine['gpu']}" if machine["gpus"] else f"no GPU, {machine['cores']} cores"
    small = ", in miniature (--scale-down)" if data["scale_down"] else ""
    return f"Ran on this machine ({there}, PyTorch {machine['torch']}){small}, {data['steps']} steps a plan"


def _row(trial: Mapping[str, Any]) -> list[str]:
    measured, predicted = trial["measured"], trial["predicted"]
    made = [str(trial["rank"]), _plan(trial)]
    if measured is None:
        made += [trial["status"], "", "", ""]
    else:
        losses = measured["losses"]
        made += [f"{measured['step_time_s']:.4g}", f"{measured['tokens_per_s']:,.0f}"]
        made += [f"{measured['peak_memory_bytes'] / GIB:.2f}", f"{losses[0]:.3f} to {losses[-1]:.3f}"]
    error = trial["error"]
    return [
        *made,
        "" if predicted is None else f"{predicted['step_time_s']:.4g}",
        "not compared" if error is None else f"{100 * error:+.1f} %",
    ]


def _plan(trial: Mapping[str, Any]) -> str:
    parallel = trial["parallel"]
    names = ("dp", "tp", "cp", "pp", "vpp", "ep")
    used = [f"{name} {parallel[name]}" for name in names if parallel[name] > 1]
    return ", ".join([*used, f"zero {parallel['zero_stage']}", *([parallel["schedule"]] if parallel["pp"] > 1 else [])])


def _remarks(trial: Mapping[str, Any]) -> list[str]:
    made = []
    if trial["miniature"]:
        changed = ", ".join(f"{name} {before} to {now}" for name, (before, now) in trial["miniature"].items())
        made.append(f"Rank {trial['rank']} made smaller: {changed}")
    if trial["not_comparable"]:
        made.append(f"Rank {trial['rank']} is not compared: {trial['not_comparable']}")
    if trial["reason"]:
        made.append(f"Rank {trial['rank']} {trial['status']}: {trial['reason']}")
    return made
