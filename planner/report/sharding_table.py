"""The sharding of operators as tables: the answer in short, each distinct layer drawn, operators with cost and runner-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.sharding_drawing import divides_text, drawing_lines
from shardwright.planner.report.style import heading, paragraph, table

Record = Mapping[str, Any]


def sharding_parts(data: Record) -> list[Any]:
    """The parts of the report."""
    from rich.text import Text

    mesh = ", ".join(f"{a['axis']} = {a['size']}" for a in data["mesh"])
    title = f"Operators of {data['model']['name']} on {data['cluster']['name']}, mesh {mesh} (outermost first)"
    return [Text(title, style="bold"), *_answer(data), *(part for layer in data["layers"] for part in _layer(layer))]


def _answer(data: Record) -> Iterator[Any]:
    predicted, program = data["predicted"], data["program"]
    job = f"{words.many(data['batch'], 'sequence')} of {data['training']['seq_len']:,} tokens a pass"
    passes = f"{words.many(data['micro_batches'], 'pass').replace('passs', 'passes')} a step"
    budget = (
        "no memory budget" if data["budget_bytes"] is None else f"budget {words.message_size(data['budget_bytes'])} a device"
    )
    yield paragraph(f"{job}, {passes}, recompute {data['recompute']}, {budget}")
    if predicted is None:
        least = data["least_memory_bytes"]
        need = "no sharding is known" if least is None else f"the least any sharding needs is {words.message_size(least)}"
        yield paragraph(f"nothing fits: {need}; raise --memory, --mesh or --micro-batches, or recompute")
    else:
        times = f"forward {words.seconds(predicted['forward_s'])}, backward {words.seconds(predicted['backward_s'])}"
        yield paragraph(f"{times}, memory {words.message_size(predicted['memory_bytes'])}")
    if data["variant"]:
        yield paragraph(f"{data['framework']}: {data['variant']}")
    yield paragraph(_proof(program))


def _proof(program: Record) -> str:
    size = (
        f"{words.many(program['operators'], 'operator')}, {words.many(program['strategies'], 'strategy').replace('ys', 'ies')}"
    )
    folded = f"{words.many(program['folded_layers'], 'layer')} folded"
    pairs = words.many(program["edge_variables"], "edge variable")
    proof = "proven optimal" if program["proven_optimal"] else "not proven"
    bound = "" if program["lp_bound_s"] is None else f"; linear bound {words.seconds(program['lp_bound_s'], 5)}"
    return f"{size}, {pairs}, {folded}: {proof}{bound} ({program['solver']})"


def _layer(layer: Record) -> Iterator[Any]:
    from rich.text import Text

    yield heading(f"{layer['layer']} × {layer['count']}")
    times = f"forward {words.seconds(layer['forward_s'])}, backward {words.seconds(layer['backward_s'])}"
    sizes = (words.message_size(layer[name]) for name in ("states_bytes", "saved_bytes"))
    kept = "states {}, saved {} each".format(*sizes)
    yield paragraph(f"{times}, {kept}")
    yield Text("")
    yield paragraph("\n".join(drawing_lines(layer)))
    yield Text("")
    yield _operators(layer)


def _operators(layer: Record) -> Any:
    shown = table("operator", "time", "exchange", "parameters held", "runner-up", "more", left=("operator",), wrap=_LONG)
    for operator in layer["operators"]:
        other = operator["runner_up"]
        shown.add_row(
            operator["name"],
            words.seconds(operator["forward_s"] + operator["backward_s"]),
            words.seconds(operator["exchange_s"]) if operator["exchange_s"] else words.UNKNOWN,
            _held(operator),
            divides_text(other) if other else words.UNKNOWN,
            words.seconds(other["difference_s"]) if other else words.UNKNOWN,
        )
    return shown


_LONG = ("parameters held", "runner-up")


def _held(operator: Record) -> str:
    levels = {axis: level for axis, level in operator["held"].items() if level}
    if len(set(levels.values())) == 1 and len(levels) == len(operator["held"]):
        return str(next(iter(levels.values())))
    return ", ".join(f"{axis}: {level}" for axis, level in levels.items()) or (
        words.UNKNOWN if not operator["held"] else "divided"
    )
