"""The tables of the page: ranked plans, collectives, sources, assumptions, points of a sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.html.page import Cell, Column, Grid, Line
from shardwright.planner.report.plan_table import data_parallel, recompute

_DEGREES = ("tp", "cp", "pp", "vpp", "ep")


def plans_grid(plans: Sequence[Mapping[str, Any]], shown: int, title: str) -> Grid:
    """The ranked plans, or the nearest misses, which have no rank.

    Args:
        plans: ESTIMATEs.
        shown: 1-based place of the one whose details the page shows.
        title: what they are.
    """
    sizes = len({plan["parallel"]["world_size"] for plan in plans}) > 1
    rows = [_plan(plan, place, place == shown, sizes) for place, plan in enumerate(plans, 1)]
    columns = [column for column in _COLUMNS if sizes or column.name != "GPUs"]
    caption = f"{title}. The marked one is shown below; --rank N shows another. A heading sorts."
    return Grid(id="plans-table", caption=caption, columns=columns, rows=rows, sortable=True)


_COLUMNS = (
    Column(name="#", number=True, hint="rank"),
    Column(name="tie", number=True, hint="plans of one tie group are nearer to each other than the model's error"),
    Column(name="GPUs", number=True, hint="GPUs it uses"),
    *(Column(name=name, number=True) for name in _DEGREES),
    Column(name="dp", number=True, hint="data parallel: replicas × shards"),
    Column(name="ZeRO", number=True),
    Column(name="mb", number=True, hint="sequences a micro-batch"),
    Column(name="schedule"),
    Column(name="recompute"),
    Column(name="step", number=True),
    Column(name="tok/s/GPU", number=True),
    Column(name="MFU", number=True, hint="model FLOPs utilisation"),
    Column(name="bubble", number=True, hint="share of the step in which the stage that determines it waits"),
    Column(name="GiB", number=True, hint="of the fullest rank"),
    Column(name="$/Mtok", number=True, hint="USD a million tokens"),
    Column(name="launched by"),
)


def _plan(plan: Mapping[str, Any], place: int, shown: bool, sizes: bool) -> Line:
    parallel, predicted = plan["parallel"], plan["predicted"]
    step = predicted["step_time_s"]
    cells = [
        number(plan.get("rank", place), str),
        number(plan.get("tie_group"), str),
        *([number(parallel["world_size"], words.count)] if sizes else []),
        *(number(parallel[name], str) for name in _DEGREES),
        number(parallel["dp"], lambda _: data_parallel(parallel)),
        number(parallel["zero_stage"], str),
        number(parallel["micro_batch"], str),
        Cell(text=parallel["schedule"] if parallel["pp"] > 1 else words.UNKNOWN),
        Cell(text=recompute(plan, {})),
        number(step, lambda v: words.seconds(v, 4)),
        number(predicted["tokens_per_s_per_gpu"], words.count),
        number(predicted["mfu"], words.percent),
        number(plan["time"]["bubble_s"] / step, words.percent),
        number(plan["memory"]["peak_bytes"], words.gib),
        number(predicted["usd_per_1m_tokens"], words.digits),
        Cell(text=", ".join(plan["expressible_by"]) or "none"),
    ]
    return Line(cells=cells, marked=shown)


def number(value: Any, said: Any) -> Cell:
    """A cell that is sorted by its number."""
    if value is None:
        return Cell(text=words.UNKNOWN, number=True)
    return Cell(text=said(value), exact=repr(value), number=True)


def communication_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Every kind of collective of a step."""
    columns = (
        Column(name="axis"),
        Column(name="collective"),
        Column(name="ranks", number=True),
        Column(name="message", number=True),
        Column(name="count", number=True),
        Column(name="time", number=True),
        Column(name="exposed", number=True),
        Column(name="algorithm"),
        Column(name="waits for"),
    )
    lines = [
        Line(
            cells=[
                Cell(text=row["axis"]),
                Cell(text=row["collective"]),
                number(row["group_size"], words.count),
                number(row["message_bytes"], words.message_size),
                number(row["count_per_step"], words.count),
                number(row["time_s"], words.seconds),
                number(row["exposed_s"], words.seconds),
                Cell(text=words.plain(row["algorithm"])),
                Cell(text=words.plain(row["bottleneck_link"])),
            ]
        )
        for row in rows
    ]
    caption = "Totals of one step on the rank that determines it. A heading sorts."
    return Grid(id="communication-table", caption=caption, columns=columns, rows=lines, sortable=True)


def sources_grid(sources: Mapping[str, Any]) -> Grid:
    """Where each figure comes from."""
    columns = (Column(name="figure"), Column(name="origin"), Column(name="median error", number=True), Column(name="source"))
    lines = []
    for term, source in sources.items():
        known = source if isinstance(source, Mapping) else {"source": source}
        error = number(known.get("median_error"), words.percent)
        told = [
            Cell(text=term),
            Cell(text=str(known.get("origin") or words.UNKNOWN)),
            error,
            Cell(text=str(known.get("source"))),
        ]
        lines.append(Line(cells=told))
    return Grid(id="sources", caption="Where each figure comes from", columns=columns, rows=lines)


def assumptions_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Every value in force and where it comes from."""
    columns = (Column(name="input"), Column(name="value"), Column(name="origin"))
    lines = [Line(cells=[Cell(text=r["key"]), Cell(text=words.plain(r["value"])), Cell(text=r["origin"])]) for r in rows]
    return Grid(id="assumptions", caption="Values in force. A heading sorts.", columns=columns, rows=lines, sortable=True)


def points_grid(points: Sequence[Mapping[str, Any]]) -> Grid:
    """The points of a sweep."""
    every = list(dict.fromkeys(key for point in points for key in point["key"]))
    same = [key for key in every if len({json.dumps(point["key"].get(key)) for point in points}) == 1 and len(points) > 1]
    keys = [key for key in every if key not in same]
    columns = (
        *(Column(name=key.replace("_", " "), number=_numeric(points, key)) for key in keys),
        Column(name="best plan"),
        Column(name="step", number=True),
        Column(name="tokens/s", number=True),
        Column(name="MFU", number=True),
        Column(name="GiB", number=True),
    )
    lines = [Line(cells=[*(_key(point["key"].get(key)) for key in keys), *_best(point)]) for point in points]
    shared = words.joined(((key.replace("_", " "), points[0]["key"].get(key)) for key in same), " ")
    caption = f"{words.many(len(points), 'point')}" + (f", all of {shared}" if shared else "") + ". A heading sorts."
    return Grid(id="points-table", caption=caption, columns=columns, rows=lines, sortable=True)


def _numeric(points: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(isinstance(point["key"].get(key), int | float) for point in points)


def _key(value: Any) -> Cell:
    if isinstance(value, int | float):
        return number(value, words.plain)
    return Cell(text=value if isinstance(value, str) else json.dumps(value))


def _best(point: Mapping[str, Any]) -> list[Cell]:
    best = point["best"]
    if best is None:
        return [Cell(text=f"{point['status']}: {point['reason']}"), *(number(None, str) for _ in range(4))]
    parallel, predicted = best["parallel"], best["predicted"]
    named = [f"{name} {parallel[name]}" for name in (*_DEGREES, "dp") if parallel[name] != 1]
    return [
        Cell(text=", ".join(named) or "one GPU"),
        number(predicted["step_time_s"], lambda v: words.seconds(v, 4)),
        number(predicted["tokens_per_s"], words.count),
        number(predicted["mfu"], words.percent),
        number(best["memory"]["peak_bytes"], words.gib),
    ]
