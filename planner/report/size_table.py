"""The report of `size`: the target, the answers with their runs, what happens when nodes are lost, every size.

size_parts(result) -> parts for `style.to_text`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.pareto_table import degrees
from shardwright.planner.report.plan_table import assumptions
from shardwright.planner.report.style import heading, paragraph, table

Record = Mapping[str, Any]


def size_parts(result: Record) -> list[Any]:
    """Everything `size` shows."""
    parts = [_header(result)]
    if result["answers"]:
        parts += [heading("Answers"), _answers(result), *_told(result)]
    else:
        parts += [heading("No size meets the target"), *_nearest(result)]
    parts += [heading("Sizes"), _sizes(result), *_bounds(result)]
    return [*parts, heading("Assumed"), *assumptions(result["assumptions"])]


def _header(result: Record) -> Any:
    from rich.text import Text

    model, training, target = result["model"], result["training"], result["target"]
    job = (
        f"{words.many(training['global_batch'], 'sequence')} of {words.count(training['seq_len'])} tokens a step; "
        f"{training['precision']}, {training['optimizer']}"
    )
    return Text(f"{model['name']}, {words.big(target['tokens'])} tokens {limit(target)}\n{job}")


def limit(target: Record) -> str:
    """The limit of a target in words."""
    if target["days"] is not None:
        return f"within {words.plain(target['days'])} days"
    if target["budget_usd"] is not None:
        return f"for at most {words.count(target['budget_usd'])} USD"
    return f"at {words.count(target['tokens_per_s'])} useful tokens a second or more"


def _answers(result: Record) -> Any:
    shown = table("", "cluster", "GPUs", "step", "days", "interval", "USD", "good %", "tok/s", left=("", "cluster"))
    for answer in result["answers"]:
        shown.add_row(answer["criterion"], *_cells(answer))
    return shown


def _cells(run: Record) -> tuple[str, ...]:
    return (
        run["cluster"]["name"],
        words.count(run["cluster"]["gpus"]),
        words.seconds(run["step_time_s"]),
        words.digits(run["days"]),
        f"{words.digits(run['days_low'])}-{words.digits(run['days_high'])}",
        _money(run["usd"]),
        words.percent(run["goodput_fraction"]).removesuffix(" %"),
        words.count(run["tokens_per_s"]),
    )


def _money(usd: float) -> str:
    return words.big(usd).replace(" B", " bn") if usd >= 1e6 else words.count(usd)


def _told(result: Record) -> list[Any]:
    """A paragraph an answer: plan, price, failures, lost nodes; equal clusters once."""
    seen: dict[str, list[str]] = {}
    for answer in result["answers"]:
        seen.setdefault(answer["cluster"]["name"], []).append(answer["criterion"])
    firsts = {answer["cluster"]["name"]: answer for answer in reversed(result["answers"])}
    said = [
        paragraph(f"{' and '.join(criteria)}: " + "; ".join(_story(firsts[name]))) for name, criteria in reversed(seen.items())
    ]
    legend = (
        "days: wall clock with failures at the middle of the published rates; interval: at the least and the greatest. "
        "USD: of the wall clock."
    )
    prices = {answer["cluster"]["node"]: answer["cluster"] for answer in result["answers"]}
    priced = "; ".join(f"{node} {c['usd_per_gpu_hour']:.2f} ({c['price_source']})" for node, c in prices.items())
    told = [paragraph(legend, style="dim"), *reversed(said), *_between(result)]
    return [*told, paragraph(f"USD a GPU-hour: {priced}")]


def _between(result: Record) -> list[Any]:
    """Sizes below the smallest answer that nobody asked for and no bound excludes."""
    smallest = result["answers"][0]["cluster"]
    below = [row["nodes"] for row in result["sizes"] if row["node"] == smallest["node"] and row["nodes"] < smallest["nodes"]]
    first = max(below, default=0) + 1
    if not below or first >= smallest["nodes"]:
        return []
    more = f"--node {smallest['node']} --nodes {first}..{smallest['nodes'] - 1}+1"
    return [paragraph(f"sizes between {first - 1} and {smallest['nodes']} nodes were not tried: {more}")]


def _story(answer: Record) -> list[str]:
    worst = "met" if answer["meets_at_worst"] else "missed"
    said = [
        degrees(answer["plan"]["parallel"]),
        *_failures(answer),
        f"at the greatest rate the target is {worst}",
    ]
    return said + ([_lost(answer["spare"])] if answer.get("spare") else [])


def _failures(run: Record) -> list[str]:
    if run["mtti_s"] is None:
        return ["no interruptions"]
    return [
        f"{words.digits(run['interruptions'], 2)} interruptions, one every {words.span(run['mtti_s'])}, "
        f"{words.span(run['restart_s'])} to restart",
        f"a checkpoint every {words.span(run['checkpoint_interval_s'])} takes {words.seconds(run['checkpoint_s'])}, "
        f"{words.message_size(run['checkpoint_bytes_per_rank'])} a rank",
    ]


def _lost(spare: Record) -> str:
    left = f"with {words.many(spare['lost'], 'node')} lost"
    if spare["plan"] is None:
        return f"{left}: {spare['reason']}"
    used = "" if spare["nodes_used"] == spare["nodes"] else f" on {spare['nodes_used']} of the {spare['nodes']} left"
    return (
        f"{left}{used}: {words.seconds(spare['step_time_s'])} a step with {degrees(spare['plan']['parallel'])}, "
        f"{words.digits(spare['days'])} days, {words.message_size(spare['checkpoint_bytes_per_rank'])} of checkpoint a rank"
    )


def _nearest(result: Record) -> list[Any]:
    near = result["nearest"]
    if near is None:
        return [paragraph("nothing fits at any of the sizes that were tried")]
    shown = table("", "cluster", "GPUs", "step", "days", "interval", "USD", "good %", "tok/s", left=("", "cluster"))
    shown.add_row("nearest", *_cells(near))
    return [shown, paragraph(f"it misses the target by a factor of {words.digits(near['excess'])}")]


def _sizes(result: Record) -> Any:
    shown = table("cluster", "GPUs", "at least", "days", "USD", "", left=("cluster", ""))
    for row in result["sizes"]:
        if row["status"] == "excluded":
            continue
        shown.add_row(
            f"{row['node']}:{row['nodes']}",
            words.count(row["gpus"]),
            words.digits(row["least_days"]),
            words.UNKNOWN if row["days"] is None else words.digits(row["days"]),
            words.UNKNOWN if row["usd"] is None else _money(row["usd"]),
            row["status"],
        )
    return shown


def _bounds(result: Record) -> list[Any]:
    said = [
        f"{node}: up to {words.many(bound['excluded_up_to_nodes'], 'node')} excluded ({bound['reason']})"
        for node, bound in result["bound"].items()
        if bound["excluded_up_to_nodes"] is not None
    ]
    legend = "at least: days with every FLOP at the full rate of all GPUs and no failures, which no plan beats."
    return [paragraph(legend, style="dim"), *(paragraph(text) for text in said)]
