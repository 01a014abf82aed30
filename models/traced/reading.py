"""From a graph file to a `ModelGraph`: which reader, and what the user adds.

    .onnx    `onnx_reader`, needs the extra `onnx`
    .pt2     `export_reader`, needs nothing

`read_options` reads ``batch=32`` and ``MyOp=elementwise`` as a command line gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, UnsupportedError, unknown_name
from shardwright.models.graph import ModelGraph
from shardwright.models.traced.layers import model_graph
from shardwright.models.traced.records import DECLARABLE, MAX_SIZE, ReadOptions, Traced

MAX_FILE_BYTES = 4 << 30
DIM, DECLARE = "--dim", "--declare"


def read_graph(path: Path, options: ReadOptions) -> ModelGraph:
    """The model in a graph file.

    Raises:
        DamagedFileError: the file cannot be read, is damaged, or contradicts itself; the message names the node.
        UnsupportedError: an operator without a rule, a graph without batch or parameters.
        InvalidValueError: a dynamic dim without a size.
        ConflictError: a declaration or size that nothing in the graph asks for.
    """
    if not path.is_file():
        raise DamagedFileError(f"{path} is no file" if path.exists() else f"there is no file {path}", where="MODEL")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        hint = "export on the meta device, or with external data: weights are not needed"
        raise UnsupportedError(f"{path} has {size:,} bytes", where=str(path), hint=hint)
    graph = _read(path, options)
    _refuse_unused(graph, options)
    return model_graph(graph, str(path))


def read_options(dims: Sequence[str], declared: Sequence[str]) -> ReadOptions:
    """What a user adds to a file.

    Raises:
        InvalidValueError: no ``NAME=SIZE`` or ``OPERATOR=KIND``.
        UnknownNameError: another kind than elementwise or opaque.
        ConflictError: two values for one name.
    """
    sizes = {name: _size(name, text) for name, text in _pairs(dims, DIM, "batch=32").items()}
    kinds = _pairs(declared, DECLARE, "MyOp=elementwise")
    for name, kind in kinds.items():
        if kind not in DECLARABLE:
            raise unknown_name("kind of operator", kind, DECLARABLE, where=f"{DECLARE} {name}")
    return ReadOptions(dims=sizes, declared={_operator(name): kind for name, kind in kinds.items()})


def _read(path: Path, options: ReadOptions) -> Traced:
    if path.suffix.lower() == ".pt2":
        from shardwright.models.export_reader.program import read_export

        return read_export(path, options)
    from shardwright.models.onnx_reader.program import read_onnx

    return read_onnx(path, options)


def _refuse_unused(graph: Traced, options: ReadOptions) -> None:
    static = [name for name in options.dims if name not in graph.dynamic]
    if static:
        said = f"no dim of the graph is called {static[0]}, or it has a fixed size"
        known = ", ".join(sorted(graph.dynamic)[:20])
        raise ConflictError(said, where=DIM, hint=f"dynamic are {known}" if known else f"every dim has a size: drop {DIM}")
    kinds = {node.kind for node in graph.nodes}
    unused = [name for name in options.declared if name not in kinds]
    if unused:
        said = f"the graph has no operator {unused[0]}"
        raise ConflictError(said, where=DECLARE, hint="it has " + ", ".join(sorted(kinds)[:30]))


def _pairs(texts: Sequence[str], where: str, example: str) -> Mapping[str, str]:
    made: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, separator, value = (word.strip() for word in part.partition("="))
        if not separator or not name or not value:
            raise InvalidValueError(f"{part[:60]!r} is no NAME=VALUE", where=where, hint=f"write {where} {example}")
        if made.setdefault(name, value) != value:
            raise ConflictError(f"{name} is given twice: {made[name]} and {value}", where=where, hint="keep one of the two")
    return made


def _size(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 14) or not 1 <= int(text) <= MAX_SIZE:
        raise InvalidValueError(f"{name}={text[:40]}", where=DIM, hint="give a whole number from 1")
    return int(text)


def _operator(name: str) -> str:
    """An operator as readers name it: `mylib.norm` of `torch.ops.mylib.norm.default` too."""
    words = name.removeprefix("torch.ops.").split(".")
    return ".".join(words[:2]) if name.startswith("torch.ops.") or name.endswith(".default") else name
