"""What-if statements on the inputs: `--set cluster.internode_bytes_per_s=25e9`.

    KEY=VALUE      KEY = model.<field> | cluster.<field> | stack.<field> | operation.<field> | fit.<factor>

`<field>` is a name of the record's own JSON form, with dots for nesting; the leading parts may be left out
(`cluster.memory_bytes` finds `groups.node.device.memory_bytes`; where a name stands at several depths the
outermost is meant). A statement on the cluster holds for all groups of nodes. VALUE is read as JSON where it
is JSON (`25e9`, `true`, `null`, `"text"`) and as plain text otherwise, and must be of the old value's kind; a device may
be replaced by the name of a preset. Where a cluster file leaves node or device null, `cluster.node=PRESET` and
`cluster.device=PRESET` fill it (`load_filled`).

    apply_overrides -> _statement (KEY=VALUE) -> _find (which field) -> _coerced (of which kind) -> from_dict
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, unknown_name
from shardwright.hardware.catalog import FILE_SUFFIXES, cluster_from_dict, load_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.reliability import Operation
from shardwright.models.catalog import model_from_dict
from shardwright.models.graph import ModelGraph
from shardwright.planner.fits.factors import FACTORS, LEAST, MOST, Fits
from shardwright.planner.stacks import StackProfile, stack_from_dict

ROOTS = ("model", "cluster", "stack", "operation", "fit")
WHERE = "--set"
_FILLS = re.compile(r"\s*cluster\.[a-z_]+\s*=")
_NODE = re.compile(r"\s*cluster\.node\s*=")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One `ROOT.KEY=VALUE`.

    Attributes:
        root: which record it changes.
        key: the field, as the user wrote it, without the root.
        value: the parsed value.
        raw: the value's text.
    """

    root: str
    key: str
    value: Any
    raw: str

    @property
    def where(self) -> str:
        """The place that errors name."""
        return f"{WHERE} {self.root}.{self.key}"


def apply_overrides(
    graph: ModelGraph, cluster: Cluster, stack: StackProfile, overrides: Sequence[str]
) -> tuple[ModelGraph, Cluster, StackProfile]:
    """The inputs with every statement applied; records without a statement are returned as they are.

    Args:
        graph: the model.
        cluster: the machine.
        stack: the training stack.
        overrides: statements `KEY=VALUE`.

    Raises:
        InvalidValueError: no `KEY=VALUE`, or a value of another kind than the one it replaces.
        UnknownNameError: a key that names no field.
        ConflictError: two statements give one key different values.
    """
    statements = [_statement(text) for text in overrides]
    _refuse_contradictions(statements)
    models = [s for s in statements if s.root == "model"]
    clusters = [s for s in statements if s.root == "cluster"]
    stacks = [s for s in statements if s.root == "stack"]
    if models:
        _refuse_graph(graph)
        graph = _rebuilt(model_from_dict, graph.spec.to_dict(), models)
    if clusters:
        cluster = _rebuilt(cluster_from_dict, cluster.to_dict(), clusters)
    if stacks:
        stack = _rebuilt(stack_from_dict, _stack_data(stack), stacks)
    return graph, cluster, stack


def operation_with(operation: Operation, overrides: Sequence[str]) -> Operation:
    """How the cluster is run, with the statements on it applied.

    Raises:
        InvalidValueError: a value of another kind, or out of range.
        UnknownNameError: a key that names no field.
    """
    statements = [s for s in map(_statement, overrides) if s.root == "operation"]
    made: Operation = _rebuilt(Operation.from_dict, operation.to_dict(), statements) if statements else operation
    return made


def fits_with(fits: Fits, overrides: Sequence[str]) -> Fits:
    """Fitted factors, with the statements on them applied: `fit.streams=1` takes one back to its prior.

    Raises:
        InvalidValueError: no number, or out of range.
        UnknownNameError: no such factor.
    """
    values: dict[str, float] = {}
    for statement in (s for s in map(_statement, overrides) if s.root == "fit"):
        if statement.key not in FACTORS:
            raise unknown_name("fitted factor", statement.key, list(FACTORS), where=statement.where)
        if _kind(statement.value) != "a number" or not LEAST <= statement.value <= MOST:
            said = f"fit.{statement.key} is {statement.raw[:40]}"
            raise InvalidValueError(said, where=statement.where, hint=f"give a number, {LEAST:g} to {MOST:g}")
        values[statement.key] = statement.value
    return fits.changed(values)


def _refuse_graph(graph: ModelGraph) -> None:
    """A graph from a file has no architecture to change.

    Raises:
        ConflictError: it is one.
    """
    if graph.origin is not None:
        said = f"{graph.name} was read from a graph file, which --set model. does not change"
        raise ConflictError(said, where="--set", hint="export the changed model")


