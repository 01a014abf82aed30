"""The report of `sweep`: a table a job over the numbers of nodes, or one table over whatever else differs.

    sweep_parts(records, asked) -> parts for `style.to_text`

Plans are told in short (`tp4 pp2×4 dp64 z1 mb1`; degrees of one left out). What has no plan is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.plan_table import RECOMPUTE, data_parallel
from shardwright.planner.report.style import heading, paragraph, table
from shardwright.planner.report.sweep_words import cell, job_text, knee_text, thousands
from shardwright.planner.sweep.scaling import Series, job_of, measures, series_of

EFFICIENCY = "eff: tokens a second of a GPU, in % of those at the smallest size that fits. "
LEGEND = (
    "tok/s: of all GPUs. comm: % of the step in exchange that no computing hides. MFU: %. $/M: USD per million tokens. "
    "free: GiB left on the fullest device. z: ZeRO stage, mb: micro-batch."
)
FIGURES = ("plan", "step", "tok/s", "eff", "comm", "MFU", "$/M", "free")
NAMES = {"seq_len": "seq", "batch_rule": "batch", "precision": "prec"}


def sweep_parts(records: Sequence[dict[str, Any]], asked: int) -> list[Any]:
    """Everything `sweep` shows."""
    jobs = [(job, list(points)) for job, points in groupby(records, key=lambda record: job_of(record["key"]))]
    varying = _varying([record["key"] for record in records])
    parts = [_header(records, asked, varying)]
    if flat := all(len(points) == 1 for _, points in jobs):
        parts += [heading("Points"), _flat(records, varying), *_without_plan(records, varying)]
    else:
        for job, points in jobs:
            parts += [heading(_said(job, varying) or "Sizes"), *_sizes(points)]
    return [*parts, paragraph(LEGEND if flat else EFFICIENCY + LEGEND, style="dim")]


def plan_in_short(plan: Mapping[str, Any]) -> str:
    """The degrees of a plan on one line."""
    parallel = plan["parallel"]
    said = [f"{name}{parallel[name]}" for name in ("tp", "cp") if parallel[name] > 1]
    if parallel["pp"] > 1:
        said.append(f"pp{parallel['pp']}" + (f"×{parallel['vpp']}" if parallel["vpp"] > 1 else ""))
    said += [f"ep{parallel['ep']}"] if parallel["ep"] > 1 else []
    said += [f"dp{data_parallel(parallel)}", f"z{parallel['zero_stage']}", f"mb{parallel['micro_batch']}"]
    mode = parallel["recompute"]["mode"]
    return " ".join(said + ([RECOMPUTE.get(mode, mode)] if mode != "none" else []))


def _varying(keys: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Parts of the key that differ between points; the batch as it was stated."""
    rows = list(keys)
    names = ("model", "node", "nodes", "gpus", "seq_len", "batch_rule", "precision", "framework")
    return tuple(name for name in names if len({row[name] for row in rows}) > 1)


def _header(records: Sequence[Mapping[str, Any]], asked: int, varying: Sequence[str]) -> Any:
    from rich.text import Text

    count = {status: sum(record["status"] == status for record in records) for status in ("ok", "infeasible", "error")}
    said = f"{words.many(asked, 'point')}: {count['ok']} with a plan, {count['infeasible']} where nothing fits"
    said += f", {count['error']} that cannot be priced" if count["error"] else ""
    said += f", {asked - len(records)} not finished" if len(records) < asked else ""
    common = {name: value for name, value in job_of(records[0]["key"]).items() if name not in varying} if records else {}
    return Text(f"Sweep of {said}\n{job_text(common)}")


def _said(job: Mapping[str, Any], varying: Sequence[str]) -> str:
    return job_text({name: value for name, value in job.items() if name in varying})


def _sizes(points: Sequence[dict[str, Any]]) -> list[Any]:
    """The table of one job, its knee, and the sizes without a plan."""
    series = next(iter(series_of(points)))
    shown = table("nodes", "GPUs", *FIGURES, left=("plan",))
    for at, record in enumerate(record for record in points if record["best"] is not None):
        shown.add_row(words.count(record["key"]["nodes"]), words.count(record["key"]["gpus"]), *_figures(record, series, at))
    parts = [shown] if series.sizes else []
    parts += [paragraph(knee_text(series.knee))] if series.knee else []
    return parts + _without_plan(points, ("nodes",))


def _flat(records: Sequence[dict[str, Any]], varying: Sequence[str]) -> Any:
    names = [NAMES.get(name, name) for name in varying]
    texts = [NAMES.get(name, name) for name in varying if name not in {"nodes", "gpus", "seq_len"}]
    figures = [name for name in FIGURES if name != "eff"]
    shown = table(*names, *figures, left=("plan", *texts))
    for record in records:
        if record["best"] is not None:
            shown.add_row(*(cell(record["key"][name]) for name in varying), *_figures(record, None, 0))
    return shown


def _figures(record: dict[str, Any], series: Series | None, at: int) -> tuple[str, ...]:
    one = measures(record)
    if one is None:  # pragma: no cover - only asked about points with a plan
        return ()
    efficiency = [f"{100 * series.efficiency(at):.0f}"] if series is not None else []
    return (
        plan_in_short(record["best"]),
        words.seconds(one.step_s),
        thousands(one.tokens_per_s),
        *efficiency,
        f"{100 * one.exposed_share:.0f}",
        f"{100 * one.mfu:.1f}",
        words.UNKNOWN if one.usd is None else words.digits(one.usd),
        words.gib(one.headroom_bytes),
    )


def _without_plan(records: Sequence[Mapping[str, Any]], varying: Sequence[str]) -> list[Any]:
    """Points that have no plan, a line each."""
    lines = []
    for record in records:
        if record["best"] is None:
            key = record["key"]
            told = ", ".join(
                words.many(key[n], "node") if n == "nodes" else str(key[n])
                for n in varying
                if n != "gpus" or "nodes" not in varying
            )
            lines.append(paragraph(f"{told}: {record['reason']}" if told else str(record["reason"])))
    return lines
