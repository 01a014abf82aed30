"""From a serialised `torch.export` program to `records.Traced`.

The program lists tensors with dtype and sizes, the nodes in order, and what each input is: parameter, buffer, constant, or
fed by the user. Sizes may be symbols: each needs a number (`--dim s0=32`). Parameters are those that a node reads; one that
the program names twice (tied weights are exported under one name) counts once.

Schema: `torch/_export/serde/schema.py`, major version 8 (torch 2.6 and later); a minor version adds, a major one changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.models.checks import name_of_file, shown
from shardwright.models.export_reader.archive import read_program
from shardwright.models.export_reader.aten import Call, TensorName, converted
from shardwright.models.export_reader.bodies import flattened
from shardwright.models.export_reader.expressions import UnboundSymbolError, evaluate
from shardwright.models.traced.records import (
    ReadOptions,
    Traced,
    TracedNode,
    TracedTensor,
    check_order,
    checked_shape,
    unknown_operator,
)

SCHEMA_MAJOR = 8
_SYMBOL = re.compile(r"Symbol\('(\w+)'")
_WIDTHS: Mapping[int, tuple[float, bool]] = {
    **dict.fromkeys((1, 2, 12), (1.0, False)),
    **dict.fromkeys((3, 28), (2.0, False)),
    **dict.fromkeys((4, 34), (4.0, False)),
    **dict.fromkeys((5, 35), (8.0, False)),
    **dict.fromkeys((6, 13), (2.0, True)),
    7: (4.0, True),
    8: (8.0, True),
    **dict.fromkeys((29, 30, 31, 32, 33), (1.0, True)),
    **{code: (width, True) for code, width in ((9, 4.0), (10, 8.0), (11, 16.0))},
}
"""Bytes an element and whether it is a real number, by the schema's ScalarType."""

_AGAIN = "save it again by torch.export.save(program, 'model.pt2')"


def read_export(path: Path, options: ReadOptions) -> Traced:
    """The graph of a `.pt2` file.

    Raises:
        DamagedFileError: no archive, or a program that contradicts itself.
        UnsupportedError: another version, an operator without a rule.
        InvalidValueError: a dynamic dim without a size.
    """
    program = read_program(path)
    try:
        return _Reader(program, path, options).traced()
    except ShardwrightError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, RecursionError) as error:
        said = f"the program in {path} cannot be read ({type(error).__name__}: {shown(str(error))})"
        raise DamagedFileError(said, where=str(path), hint=_AGAIN) from error


