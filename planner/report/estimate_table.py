"""The report of `estimate`: one plan's degrees, speed, time, memory and communication.

estimate_parts(estimate) -> parts for `style.to_text`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.intervals import KINDS
from shardwright.planner.offloading import offload_of
from shardwright.planner.report import words
from shardwright.planner.report.memory_table import memory_parts
from shardwright.planner.report.plan_table import assumptions, data_parallel, header, recompute
from shardwright.planner.report.style import heading, paragraph, table
from shardwright.planner.report.time_table import time_waterfall


def estimate_parts(estimate: Mapping[str, Any]) -> list[Any]:
    """Everything `estimate` shows; of a plan that cannot be priced, what is wrong with it."""
    parts = [header(estimate), paragraph(degrees_text(estimate), indent=0), heading(_verdict(estimate))]
    parts += [violation(v) for v in estimate["violations"]]
    if estimate["predicted"] is not None:
        aim = objective_text(estimate["predicted"], estimate["inputs"]["search"].get("objective"))
        parts += [paragraph(aim + predicted_text(estimate["predicted"])), *_interval(estimate["predicted"])]
        parts += [heading("Time of one step"), time_waterfall(estimate["time"])]
        parts += [heading("Memory of each stage, GiB"), *memory_parts(estimate)]
        parts += [heading("Communication of one step"), *_communication(estimate["communication"], estimate["account"])]
    parts += [heading("Figures from"), *_sources(estimate["sources"])] if estimate["sources"] else []
    parts += [heading("Assumed"), *assumptions(estimate["assumptions"])]
    return parts + [paragraph(f"warning: {text}", style="yellow", indent=0) for text in estimate["warnings"]]


def degrees_text(estimate: Mapping[str, Any]) -> str:
    """The degrees of a plan in a sentence."""
    p = estimate["parallel"]
    named = [f"{name} {p[name]}" for name in ("tp", "cp", "pp", "vpp", "ep", "etp") if p[name] != 1 or name in ("tp", "pp")]
    if p["world_size"] is None:
        return ", ".join([*named, f"micro-batch {p['micro_batch']}", f"zero {p['zero_stage']}"])
    schedule = [p["schedule"]] if p["pp"] > 1 else []
    rest = [
        f"dp {data_parallel(p)}",
        f"zero {p['zero_stage']}",
        f"{words.many(p['micro_batches'], 'micro-batch', 'micro-batches')} of {p['micro_batch']}",
        *schedule,
        "sequence parallel" if p["sequence_parallel"] else "no sequence parallel",
        f"recompute {_recomputed(estimate)}",
        *([f"dispatcher {p['moe_dispatcher']}"] if p.get("moe_dispatcher") not in {None, "alltoall"} else []),
        *([f"loss in {p['loss_chunks']:,} pieces"] if p["loss_chunks"] > 1 else []),
        *([f"offload {text}"] if (text := offload_of(p["offload"]).text) != "none" else []),
        words.many(p["world_size"], "GPU"),
    ]
    return ", ".join(named + rest)


def _recomputed(estimate: Mapping[str, Any]) -> str:
    """The mode; where the stages are known, also how many layers of them."""
    return recompute(estimate, {}) if "stages" in estimate else str(estimate["parallel"]["recompute"]["mode"])


def _verdict(estimate: Mapping[str, Any]) -> str:
    if estimate["feasible"]:
        expressible = estimate["expressible_by"]
        return "Fits" + (f"; can be launched by {', '.join(expressible)}" if expressible else "; no target can launch it")
    return f"Cannot run: {words.many(len(estimate['violations']), 'violation')}"


def violation(broken: Mapping[str, Any]) -> Any:
    """A broken rule with its remedy."""
    return paragraph(f"{broken['rule']}: {broken['message']}\n  → {broken['remedy']}", style="red")


def predicted_text(predicted: Mapping[str, Any]) -> str:
    """The headline figures in a sentence."""
    low, high = predicted["step_time_low_s"], predicted["step_time_high_s"]
    interval = f" ({words.seconds(low)} to {words.seconds(high)})" if low is not None and high is not None else ""
    peak = f"{words.digits(predicted['peak_tflops'], 4)} ({predicted['flops_convention']} attention)"
    said = [
        f"step {words.seconds(predicted['step_time_s'], 4)}{interval}",
        f"{words.count(predicted['tokens_per_s'])} tokens/s, {words.count(predicted['tokens_per_s_per_gpu'])} a GPU",
        f"{words.digits(predicted['model_tflops_per_gpu'], 4)} model TFLOP/s a GPU",
        f"MFU {words.percent(predicted['mfu'])} of {peak}",
    ]
    extras = {"usd_per_1m_tokens": "USD per million tokens", "joules_per_token": "J a token"}
    said += [f"{words.digits(predicted[k])} {unit}" for k, unit in extras.items() if predicted[k] is not None]
    return "; ".join([*said, *words.failures(predicted)])


def _interval(predicted: Mapping[str, Any]) -> list[Any]:
    """Why the interval is as wide as it is; nothing for plans saved before that was stated."""
    width = predicted.get("interval")
    if width is None or predicted["step_time_low_s"] is None:
        return []
    step = predicted["step_time_s"]
    low, high = (100 * (predicted[key] / step - 1) for key in ("step_time_low_s", "step_time_high_s"))
    said = (
        f"interval {low:+.0f} to {high:+.0f} %: 80 % of measured runs of {KINDS[width['kind']]} lie so near their predictions "
        f"({words.many(width['runs'], 'run')}, {words.many(width['sources'], 'source')})"
    )
    site = (
        "" if width["site_share"] == 1 else f"; measured steps of this site leave {words.percent(width['site_share'], 0)} of it"
    )
    return [paragraph(said + site)]


def objective_text(predicted: Mapping[str, Any], objective: str | None) -> str:
    """What another objective than throughput makes of the plan; empty for throughput."""
    if objective == "cost" and predicted["usd_per_1m_tokens"] is not None:
        return f"cost: {words.digits(predicted['usd_per_1m_tokens'], 4)} USD per million tokens; "
    if objective == "energy" and predicted["joules_per_token"] is not None:
        return f"energy: {words.digits(predicted['joules_per_token'], 4)} J a token; "
    if objective == "goodput" and predicted["goodput_fraction"]:
        return f"goodput: {words.count(predicted['tokens_per_s'] * predicted['goodput_fraction'])} useful tokens/s; "
    return ""


def _communication(rows: Sequence[Mapping[str, Any]], account: Mapping[str, Any]) -> list[Any]:
    if not rows:
        return [paragraph("none")]
    shown = table("axis", "collective", "ranks", "message", "count", "time", "exposed", "algorithm", "link", left=_LEFT)
    for row in rows:
        shown.add_row(
            row["axis"],
            row["collective"],
            words.count(row["group_size"]),
            words.message_size(row["message_bytes"]),
            words.count(row["count_per_step"]),
            words.seconds(row["time_s"]),
            words.seconds(row["exposed_s"]),
            words.plain(row["algorithm"]),
            words.plain(row["bottleneck_link"]),
        )
    return [shown, paragraph(_account(account))]


_LEFT = ("axis", "collective", "algorithm", "link")


def _account(account: Mapping[str, Any]) -> str:
    said = []
    if account["overlap_covered_fraction"] is not None:
        said.append(f"computation hides {words.percent(account['overlap_covered_fraction'], 0)} of it")
    if account["bottleneck_link"] is not None:
        busy = words.percent(account["bottleneck_utilisation"], 0)
        said.append(f"busiest link: {account['bottleneck_link']}, {busy} of the step")
    if account["bytes_moved_links_per_flop"] is not None:
        said.append(f"{account['bytes_moved_links_per_flop']:.3g} bytes over links per FLOP")
    return "; ".join(said)


def _sources(sources: Mapping[str, Any]) -> list[Any]:
    """One line a source, with the terms that come from it."""
    terms: dict[str, list[str]] = {}
    for term, source in sources.items():
        terms.setdefault(_source(source), []).append(term)
    return [paragraph(f"{', '.join(names)}: {source}") for source, names in terms.items()]


def _source(source: Any) -> str:
    if not isinstance(source, Mapping):
        return str(source)
    error = source.get("median_error")
    said = f"{source.get('origin')}, {source.get('source')}"
    return said if error is None else f"{said} (median error {words.percent(error)})"
