"""A model read from a graph file as JSON and back: what ``inputs.model`` of a result holds.

    {"kind": "layer-graph", "name", "source", "batch", "seq", "operators", "layers": [kind of each layer], "modules",
     "crossings", "units": {"embedding": UNIT, "head": UNIT, "layer-1": UNIT, ...}}
    UNIT = {"dims": {name: size}, "border": [TENSOR], "operators": [{"name", "op", "inputs", "outputs", ...}]}

`to_document` and `from_document` are inverse to each other. Layers are folded, so a model of 96 equal layers is one layer long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError
from shardwright.models.checks import name_text, sequence, shown, text, whole
from shardwright.models.graph import (
    AttentionShape,
    GemmShape,
    LayerGraph,
    ModelGraph,
    Normalised,
    Operator,
    OperatorKind,
    TensorSpec,
)
from shardwright.models.spec import MAX_LAYERS
from shardwright.models.traced.layers import bare_spec
from shardwright.models.traced.origin import Crossing, Origin
from shardwright.models.traced.records import MAX_SIZE

KIND = "layer-graph"
FREE = frozenset(("batch", "seq"))
MAX_OPERATORS = 200_000


def is_document(data: Mapping[str, Any]) -> bool:
    """Whether a stored model is one read from a graph file."""
    return data.get("kind") == KIND


def to_document(graph: ModelGraph) -> dict[str, Any]:
    """The JSON form of a model that was read from a graph file."""
    origin = graph.origin
    if origin is None:
        raise InvalidValueError(f"{graph.name} was not read from a graph file", where="model")
    kinds = [unit.kind for unit in graph.layer_kinds]
    units = {unit.kind: _unit(unit) for unit in (graph.embedding, *graph.layer_kinds, graph.head)}
    return {
        "kind": KIND,
        "name": graph.name,
        "source": origin.source,
        "batch": origin.batch,
        "seq": origin.seq,
        "operators": origin.operators,
        "tied": graph.tied_embeddings,
        "layers": [kinds[index] for index in graph.pattern],
        "modules": list(origin.modules),
        "crossings": [[asdict(crossing) for crossing in border] for border in origin.crossings],
        "units": units,
    }


def from_document(data: Mapping[str, Any]) -> ModelGraph:
    """The model of such a document.

    Raises:
        DamagedFileError: a part is missing or of another form.
    """
    try:
        return _model(data)
    except ShardwrightError as error:
        raise DamagedFileError(error.message, where=f"model: {error.where}", hint=error.hint) from error
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        said = f"the stored graph cannot be used ({type(error).__name__}: {shown(str(error))})"
        raise DamagedFileError(said, where="model", hint="read it again from the graph file") from error


def _model(data: Mapping[str, Any]) -> ModelGraph:
    units = {text(name, "units"): _read_unit(name, unit) for name, unit in data["units"].items()}
    kinds = [name for name in units if name not in {"embedding", "head"}]
    if not 1 <= len(data["layers"]) <= MAX_LAYERS:
        raise InvalidValueError(f"{len(data['layers'])} layers", where="layers", hint=f"give 1 to {MAX_LAYERS:,}")
    pattern = tuple(kinds.index(kind) for kind in data["layers"])
    origin = Origin(
        source=text(data["source"], "source"),
        batch=whole(data["batch"], "batch", 1, MAX_SIZE),
        seq=None if data["seq"] is None else whole(data["seq"], "seq", 1, MAX_SIZE),
        crossings=tuple(tuple(_crossing(c) for c in border) for border in data["crossings"]),
        modules=tuple(text(module, "modules") for module in sequence(data["modules"], "modules", MAX_LAYERS)),
        operators=whole(data["operators"], "operators", 0, MAX_OPERATORS),
    )
    if len(origin.crossings) != len(pattern) + 1:
        raise InvalidValueError(f"{len(origin.crossings)} borders of {len(pattern)} layers", where="crossings")
    return ModelGraph(
        name=data["name"],
        spec=bare_spec(name_text(data["name"], "name"), len(pattern), origin.source),
        embedding=units["embedding"],
        layer_kinds=tuple(units[kind] for kind in kinds),
        pattern=pattern,
        head=units["head"],
        tied_embeddings=bool(data["tied"]),
        origin=origin,
    )


def _crossing(data: Mapping[str, Any]) -> Crossing:
    given = {key: whole(data[key], f"crossings.{key}", 0, MAX_SIZE) for key in ("elements", "batch", "seq")}
    return Crossing(**given, width=_width(data["width"]))


def _unit(unit: LayerGraph) -> dict[str, Any]:
    return {
        "dims": dict(unit.dims),
        "border": [_tensor(spec) for spec in unit.border or ()],
        "operators": [_operator(operator) for operator in unit.operators],
    }


def _read_unit(name: str, data: Mapping[str, Any]) -> LayerGraph:
    dims = {
        text(dim, f"{name}.dims", 200): whole(size, f"{name}.dims.{dim}", 1, MAX_SIZE) for dim, size in data["dims"].items()
    }
    known = FREE | set(dims)
    return LayerGraph(
        kind=name,
        dims=dims,
        operators=tuple(_read_operator(operator, known) for operator in data["operators"]),
        border=tuple(_read_tensor(spec, known) for spec in data["border"]),
    )


def _operator(operator: Operator) -> dict[str, Any]:
    made: dict[str, Any] = {"name": operator.name, "op": operator.kind.value}
    for key in ("inputs", "outputs", "parameters", "saved"):
        made[key] = [_tensor(spec) for spec in getattr(operator, key)]
    if operator.gemm is not None:
        made["gemm"] = {key: _lists(value) for key, value in asdict(operator.gemm).items()}
    if operator.attention is not None:
        made["attention"] = {key: _lists(value) for key, value in asdict(operator.attention).items()}
    if operator.normalised is not None:
        made["normalised"] = {key: _lists(value) for key, value in asdict(operator.normalised).items()}
    made |= {key: _lists(getattr(operator, key)) for key in ("whole", "read_whole", "summed") if getattr(operator, key)}
    return made


def _read_operator(data: Mapping[str, Any], known: frozenset[str] | set[str]) -> Operator:
    name = text(data["name"], "operators.name", 200)
    parts = {
        key: tuple(_read_tensor(spec, known) for spec in data[key]) for key in ("inputs", "outputs", "parameters", "saved")
    }
    gemm, attention = data.get("gemm"), data.get("attention")
    return Operator(
        name=name,
        kind=OperatorKind(data["op"]),
        module=name,
        inputs=parts["inputs"],
        outputs=parts["outputs"],
        parameters=parts["parameters"],
        saved=parts["saved"],
        gemm=None if gemm is None else _gemm(gemm, known),
        attention=None if attention is None else _attention(attention, known),
        quantizable=False,
        whole=_dims(data.get("whole", []), known),
        summed=_dims(data.get("summed", []), known),
        read_whole=tuple((text(pair[0], "read_whole", 200), _dims(pair[1:], known)[0]) for pair in data.get("read_whole", [])),
        normalised=_normalised(data["normalised"], known) if "normalised" in data else None,
    )


def _normalised(data: Mapping[str, Any], known: frozenset[str] | set[str]) -> Normalised:
    counts = {key: whole(data[key], f"normalised.{key}", 0, MAX_OPERATORS) for key in ("forward", "backward")}
    return Normalised(dims=_dims(data["dims"], known), **counts)


def _gemm(data: Mapping[str, Any], known: frozenset[str] | set[str]) -> GemmShape:
    return GemmShape(
        m=_dims(data["m"], known),
        n=tuple(_dims(part, known) for part in data["n"]),
        k=_dims(data["k"], known),
        groups=_dims(data["groups"], known),
    )


def _attention(data: Mapping[str, Any], known: frozenset[str] | set[str]) -> AttentionShape:
    words = {field.name for field in fields(AttentionShape)} - {"rows", "window", "causal", "chunked"}
    named = {key: _dims([data[key]], known)[0] for key in sorted(words)}
    flags = {key: bool(data[key]) for key in ("causal", "chunked")}
    return AttentionShape(**named, **flags, rows=_dims(data["rows"], known))  # type: ignore[arg-type]


def _tensor(spec: TensorSpec) -> list[Any]:
    """Name, dims, and the width where it is none of the job's."""
    made: list[Any] = [spec.name, list(spec.dims)]
    return made if spec.bytes_per_element is None else [*made, spec.bytes_per_element]


def _read_tensor(data: list[Any], known: frozenset[str] | set[str]) -> TensorSpec:
    width = data[2] if len(data) > 2 else None
    return TensorSpec(name=text(data[0], "tensors", 200), dims=_dims(data[1], known), bytes_per_element=_width(width))


def _width(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 64:
        raise InvalidValueError(f"{shown(value)} bytes an element", where="tensors", hint="give 1 to 64")
    return float(value)


def _dims(value: object, known: frozenset[str] | set[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(dim, str) and dim in known for dim in value):
        raise InvalidValueError(f"{shown(value)} names dims that have no size", where="dims")
    return tuple(value)


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value
