"""Memory of every stage by component, with the line of what a device has.

The scale ends at the capacity or at the fullest stage, whichever is more, so that a stage that does not fit reaches past it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.html import bars
from shardwright.planner.report.html.picture import Legend, Picture, Table

PARTS = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer states",
    "activations_bytes": "activations",
    "logits_bytes": "logits",
    "buffers_bytes": "buffers",
    "reserve_bytes": "reserve",
}


def memory_picture(plan: Mapping[str, Any]) -> Picture:
    """The picture of one ESTIMATE."""
    stages = [stage["memory"] for stage in plan["stages"]]
    capacity = max(memory["capacity_bytes"] for memory in stages)
    widest = max(capacity, *(memory["total_bytes"] for memory in stages))
    rows = [_row(stage, widest) for stage in plan["stages"]]
    mark = (capacity / widest, f"capacity {words.gib(capacity)} GiB")
    peak, lost = plan["memory"]["peak_stage"], sum(memory["total_bytes"] > memory["capacity_bytes"] for memory in stages)
    fault = f" Too large (>): {words.many(lost, 'stage')}." if lost else ""
    return Picture(
        id="memory",
        title="Memory of each stage",
        caption=f"GiB on the fullest rank of each stage at its own peak instant; stage {peak} is the fullest.{fault}",
        data={"capacity_bytes": capacity, "stages": [{"index": s["index"], **s["memory"]} for s in plan["stages"]]},
        body=bars.drawn(rows, mark=mark),
        height=bars.height(rows, 20),
        legend=[Legend(class_=_class(name), label=label) for name, label in PARTS.items() if any(m[name] for m in stages)],
        table=Table(
            columns=("stage", "layers", *PARTS.values(), "total", "capacity"),
            rows=[_cells(stage) for stage in plan["stages"]],
        ),
    )


def _class(part: str) -> str:
    return "m-" + part.removesuffix("_bytes")


def _row(stage: Mapping[str, Any], widest: float) -> bars.Row:
    memory = stage["memory"]
    over = memory["total_bytes"] > memory["capacity_bytes"]
    ends = [name for name in stage["holds"] if name != "loss"]
    return bars.Row(
        label=f"stage {stage['index']}" + (f" · {', '.join(ends)}" if ends else ""),
        reading=f"{words.gib(memory['total_bytes'])} {'>' if over else 'of'} {words.gib(memory['capacity_bytes'])}",
        segments=tuple(_segments(memory, widest)),
        index=stage["index"],
        strong=over,
    )


def _segments(memory: Mapping[str, int], widest: float) -> Iterator[bars.Segment]:
    start = 0
    for name, label in PARTS.items():
        if memory[name]:
            end = start + memory[name]
            title = f"{label} {words.gib(memory[name])} GiB"
            place = {"start": start / widest, "end": end / widest}
            yield bars.Segment(**place, class_=_class(name), title=title, key=name, value=memory[name])
            start = end


def _cells(stage: Mapping[str, Any]) -> tuple[str, ...]:
    memory = stage["memory"]
    parts = (words.gib(memory[name]) for name in (*PARTS, "total_bytes", "capacity_bytes"))
    return (str(stage["index"]), layers(stage), *parts)


def layers(stage: Mapping[str, Any]) -> str:
    """The layers of a stage, an interval a chunk."""
    spans = [f"{first}–{last}" if last > first else str(first) for first, last in filter(None, stage["layers"])]
    return ", ".join(spans) or words.UNKNOWN
