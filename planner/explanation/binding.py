"""What binds a plan: what is at stake in each constraint, as a share of the step.

    memory              what the fastest neighbour that does not fit would save, or what recomputing costs
    link                exposed exchange of an axis: the link that the axis waits for most
    bubble              waiting for other ranks
    memory bandwidth    the update
    host                launches that the host is late with
    compute             what is left: the operator that takes most of it, and what limits that

`links` gives the slowest link of every axis, `peak` the memory of the fullest stage by part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.cost.memory import PARTS
from shardwright.planner.explanation.saved import Record

WORTH = 0.01
"""Share of the step from which something binds."""

KINDS: Mapping[str, str] = {
    "recompute_s": "memory",
    "exposed_tp_s": "link",
    "exposed_cp_s": "link",
    "exposed_ep_s": "link",
    "exposed_pp_s": "link",
    "exposed_dp_s": "link",
    "bubble_s": "bubble",
    "optimizer_s": "memory bandwidth",
    "other_s": "host",
}


def links(estimate: Mapping[str, Any]) -> list[Record]:
    """For each axis that exchanges, the link it waits for longest, with the collectives that cross it."""
    made = []
    for axis in dict.fromkeys(row["axis"] for row in estimate["communication"]):
        rows = [row for row in estimate["communication"] if row["axis"] == axis]
        by_link: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_link.setdefault(str(row["bottleneck_link"]), []).append(row)
        link, own = max(by_link.items(), key=lambda item: sum(row["time_s"] for row in item[1]))
        time_s, sent = (sum(row[name] for row in own) for name in ("time_s", "wire_bytes"))
        made.append(
            {
                "axis": axis,
                "link": link,
                "collectives": [row["collective"] for row in own],
                "group_size": max(row["group_size"] for row in own),
                "time_s": time_s,
                "exposed_s": sum(row["exposed_s"] for row in own),
                "sent_bytes": sent,
                "bytes_per_s": sent / time_s if time_s > 0 else None,
                "share_of_step": time_s / estimate["predicted"]["step_time_s"],
            }
        )
    return made


def peak(estimate: Mapping[str, Any]) -> Record:
    """Memory of the fullest stage by part, largest first."""
    stage = estimate["memory"]["peak_stage"]
    memory = estimate["stages"][stage]["memory"]
    total, capacity = memory["total_bytes"], memory["capacity_bytes"]
    parts = sorted(PARTS, key=lambda name: -memory[name])
    return {
        "stage": stage,
        "parts": [{"part": name, "bytes": memory[name], "share": memory[name] / total} for name in parts],
        "total_bytes": total,
        "capacity_bytes": capacity,
        "free_bytes": capacity - total,
    }


def constraints(estimate: Mapping[str, Any], changes: Sequence[Record], operators: Sequence[Record]) -> list[Record]:
    """What binds, with the share of the step that is at stake, the greatest first; computing last where it does not bind.

    Args:
        estimate: the plan.
        changes: its neighbours.
        operators: its operators, the heaviest first.
    """
    time, step = estimate["time"], estimate["predicted"]["step_time_s"]
    slowest = {row["axis"]: row["link"] for row in links(estimate)}
    hosted = bool(estimate["parallel"]["offload"]["optimizer"])
    found = [_part(name, time[name] / step, slowest, hosted) for name in KINDS if name != "recompute_s" and time[name] > 0]
    found += _memory(estimate, changes, time["recompute_s"] / step)
    found = sorted((one for one in found if one["share"] >= WORTH), key=lambda one: (-one["share"], one["part"]))
    return [*found, _computing(operators, time["compute_s"] / step)]


def _part(name: str, share: float, slowest: Mapping[str, str], hosted: bool) -> Record:
    if hosted and name == "optimizer_s":
        because = "the host updates what is offloaded, bound by its memory or by the copies"
        return {"constraint": "host", "part": name, "what": "optimizer", "share": share, "because": because}
    if KINDS[name] != "link":
        return {
            "constraint": KINDS[name],
            "part": name,
            "what": name.removesuffix("_s"),
            "share": share,
            "because": BECAUSE[name],
        }
    axis = name.removeprefix("exposed_").removesuffix("_s")
    because = f"{axis} exchange that nothing hides waits for it"
    return {"constraint": "link", "part": name, "what": slowest.get(axis), "share": share, "because": because}


def _memory(estimate: Mapping[str, Any], changes: Sequence[Record], recomputed: float) -> list[Record]:
    """What more memory would save."""
    memory, largest = estimate["memory"], peak(estimate)["parts"][0]["part"]
    made = {"constraint": "memory", "part": largest, "what": largest.removesuffix("_bytes")}
    if memory["peak_bytes"] > memory["capacity_bytes"]:
        return [made | {"share": 1.0, "because": "the plan does not fit"}]
    short = [change for change in changes if not change["fits"] and change["delta_s"] < 0]
    saves = max((-change["delta_fraction"] for change in short), default=0.0)
    if recomputed >= saves:
        return [made | {"share": recomputed, "because": "layers are recomputed so that they fit"}]
    best = min(short, key=lambda change: change["delta_s"])
    return [made | {"share": saves, "because": f"faster, but does not fit: {best['change']}"}]


def _computing(operators: Sequence[Record], share: float) -> Record:
    heaviest = operators[0]
    layer, name = heaviest["layer"], heaviest["operator"]
    because = f"{name if layer == name else f'{layer} {name}'} takes most of it and is bound by {heaviest['bound']}"
    return {"constraint": "compute", "part": "compute_s", "what": heaviest["operator"], "share": share, "because": because}


BECAUSE: Mapping[str, str] = {
    "bubble_s": "ranks wait for each other in the pipeline, or for the rank with the most to do",
    "optimizer_s": "the update reads and writes the states once a step",
    "other_s": "the host launches kernels more slowly than the device runs them",
}
