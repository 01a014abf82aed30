"""The report of `explain`: time, what binds, links, operators, memory, changes, inputs, and the plan asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.estimate_table import degrees_text, predicted_text, violation
from shardwright.planner.report.memory_table import PARTS as MEMORY
from shardwright.planner.report.plan_table import header
from shardwright.planner.report.style import BARS, heading, paragraph, table
from shardwright.planner.report.time_table import LABELS

BAR = 10
NOTHING = 1e-3
"""Elasticity below which an input has no effect worth a line."""


def explanation_parts(data: Mapping[str, Any]) -> list[Any]:
    """Everything `explain` shows."""
    which = "Plan" if data["rank"] is None else f"Rank {data['rank']}"
    parts = [header(data), heading(which), paragraph(degrees_text(data)), paragraph(predicted_text(data["predicted"]))]
    parts += [violation(broken) for broken in data["violations"]]
    parts += [heading("Time of one step"), _waterfall(data["waterfall"]), *_figures(data["waterfall"])]
    parts += [heading("What binds"), *(paragraph(_constraint(one)) for one in data["constraints"])]
    parts += [heading("Slowest link of each axis"), _links(data["links"])] if data["links"] else []
    parts += [heading("Heavy operators, of one rank"), _roofline(data["roofline"])]
    parts += [heading(f"Memory of stage {data['memory']['stage']}, the fullest"), *_memory(data["memory"])]
    parts += [heading("Next best changes"), *_changes(data["changes"])]
    parts += [heading("What the inputs decide"), *_inputs(data)]
    parts += [heading(_asked(data["why_not"])), *_why_not(data["why_not"])] if data["why_not"] else []
    return parts + [paragraph(f"warning: {text}", style="yellow", indent=0) for text in data["warnings"]]


def _waterfall(rows: Sequence[Mapping[str, Any]]) -> Any:
    shown = table("part", "time", "share", BARS, "formula", left=("part", "formula"))
    for row in rows:
        if row["time_s"] > 0:
            label, share = LABELS[row["part"]], row["share"]
            shown.add_row(label, words.seconds(row["time_s"]), words.percent(share), words.bar(share, BAR), row["name"])
    return shown


def _figures(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """One line a source, with the formulas that use it."""
    users: dict[str, list[str]] = {}
    for row in rows:
        for figure in row["figures"] if row["time_s"] > 0 else ():
            error = "" if figure["median_error"] is None else f" (median error {words.percent(figure['median_error'])})"
            users.setdefault(f"{figure['origin']}, {figure['source']}{error}", []).append(row["name"])
    return [paragraph(f"{', '.join(dict.fromkeys(names))}: {source}", style="dim") for source, names in users.items()]


def _constraint(one: Mapping[str, Any]) -> str:
    return f"{one['constraint']}, {one['what']}: {words.percent(one['share'])} of the step; {one['because']}"


def _links(rows: Sequence[Mapping[str, Any]]) -> Any:
    shown = table("axis", "link", "ranks", "time", "exposed", "GB/s", "of step", left=("axis", "link"))
    for row in rows:
        rate = None if row["bytes_per_s"] is None else words.digits(row["bytes_per_s"] / 1e9)
        shown.add_row(
            row["axis"],
            row["link"],
            words.count(row["group_size"]),
            words.seconds(row["time_s"]),
            words.seconds(row["exposed_s"]),
            words.plain(rate),
            words.percent(row["share_of_step"]),
        )
    return shown


def _roofline(rows: Sequence[Mapping[str, Any]]) -> Any:
    names = ("operator", "time", "share", "FLOP/B", "achieved", "ceiling", "of it", "bound by")
    shown = table(*names, left=("bound by",), wrap=("operator",))
    for row in rows:
        products = row["flops"] is not None
        rate = [f"{words.digits(row[k] / 1e12)} T{'FLOP' if products else 'B'}/s" for k in ("achieved_per_s", "ceiling_per_s")]
        intensity = words.UNKNOWN if not products else words.count(row["intensity_flops_per_byte"])
        name = f"{row['layer']} {row['operator']}" if row["layer"] != row["operator"] else row["operator"]
        share = words.percent(row["share_of_compute"])
        attained = words.percent(row["attained_fraction"], 0)
        shown.add_row(name, words.seconds(row["time_s"]), share, intensity, *rate, attained, row["bound"])
    return shown


def _memory(memory: Mapping[str, Any]) -> list[Any]:
    shown = table("part", "GiB", "share", BARS, left=("part",))
    for row in memory["parts"]:
        if row["bytes"]:
            share = row["bytes"] / memory["capacity_bytes"]
            shown.add_row(MEMORY[row["part"]], words.gib(row["bytes"]), words.percent(row["share"]), words.bar(share, BAR))
    of = f"{words.gib(memory['total_bytes'])} of {words.gib(memory['capacity_bytes'])} GiB"
    free = memory["free_bytes"]
    return [shown, paragraph(f"{of}, {words.gib(abs(free))} GiB {'free' if free >= 0 else 'too much'}")]


def _changes(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not rows:
        return [paragraph("none: no legal plan is one or two changes away")]
    shown = table("change", "step", "time", "memory", "fits", left=("fits",), wrap=("change",))
    for row in rows:
        fits = "yes" if row["fits"] else f"no, {words.gib(row['shortage_bytes'])} GiB short"
        step = words.seconds(row["step_time_s"], 4)
        shown.add_row(row["change"], step, signed_percent(row["delta_fraction"]), signed_gib(row["delta_bytes"]), fits)
    best = next((row for row in rows if row["fits"]), None)
    faster = best is not None and best["delta_s"] < 0
    return [shown] if faster else [shown, paragraph("no plan one or two changes away that fits is faster")]


def _inputs(data: Mapping[str, Any]) -> list[Any]:
    winner = data["winner"]
    shown = table("input", "value", "+10 % does", "another plan wins", left=("input", "another plan wins"), wrap=("input",))
    told = [row for row in data["inputs"] if row["switch"] or abs(row["elasticity"] or 0.0) >= NOTHING]
    for row in told:
        effect = words.UNKNOWN if row["elasticity"] is None else signed_percent(1.1 ** row["elasticity"] - 1, 2)
        shown.add_row(row["label"], quantity(row["value"], row["unit"]), effect, _switch(row))
    rest = [row["label"] for row in data["inputs"] if row not in told]
    parts = [shown, *([paragraph("no effect: " + "; ".join(rest), style="dim")] if rest else [])]
    if winner is None:
        return [*parts, paragraph("one plan alone: there is no other that could win")]
    limit = f"within a factor of {winner['factor_at_most']:g}"
    return [
        *parts,
        paragraph(
            f"Rank {winner['rank']} of {winner['among']} plans; -: stays first {limit}. Each point is priced anew.", style="dim"
        ),
    ]


def _switch(row: Mapping[str, Any]) -> str:
    found = row["switch"]
    if found is None:
        return words.UNKNOWN
    change = signed_percent(found["change_fraction"], 0)
    return f"rank {found['rank']} at {quantity(found['value'], row['unit'])} ({change})"


def quantity(value: float, unit: str) -> str:
    """A value with its unit, in the size that people use."""
    sizes = {"FLOP/s": (1e12, "TFLOP/s"), "B/s": (1e9, "GB/s"), "B": (2**30, "GiB"), "s": (1e-6, "µs")}
    factor, name = sizes.get(unit, (1.0, unit))
    return f"{words.digits(value / factor, 3)} {name}".rstrip()


def signed_percent(value: float, decimals: int = 1) -> str:
    """A relative change with its sign."""
    return f"{100 * value + 0.0:+.{decimals}f} %".replace(f"-{0:.{decimals}f} ", f"+{0:.{decimals}f} ")


def signed_gib(value: float) -> str:
    """A change of memory with its sign."""
    return f"{value / words.GIB:+,.1f} GiB"


def _asked(why_not: Mapping[str, Any]) -> str:
    return "Why not " + words.joined(why_not["asked"])


def _why_not(why_not: Mapping[str, Any]) -> list[Any]:
    parts = [paragraph("with " + words.joined(why_not["followed"]) + ", which follow")] if why_not["followed"] else []
    parts += [paragraph("this is the plan explained above")] if why_not["same"] else []
    parts += [violation(broken) for broken in why_not["violations"]]
    if why_not["comparison"] and not why_not["same"]:
        parts += compared_parts(why_not["comparison"], "this plan", "that plan")
    best = why_not["best"]
    if best is None:
        return [*parts, paragraph("no plan that has them keeps all rules and fits")]
    change = f"{signed_percent(best['delta_fraction'])} time, {signed_gib(best['delta_bytes'])}"
    return [
        *parts,
        paragraph(f"the best plan that has them takes {words.seconds(best['step_time_s'], 4)} ({change}):"),
        _plan(best),
    ]


def _plan(best: Mapping[str, Any]) -> Any:
    return paragraph(words.joined(best["plan"], " "), indent=4)


def compared_parts(compared: Mapping[str, Any], one: str, other: str) -> list[Any]:
    """Two plans by part, delta = other − one."""
    shown = table("part", one, other, "delta", "of step", left=("part",))
    total = compared["step"]
    for row in compared["parts"]:
        if row["a_s"] or row["b_s"]:
            _compared_row(shown, LABELS[row["name"]], row, total["a_s"])
    _compared_row(shown, "step", total, total["a_s"])
    peak = compared["peak_bytes"]
    memory = f"peak memory {words.gib(peak['a_bytes'])} and {words.gib(peak['b_bytes'])} GiB, {signed_gib(peak['delta_bytes'])}"
    return [shown, paragraph(memory)]


def _compared_row(shown: Any, label: str, row: Mapping[str, Any], step: float) -> None:
    sign = "+" if row["delta_s"] >= 0 else "-"
    delta = sign + words.seconds(abs(row["delta_s"]))
    share = signed_percent(row["delta_s"] / step)
    shown.add_row(label, words.seconds(row["a_s"]), words.seconds(row["b_s"]), delta, share)