class _Reader:
    """One program while it is read."""

    def __init__(self, program: Mapping[str, Any], path: Path, options: ReadOptions) -> None:
        self._where = str(path)
        self._path = path
        self._options = options
        self._check_version(program)
        module = program["graph_module"]
        self._graph, self._signature = module["graph"], module["signature"]
        self._version = str(program.get("torch_version", "unknown"))[:40]
        self._bound = dict(options.dims)
        self._bind_inputs()
        self._nodes, values = flattened(self._graph)
        self._tensors = {name: self._tensor(name, meta) for name, meta in values.items()}
        self._ranks = {name: len(tensor.shape) for name, tensor in self._tensors.items()}

    def traced(self) -> Traced:
        """The graph."""
        parameters, fed = self._inputs()
        nodes = tuple(node for index, raw in enumerate(self._nodes) for node in self._node(index, raw))
        read = {name for node in nodes for name in node.inputs}
        graph = Traced(
            name=name_of_file(self._path.stem),
            source=f"torch.export, torch {self._version}",
            tensors=self._tensors,
            nodes=nodes,
            inputs=tuple(fed),
            parameters=frozenset(parameters) & read,
            outputs=tuple(_names(self._graph["outputs"])),
            dynamic=self._dynamic(fed),
        )
        return check_order(graph, self._where)

    def _check_version(self, program: Mapping[str, Any]) -> None:
        version = program.get("schema_version")
        major = version.get("major") if isinstance(version, Mapping) else None
        if "graph_module" not in program or not isinstance(version, Mapping) or not isinstance(major, int):
            raise DamagedFileError("the archive holds no program of torch.export", where=self._where, hint=_AGAIN)
        if major != SCHEMA_MAJOR:
            said = f"a program of schema {major}.{version.get('minor')}"
            raise UnsupportedError(said, where=self._where, hint=f"schema {SCHEMA_MAJOR} is read (torch 2.8 to 2.13)")

    def _inputs(self) -> tuple[list[str], list[str]]:
        """Names of the parameters and of what the user feeds."""
        parameters: list[str] = []
        fed: list[str] = []
        for spec in self._signature["input_specs"]:
            ((kind, value),) = spec.items()
            if kind == "parameter":
                parameters.append(_text(value["arg"]["name"]))
            elif kind == "user_input":
                fed += [name for name in _names([value["arg"]]) if name in self._tensors]
        return parameters, fed

    def _dynamic(self, fed: list[str]) -> frozenset[str]:
        """Symbols, and places of inputs that have one for their size."""
        found = set(self._bound) - set(self._options.dims)
        for name in fed:
            for index, size in enumerate(self._graph["tensor_values"][name]["sizes"]):
                symbols = _SYMBOL.findall(size.get("as_expr", {}).get("expr_str", ""))
                found |= {*symbols, f"{name}.{index}"} if symbols else set()
        return frozenset(found)

    def _bind_inputs(self) -> None:
        """Sizes given by place (`ids.0=32`) as sizes of the symbols that stand there."""
        for key, size in self._options.dims.items():
            name, _, position = key.rpartition(".")
            meta = self._graph["tensor_values"].get(name)
            if meta is None or not position.isdigit() or int(position) >= len(meta["sizes"]):
                continue
            text = meta["sizes"][int(position)].get("as_expr", {}).get("expr_str", "")
            try:
                evaluate(text, {})
            except UnboundSymbolError as error:
                self._bound[str(error)] = size

    def _tensor(self, name: str, meta: Mapping[str, Any]) -> TracedTensor:
        shape = tuple(self._size(size, name, index) for index, size in enumerate(meta["sizes"]))
        width, floating = _WIDTHS.get(meta["dtype"], (4.0, True))
        return TracedTensor(name=name, shape=checked_shape(shape, name, self._where), width=width, floating=floating)

    def _size(self, size: Mapping[str, Any], name: str, index: int) -> int:
        if "as_int" in size:
            value = size["as_int"]
            if type(value) is int:
                return value
        text = size.get("as_expr", {}).get("expr_str", "")
        try:
            found = evaluate(text, self._bound)
        except UnboundSymbolError as error:
            said = f"dim {index} of the tensor {name} is dynamic ({error})"
            raise InvalidValueError(said, where=self._where, hint=f"give its size: --dim {error}=32") from error
        if found is None:
            said = f"dim {index} of the tensor {name} has no size that can be computed ({text[:80]})"
            raise UnsupportedError(said, where=self._where, hint="export the model with fixed sizes")
        return found

    def _node(self, index: int, raw: Mapping[str, Any]) -> list[TracedNode]:
        outputs = tuple(_names(raw["outputs"]))
        if not outputs:
            return []
        kind = _kind(raw["target"])
        name = str(raw.get("name") or outputs[0])
        call = self._call(kind, name, raw["inputs"])
        for tensor in outputs:
            if tensor not in self._tensors:
                said = f"node {name}: the shape of its output {tensor} is missing"
                raise DamagedFileError(said, where=self._where, hint="export the model again")
        module = _module(raw.get("metadata") or {})
        return [
            TracedNode(
                name=name,
                op=call.op,
                kind=kind,
                inputs=call.inputs,
                outputs=outputs,
                attributes=call.attributes,
                module=module,
            )
        ]

    def _call(self, kind: str, name: str, inputs: list[Mapping[str, Any]]) -> Call:
        given = {argument["name"]: self._argument(argument["arg"]) for argument in inputs}
        declared = self._options.declared.get(kind)
        if declared is not None:
            op = "pointwise" if declared == "elementwise" else "opaque"
            tensors = tuple(n for argument in inputs for n in _names([argument["arg"]]))
            return Call(op=op, inputs=tensors, attributes={"saves": "inputs"})
        namespace, _, bare = kind.partition(".")
        bare = bare.strip("_") if bare.startswith("__") else bare.rstrip("_")
        known = converted(bare, given, self._ranks) if namespace == "aten" else None
        if known is None:
            raise unknown_operator(kind, name, self._where)
        return known

    def _argument(self, argument: Mapping[str, Any]) -> Any:
        ((kind, value),) = argument.items()
        if kind == "as_none":
            return None
        if kind in {"as_tensor", "as_tensors", "as_optional_tensor"}:
            return [TensorName(_text(n["name"])) for n in value] if isinstance(value, list) else _optional(value)
        if kind == "as_optional_tensors":
            return [_optional(item) for item in value]
        if kind == "as_sym_int":
            return self._symbol(value)
        if kind == "as_sym_ints":
            return [self._symbol(item) for item in value]
        return value

    def _symbol(self, value: Mapping[str, Any]) -> int | None:
        if "as_int" in value:
            return int(value["as_int"])
        known = self._graph.get("sym_int_values", {}).get(value.get("as_name"))
        return None if known is None else self._size(known, str(value.get("as_name")), 0)


def _optional(value: Mapping[str, Any]) -> TensorName | None:
    inner = value.get("as_tensor", value)
    return TensorName(_text(inner["name"])) if "name" in inner else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no name")
    return value


def _names(arguments: list[Mapping[str, Any]]) -> list[str]:
    """Names of the tensors among arguments."""
    made: list[str] = []
    for argument in arguments:
        ((kind, value),) = argument.items()
        if kind in {"as_tensor", "as_optional_tensor"}:
            found = _optional(value)
            made += [found.name] if found is not None else []
        elif kind in {"as_tensors", "as_optional_tensors"}:
            made += [found.name for found in map(_optional, value) if found is not None]
    return made


def _kind(target: str) -> str:
    """`aten.linear` of `torch.ops.aten.linear.default`; other namespaces alike."""
    words = target.removeprefix("torch.ops.").split(".")
    return ".".join(words[:2]) if target.startswith("torch.ops.") else target


def _module(metadata: Mapping[str, str]) -> str:
    """Path of the innermost module of a node."""
    last = str(metadata.get("nn_module_stack", "")).rsplit(";", 1)[-1]
    parts = last.split(",")
    return parts[1][:200] if len(parts) >= 3 and not parts[1].startswith("_empty") else ""
