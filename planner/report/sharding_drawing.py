"""Drawings of sharded layers: lines of text, Graphviz DOT, SVG.

    drawing_lines(layer, axes)    one line an operator, and below it what its outputs are resharded to
    dot_text(data)                a DOT graph of all layers
    svg_text(data)                the same as SVG, without Graphviz: operators by depth from top to bottom

An operator says for every axis what it divides; a tensor that reshards is drawn in red with its collectives and their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from shardwright.planner.report import words

Record = Mapping[str, Any]

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 46, 60, 44, 24
PLAIN, RESHARDED = "#888888", "#c0392b"


def divides_text(operator: Record) -> str:
    """What each axis divides: ``dp: batch  tp: heads``."""
    return "  ".join(f"{axis}: {dim or '-'}" for axis, dim in operator["divides"].items())


def moved_text(row: Record) -> str:
    """The collectives of a tensor, forward and backward, with their time."""
    return "; ".join(_moves(row))


def _moves(row: Record) -> Iterator[str]:
    for way in ("forward", "backward"):
        if row[f"{way}_s"]:
            yield f"{way} {_steps(row[way])} {words.seconds(row[f'{way}_s'])}"


def _steps(steps: Mapping[str, str]) -> str:
    return " + ".join(f"{kind} over {axis}" for axis, kind in steps.items() if kind != "slice") or "gather again"


def layout_text(placement: Mapping[str, str]) -> str:
    """A layout: ``S(batch) R``, one word an axis."""
    return " ".join(placement.values())


def drawing_lines(layer: Record) -> Iterator[str]:
    """The layer as text."""
    width = max(len(o["name"]) for o in layer["operators"])
    for operator in layer["operators"]:
        yield f"{operator['name']:<{width}}  {divides_text(operator)}"
        for row in (r for r in layer["resharding"] if r["writer"] == operator["name"]):
            layouts = f"{layout_text(row['written'])} → {layout_text(row['read'])}"
            yield f"  └ {row['tensor']}: {layouts}  for {', '.join(row['readers'])}"
            yield from (f"      {move}" for move in _moves(row))


def dot_text(data: Record) -> str:
    """All layers as a DOT graph, one cluster a layer."""
    lines = ["digraph sharding {", '  node [shape=box, fontname="sans-serif", fontsize=10];', "  rankdir=TB;"]
    for at, layer in enumerate(data["layers"]):
        title = f"{layer['layer']} x {layer['count']}"
        lines += [f"  subgraph cluster_{at} {{", f"    label={_quoted(title)};"]
        for operator in layer["operators"]:
            label = f"{operator['name']}\n{divides_text(operator)}"
            lines.append(f"    {_node(at, operator['name'])} [label={_quoted(label)}];")
        lines += [f"    {line}" for line in _dot_edges(at, layer)]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_edges(at: int, layer: Record) -> Iterator[str]:
    for edge in edges_of(layer):
        style = f", color={_quoted(RESHARDED)}, fontcolor={_quoted(RESHARDED)}" if edge["moved"] else ""
        label = f"{edge['tensor']}\n{edge['moved']}" if edge["moved"] else edge["tensor"]
        yield f"{_node(at, edge['from'])} -> {_node(at, edge['to'])} [label={_quoted(label)}, fontsize=8{style}];"


def _node(layer: int, name: str) -> str:
    return _quoted(f"{layer}/{name}")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def edges_of(layer: Record) -> list[dict[str, str]]:
    """Tensors between operators of a layer: tensor, from, to, and how it is moved (empty where it is not)."""
    moved = {(r["tensor"], reader): moved_text(r) for r in layer["resharding"] for reader in r["readers"]}
    writer: dict[str, str] = {}
    made = []
    for operator in layer["operators"]:
        for tensor in operator["reads"]:
            if tensor in writer:
                how = moved.get((tensor, operator["name"]), "")
                made.append({"tensor": tensor, "from": writer[tensor], "to": operator["name"], "moved": how})
        writer |= dict.fromkeys(operator["writes"], operator["name"])
    return made


def svg_text(data: Record) -> str:
    """All layers side by side."""
    parts: list[str] = []
    left, height = MARGIN, 0
    for layer in data["layers"]:
        places, size = _places(layer, left)
        parts += _layer_parts(layer, places, left)
        left, height = left + size[0] + 2 * GAP_X, max(height, size[1])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left}" height="{height + MARGIN}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{left}" height="{height + MARGIN}" fill="white"/>', *parts, "</svg>"]) + "\n"


Places = dict[str, tuple[int, int]]


def _places(layer: Record, left: int) -> tuple[Places, tuple[int, int]]:
    """Corner of every box, and the size of the drawing of a layer."""
    depth: dict[str, int] = {o["name"]: 0 for o in layer["operators"]}
    for edge in edges_of(layer):
        depth[edge["to"]] = max(depth[edge["to"]], depth[edge["from"]] + 1)
    column: dict[int, int] = {}
    places: Places = {}
    for name, level in depth.items():
        at = column.get(level, 0)
        column[level] = at + 1
        places[name] = left + at * (BOX_WIDTH + GAP_X), MARGIN * 2 + level * (BOX_HEIGHT + GAP_Y)
    widest = max(column.values()) * (BOX_WIDTH + GAP_X)
    return places, (widest, MARGIN * 2 + (max(depth.values()) + 1) * (BOX_HEIGHT + GAP_Y))


def _layer_parts(layer: Record, places: Places, left: int) -> Iterator[str]:
    yield _label(left, MARGIN, f"{layer['layer']} × {layer['count']}", 14)
    for edge in edges_of(layer):
        yield _line(places[edge["from"]], places[edge["to"]], edge)
    for operator in layer["operators"]:
        x, y = places[operator["name"]]
        yield f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="#eef3fa" stroke="#345"/>'
        yield _label(x + 8, y + 18, operator["name"], 12)
        yield _label(x + 8, y + 35, divides_text(operator), 11)


def _line(source: tuple[int, int], target: tuple[int, int], edge: Mapping[str, str]) -> str:
    """A line from the foot of a box to the head of another, with a title that says how the tensor is moved."""
    x1, y1, x2, y2 = source[0] + BOX_WIDTH // 2, source[1] + BOX_HEIGHT, target[0] + BOX_WIDTH // 2, target[1]
    colour = RESHARDED if edge["moved"] else PLAIN
    title = f"{edge['tensor']}: {edge['moved'] or 'as it is'}"
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"><title>{escape(title)}</title></line>'
    if not edge["moved"]:
        return line
    middle = f'<text x="{(x1 + x2) // 2 + 4}" y="{(y1 + y2) // 2 + 3}" font-size="9" fill="{colour}">'
    return f"{line}{middle}{escape(edge['moved'])}</text>"


def _label(x: int, y: int, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'
