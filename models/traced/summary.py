"""What was read from a graph file, for the eye: counts, layers, what passes between them, operators of each kind of layer."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from shardwright.models.graph import LayerGraph, ModelGraph, TensorSpec
from shardwright.models.traced.origin import Origin

ACTIVATION_BYTES = 2.0


def summary_of_graph(graph: ModelGraph) -> dict[str, Any]:
    """Counts and layers of a model that was read from a graph file; figures are those of the batch it was exported with."""
    origin = graph.origin
    if origin is None:
        return {}
    batch, seq = origin.batch, origin.seq or 1
    kinds = [(1, graph.embedding), *zip(graph.kind_counts, graph.layer_kinds, strict=True), (1, graph.head)]
    return {
        "name": graph.name,
        "source": origin.source,
        "parameters": graph.parameters,
        "operators": origin.operators,
        "layers": graph.layers,
        "batch": batch,
        "seq": origin.seq,
        "flops_forward": graph.flops_forward(batch, seq),
        "digest": graph.digest,
        "pattern": _pattern(graph),
        "parts": {unit.kind: _part(unit, count, batch, seq) for count, unit in kinds if unit.operators},
        "borders": _borders(origin, batch, seq),
        **({"modules": list(origin.modules)} if any(origin.modules) else {}),
    }


def _pattern(graph: ModelGraph) -> list[str]:
    """Runs of equal layers: ``layer-1 x 32``."""
    runs = ((index, len(list(members))) for index, members in groupby(graph.pattern))
    return [graph.layer_kinds[index].kind + (f" x {count}" if count > 1 else "") for index, count in runs]


def _part(unit: LayerGraph, count: int, batch: int, seq: int) -> dict[str, Any]:
    return {
        "count": count,
        "parameters": unit.parameters,
        "flops_forward": unit.flops_forward(batch, seq),
        "saved_bytes": unit.saved_bytes(batch, seq),
        "dims": ", ".join(f"{name} {size}" for name, size in unit.dims.items()),
        "operators": {
            operator.name: _line(operator.kind.value, operator.inputs, operator.outputs) for operator in unit.operators
        },
    }


def _line(kind: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> str:
    read, made = (", ".join(f"{spec.name}[{' '.join(spec.dims)}]" for spec in specs) for specs in (inputs, outputs))
    return f"{kind}: {read} -> {made}"


def _borders(origin: Origin, batch: int, seq: int) -> list[float]:
    """Bytes that pass between neighbouring layers, forward, in 16 bits."""
    return [sum(c.bytes(batch, seq, ACTIVATION_BYTES) for c in border) for border in origin.crossings]