def load_filled(cluster: str | Cluster, overrides: Sequence[str]) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster, with what its file leaves null filled by `cluster.node=`, `cluster.device=` and other fields of a node.

    Args:
        cluster: what the user named, or a cluster.
        overrides: statements `KEY=VALUE`.

    Returns:
        The cluster, and the statements still to be applied to it.

    Raises:
        ShardwrightError: a name or file that cannot be used.
    """
    if isinstance(cluster, Cluster):
        return cluster, tuple(overrides)
    if not cluster.strip().lower().endswith(FILE_SUFFIXES):
        return load_cluster(cluster), tuple(overrides)
    found = [_statement(text) for text in overrides if _FILLS.match(text)]
    left = tuple(text for text in overrides if not _NODE.match(text))  # the others fit a filled cluster as well
    return load_cluster(cluster, fills={statement.key: statement.value for statement in found}), left


def _statement(text: str) -> Statement:
    name, separator, raw = text.partition("=")
    root, dot, key = name.strip().partition(".")
    if not separator or not raw.strip():
        raise InvalidValueError(f"{text!r} is no KEY=VALUE", where=WHERE, hint="write cluster.internode_bytes_per_s=25e9")
    if not text.isprintable():
        raise InvalidValueError(f"{text[:60]!r} holds characters that are no text", where=WHERE, hint="write plain text")
    if root not in ROOTS:
        raise unknown_name("input", root, ROOTS, where=f"{WHERE} {name}")
    if not dot or not key:
        raise InvalidValueError(f"{name!r} names no field", where=WHERE, hint=f"write {root}.FIELD=VALUE")
    return Statement(root=root, key=key, value=_scalar(raw.strip(), name), raw=raw.strip())


def _scalar(raw: str, name: str) -> Any:
    not_finite = InvalidValueError(f"{raw[:40]} is no finite number", where=f"{WHERE} {name}", hint="give a plain number")
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError):
        return raw
    except ValueError as error:
        raise not_finite from error
    if value in (float("inf"), float("-inf")):
        raise not_finite
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _refuse_contradictions(statements: Sequence[Statement]) -> None:
    seen: dict[tuple[str, str], Statement] = {}
    for statement in statements:
        first = seen.setdefault((statement.root, statement.key), statement)
        if first.value != statement.value:
            message = f"{statement.root}.{statement.key} is set to {first.raw} and to {statement.raw}"
            raise ConflictError(message, where=WHERE, hint="keep one of the two")


def _rebuilt(from_dict: Any, data: Mapping[str, Any], statements: Sequence[Statement]) -> Any:
    plain = _copied(data)
    for statement in statements:
        _set(plain, statement)
    try:
        return from_dict(plain)
    except ShardwrightError as error:
        names = ", ".join(s.where for s in statements)
        error.where = f"{names} ({error.where})" if error.where else names
        error.hint = error.hint or "give another value"
        raise


def _stack_data(stack: StackProfile) -> dict[str, Any]:
    """The profile with its fractions and rates as floats, which YAML may have given as whole numbers."""
    types = {f.name: f.type for f in fields(StackProfile)}
    return {name: float(value) if types[name] == "float" else value for name, value in asdict(stack).items()}


def _copied(data: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(rounded(data, 17)))
    return made


def _set(data: dict[str, Any], statement: Statement) -> None:
    wanted = tuple(statement.key.split("."))
    fields = sorted(dict.fromkeys(path for path, _, _ in _walk(data, ())), key=len)
    found = next((path for path in fields if path[-len(wanted) :] == wanted), None)
    if found is None:
        names = {".".join(p) for p in fields} | {p[-1] for p in fields}
        raise unknown_name(f"{statement.root} field", statement.key, names, where=statement.where)
    for path, holder, key in list(_walk(data, ())):
        if path == found:
            holder[key] = _coerced(holder[key], statement)


def _walk(data: dict[str, Any], path: Path) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Every field with its path; the items of a list of mappings share one path."""
    for key, value in data.items():
        here = (*path, key)
        yield here, data, key
        inner = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
        for item in inner:
            if isinstance(item, dict):
                yield from _walk(item, here)


def _coerced(old: Any, statement: Statement) -> Any:
    value, name = statement.value, f"{statement.root}.{statement.key}"
    if isinstance(old, dict) and statement.key.rpartition(".")[2] == "device" and isinstance(value, str):
        return value
    if isinstance(old, dict) or (isinstance(old, list) and any(isinstance(i, dict) for i in old)):
        inner = list(old if isinstance(old, dict) else old[0])
        hint = "set one of its parts: " + ", ".join(f"{name}.{k}" for k in inner[:6])
        raise InvalidValueError(f"{name} is a group of values", where=statement.where, hint=hint)
    if isinstance(old, str):
        return value if isinstance(value, str) else statement.raw
    if _is_whole(old) and isinstance(value, float) and value.is_integer():
        value = int(value)
    if old is not None and value is not None and _kind(value) != _kind(old):
        message = f"{statement.raw[:40]!r} is {_kind(value)}; {name} is {_kind(old)} ({str(old)[:40]})"
        raise InvalidValueError(message, where=statement.where, hint=f"give {_kind(old)}")
    if _is_whole(old) and isinstance(value, float):
        raise InvalidValueError(f"{statement.raw[:40]} is not whole", where=statement.where, hint="give a whole number")
    if statement.root == "stack" and isinstance(value, (int, float)) and value < 0:
        raise InvalidValueError(f"{name} is {statement.raw[:40]}", where=statement.where, hint="give 0 or more")
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a group" if isinstance(value, dict) else "null"
