"""The record of a sharding: operators with placements and costs, tensors that reshard, the program that found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.models.graph import TensorSpec
from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.assembly import Assembly
from shardwright.planner.search.operators.edges import EdgeTable
from shardwright.planner.search.operators.explanation import runner_up
from shardwright.planner.search.operators.layouts import Codes, as_read, gradient_read, gradient_written, word
from shardwright.planner.search.operators.nodes import NodeTable
from shardwright.planner.search.operators.program import Program
from shardwright.planner.search.operators.resharding import STAY, WORDS, moves
from shardwright.planner.search.operators.states import DIVIDED, LEVEL_WORDS

Record = dict[str, Any]


def layer_records(assembly: Assembly, program: Program, choice: Sequence[int], axes: Sequence[str]) -> list[Record]:
    """One record a section."""
    totals = program.columns(choice)
    records = []
    for at, section in enumerate(assembly.sections):
        nodes = [n for n, owner in enumerate(assembly.section) if owner == at]
        edges = [e for e, (writer, _) in enumerate(assembly.ports) if assembly.section[writer.node] == at]
        each = totals[at] / section.weight
        forward, backward = (program.pricing.pass_s(each, way) for way in (0, 1))
        records.append(
            {
                "layer": section.layer.kind,
                "count": int(section.weight),
                "forward_s": forward,
                "backward_s": backward,
                "states_bytes": round(float(each[a.STATES])),
                "saved_bytes": round(float(each[a.SAVED])),
                "transient_bytes": round(float(totals[at, a.TRANSIENT])),
                "operators": [_operator(assembly.tables[n], program, choice, n, axes) for n in nodes],
                "resharding": [r for e in edges for r in _resharding(assembly, e, choice, axes)],
            }
        )
    return records


def _operator(table: NodeTable, program: Program, choice: Sequence[int], node: int, axes: Sequence[str]) -> Record:
    row = choice[node]
    strategy = int(table.strategy[row])
    found, operator = table.strategies, table.operator
    costs = table.costs[row]
    other = runner_up(program, choice, node, table)
    return {
        "name": operator.name,
        "kind": str(operator.kind),
        "divides": _divides(table, strategy, axes),
        "reads": _placements(operator.inputs, as_read(found.inputs[strategy]), axes),
        "writes": _placements(operator.outputs, found.outputs[strategy], axes),
        "parameters": _placements(operator.parameters, as_read(found.parameters[strategy]), axes),
        "held": _held(table.levels[row], axes) if operator.parameters else {},
        "strategies": len(found),
        "forward_s": float(costs[a.F_COMPUTE] + costs[a.F_BLOCKING]),
        "backward_s": float(costs[a.B_COMPUTE] + costs[a.B_BLOCKING]),
        "exchange_s": float(
            costs[[a.F_EACH, a.B_EACH]].sum() + costs[[a.F_ONCE, a.B_ONCE]].sum() / program.pricing.micro_batches
        ),
        "states_bytes": round(float(costs[a.STATES])),
        "runner_up": None
        if other is None
        else {
            "divides": _divides(table, int(table.strategy[other.row]), axes),
            "difference_s": other.difference_s / program.nodes[node].weight,
        },
    }


def _divides(table: NodeTable, strategy: int, axes: Sequence[str]) -> dict[str, str | None]:
    words = table.strategies.words(strategy)
    return {axis: None if word_ == "-" else word_ for axis, word_ in zip(axes, words, strict=True)}


def _placements(tensors: Sequence[TensorSpec], codes: Codes, axes: Sequence[str]) -> dict[str, dict[str, str]]:
    return {tensor.name: placement(tensor, row, axes) for tensor, row in zip(tensors, codes, strict=True)}


def placement(tensor: TensorSpec, codes: Codes, axes: Sequence[str]) -> dict[str, str]:
    """Axis → R, P or S(dim)."""
    return {axis: word(int(code), tensor) for axis, code in zip(axes, codes, strict=True)}


def _held(levels: Any, axes: Sequence[str]) -> dict[str, str | None]:
    """Axis → how parameters are held on it; None where the axis divides them already."""
    return {axis: None if level == DIVIDED else LEVEL_WORDS[level] for axis, level in zip(axes, levels, strict=True)}


def _resharding(assembly: Assembly, edge: int, choice: Sequence[int], axes: Sequence[str]) -> list[Record]:
    """The pairs of layouts of a tensor that cost something, forward or backward."""
    table, (writer, readers) = assembly.edges[edge], assembly.ports[edge]
    made: dict[tuple[int, int], list[str]] = {}
    p = int(table.writes[choice[writer.node]])
    for port, layout in zip(readers, table.reads, strict=True):
        made.setdefault((p, int(layout[choice[port.node]])), []).append(assembly.tables[port.node].name)
    rows = [_pair(table, pair, assembly.tables[writer.node].name, names, axes) for pair, names in made.items()]
    return [row for row in rows if row["forward_s"] or row["backward_s"]]


def _pair(table: EdgeTable, pair: tuple[int, int], writer: str, readers: list[str], axes: Sequence[str]) -> Record:
    written, read = table.written[pair[0]], table.read[pair[1]]
    costs = table.costs[pair]
    return {
        "tensor": table.tensor.name,
        "writer": writer,
        "readers": readers,
        "written": placement(table.tensor, written, axes),
        "read": placement(table.tensor, as_read(read), axes),
        "forward": _steps(written, as_read(read), axes),
        "backward": _steps(gradient_read(read), gradient_written(written), axes),
        "forward_s": float(costs[a.F_BLOCKING]),
        "backward_s": float(costs[a.B_BLOCKING]),
    }


def _steps(source: Codes, target: Codes, axes: Sequence[str]) -> dict[str, str]:
    """Axis → collective."""
    kinds = moves(np.asarray(source), np.asarray(target))
    return {axis: WORDS[kind] for axis, kind in zip(axes, kinds, strict=True) if kind != STAY}


def dtensor_plan(assembly: Assembly, choice: Sequence[int]) -> Record:
    """Placements as DTensor writes them: of parameters at rest, and of what operators read and write, one word an axis."""
    parameters: dict[str, list[str]] = {}
    operators: Record = {}
    for table, row in zip(assembly.tables, choice, strict=True):
        strategy, levels = int(table.strategy[row]), table.levels[row]
        found, operator = table.strategies, table.operator
        for at, parameter in enumerate(operator.parameters):
            parameters[parameter.name] = _at_rest(as_read(found.parameters[strategy, at]).tolist(), levels.tolist(), parameter)
        operators[operator.name] = {
            "inputs": {
                t.name: _words(codes) for t, codes in zip(operator.inputs, as_read(found.inputs[strategy]), strict=True)
            },
            "outputs": {t.name: _words(codes) for t, codes in zip(operator.outputs, found.outputs[strategy], strict=True)},
        }
    return {"parameters": parameters, "operators": operators}


def _words(codes: Codes) -> list[str]:
    return [f"Shard({code % 16})" if code >= 0 else {-1: "Replicate()", -2: "Partial()"}[int(code)] for code in codes.tolist()]


def _at_rest(codes: list[int], levels: list[int], parameter: TensorSpec) -> list[str]:
    """Where a parameter is held: fully sharded axes divide its first dim."""
    fully = LEVEL_WORDS.index("sharded")
    made = ["Shard(0)" if level == fully and parameter.dims else "Replicate()" for level in levels]
    return [f"Shard({code})" if code >= 0 else held for code, held in zip(codes, made, strict=True)]


def program_record(assembly: Assembly, program: Program, solved: Mapping[str, Any]) -> Record:
    """Size of the program, and what is proven of its answer."""
    choices, pairs = program.variables
    return {
        "operators": len(program.nodes),
        "strategies": sum(len(t.strategies) for t in assembly.tables),
        "choices": choices,
        "edge_variables": pairs,
        "folded_layers": int(sum(s.weight for s in assembly.sections)),
        **solved,
    }
