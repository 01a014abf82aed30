"""Parts of the report of `plan` for fewer nodes than there are: the sizes that were searched, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.offloading import offload_of
from shardwright.planner.report import words
from shardwright.planner.report.style import heading, paragraph, table

NAMED = ("tp", "cp", "pp", "vpp", "ep", "etp")


def pareto_parts(result: Mapping[str, Any]) -> list[Any]:
    """The front of step time, memory and cost; nothing where it was not asked for."""
    if not result.get("pareto"):
        return []
    shown = table("GPUs", "step", "GiB", "USD/1M", "plan", wrap=("plan",))
    for point in result["pareto"]:
        usd = point["usd_per_1m_tokens"]
        shown.add_row(
            words.count(point["parallel"]["world_size"]),
            words.seconds(point["step_time_s"], 4),
            words.gib(point["peak_bytes"]),
            words.UNKNOWN if usd is None else words.digits(usd),
            degrees(point["parallel"]),
        )
    said = "No plan is as good as one of these in step time, memory and cost, and better in one; memory in steps of 2 %."
    return [heading("Pareto front"), shown, paragraph(said, style="dim")]


def degrees(parallel: Mapping[str, Any]) -> str:
    """Degrees in one line: tp 8, pp 4, dp 4, z 1, mb 1."""
    named = [f"{name} {parallel[name]}" for name in NAMED if parallel[name] != 1]
    recompute = parallel["recompute"]["mode"].replace("selective", "sel")
    more = ["no sp"] if parallel["tp"] > 1 and not parallel["sequence_parallel"] else []
    more += [f"recompute {recompute}"] if recompute != "none" else []
    more += [f"loss in {parallel['loss_chunks']:,}"] if parallel["loss_chunks"] > 1 else []
    more += [f"offload {text}"] if (text := offload_of(parallel["offload"]).text) != "none" else []
    return ", ".join([*named, f"dp {parallel['dp']}", f"z {parallel['zero_stage']}", f"mb {parallel['micro_batch']}", *more])


def subset_parts(search: Mapping[str, Any]) -> list[Any]:
    """What was done at each size, where plans may use fewer nodes."""
    rows = search.get("subsets") or []
    if not rows:
        return []
    done: dict[str, list[str]] = {}
    for row in rows:
        done.setdefault(row["status"], []).append(str(row["nodes"]))
    return [paragraph("nodes: " + "; ".join(f"{', '.join(nodes)} {status}" for status, nodes in done.items()))]
