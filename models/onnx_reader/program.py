"""From an ONNX file to `records.Traced`.

Parameters are the initialisers of real numbers with more than one element (or that are a weight or bias), except those that
ONNX keeps for other ends: running statistics of batch norms, scales of a resize, masks of attention. An initialiser that
several nodes read counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.errors import DamagedFileError, UnsupportedError
from shardwright.models.checks import name_of_file
from shardwright.models.onnx_reader.attention import fused
from shardwright.models.onnx_reader.file import KEPT_ELEMENTS, load, opset
from shardwright.models.onnx_reader.operators import Call, Given, converted
from shardwright.models.onnx_reader.shapes import dynamic_dims, tensors_of
from shardwright.models.traced.records import (
    MAX_NODES,
    ReadOptions,
    Traced,
    TracedNode,
    TracedTensor,
    check_order,
    unknown_operator,
)

_STANDARD = frozenset(("", "ai.onnx"))


def read_onnx(path: Path, options: ReadOptions) -> Traced:
    """The graph of an ONNX file.

    Raises:
        DamagedFileError: no ONNX file, or a graph that contradicts itself.
        UnsupportedError: an operator without a rule; onnx is not installed.
        InvalidValueError: a dynamic dim without a size.
    """
    where = str(path)
    model, causal = load(path)
    if len(model.graph.node) > MAX_NODES:
        raise UnsupportedError(f"{len(model.graph.node)} nodes", where=where, hint=f"at most {MAX_NODES:,} are read")
    _check_sources(model, where)
    _refuse_unknown(model, options, where)
    dynamic = dynamic_dims(model)
    tensors = tensors_of(model, options, where)
    numbers = _numbers(model)
    nodes = tuple(_node(node, index, tensors, numbers, options, where) for index, node in enumerate(model.graph.node))
    outputs = tuple(value.name for value in model.graph.output)
    made = fused(nodes, tensors, outputs, causal)
    trained = {tensor.name for tensor in model.graph.initializer}
    graph = Traced(
        name=name_of_file(path.stem),
        source=f"ONNX, opset {opset(model)}, {(model.producer_name or 'unknown')[:40]}",
        tensors=made.tensors,
        nodes=made.nodes,
        inputs=tuple(value.name for value in model.graph.input if value.name not in trained),
        parameters=_parameters(trained - made.masks, made.nodes, made.tensors),
        outputs=outputs,
        dynamic=dynamic,
    )
    return check_order(graph, where)


def _check_sources(model: Any, where: str) -> None:
    """Each node reads only what stands before it; told before shapes are inferred, which needs that order."""
    known = {tensor.name for tensor in model.graph.initializer} | {value.name for value in model.graph.input}
    known |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    made = {name for node in model.graph.node for name in node.output if name}
    for index, node in enumerate(model.graph.node):
        for name in node.input:
            if name and name not in known:
                later = "which is made only after it: the graph has a cycle or is out of order"
                said = f"node {_name(node, index)} reads {name}, {later if name in made else 'which nothing makes'}"
                raise DamagedFileError(said, where=where, hint="export the model again")
        known.update(node.output)


def _refuse_unknown(model: Any, options: ReadOptions, where: str) -> None:
    """Names the first operator without a rule before any shape is missed because of it."""
    for index, node in enumerate(model.graph.node):
        if node.op_type in options.declared:
            continue
        rank3 = Given(inputs=tuple(node.input), attributes={}, ranks=dict.fromkeys(node.input, 4), numbers={})
        if node.domain not in _STANDARD or converted(node.op_type, rank3) is None:
            raise unknown_operator(node.op_type, _name(node, index), where)


def _node(
    node: Any,
    index: int,
    tensors: Mapping[str, TracedTensor],
    numbers: Mapping[str, list[int]],
    options: ReadOptions,
    where: str,
) -> TracedNode:
    name = _name(node, index)
    outputs = tuple(filter(None, node.output))
    for output in outputs:
        if output not in tensors:
            said = f"node {name} ({node.op_type}): the shape of its output {output} is missing and cannot be inferred"
            raise DamagedFileError(said, where=where, hint="export the model with the shapes of all tensors")
    call = _call(node, name, tensors, numbers, options, where)
    return TracedNode(
        name=name,
        op=call.op,
        kind=node.op_type,
        inputs=call.inputs,
        outputs=outputs if call.op in {"split", "norm"} else outputs[:1] if call.op != "opaque" else outputs,
        attributes=call.attributes,
        module=_module(node),
    )


def _call(
    node: Any,
    name: str,
    tensors: Mapping[str, TracedTensor],
    numbers: Mapping[str, list[int]],
    options: ReadOptions,
    where: str,
) -> Call:
    declared = options.declared.get(node.op_type)
    if declared is not None:
        op = "pointwise" if declared == "elementwise" else "opaque"
        return Call(op=op, inputs=tuple(filter(None, node.input)), attributes={"saves": "inputs"})
    ranks = {tensor: len(tensors[tensor].shape) for tensor in node.input if tensor in tensors}
    attributes = {a.name: _value(a) for a in node.attribute}
    call = converted(node.op_type, Given(inputs=tuple(node.input), attributes=attributes, ranks=ranks, numbers=numbers))
    if call is None:
        raise unknown_operator(node.op_type, name, where)
    return call


def _parameters(trained: set[str], nodes: tuple[TracedNode, ...], tensors: Mapping[str, TracedTensor]) -> frozenset[str]:
    read = {name for node in nodes for name in node.inputs}
    weights = {name for node in nodes if node.op in {"linear", "conv", "norm"} for name in node.inputs[1:]}
    found = (n for n in trained & read if tensors[n].floating and tensors[n].shape)
    return frozenset(n for n in found if n in weights or any(size > 1 for size in tensors[n].shape))


def _numbers(model: Any) -> dict[str, list[int]]:
    """Values of the small tensors of whole numbers: axes of reductions."""
    from onnx import numpy_helper

    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = attribute.t
    made: dict[str, list[int]] = {}
    for name, tensor in found.items():
        small = len(tensor.dims) <= 1 and all(0 <= size <= KEPT_ELEMENTS for size in tensor.dims)
        if tensor.data_type in {6, 7} and small:
            try:
                made[name] = [int(v) for v in numpy_helper.to_array(tensor).reshape(-1)]
            except (ValueError, TypeError):
                continue
    return made


def _value(attribute: Any) -> Any:
    """A number, text or list of an attribute; None for graphs and tensors."""
    kinds = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
    name = kinds.get(attribute.type)
    if name is None:
        return None
    value = getattr(attribute, name)
    return list(value) if name.endswith("s") and name != "s" else value


def _name(node: Any, index: int) -> str:
    return str(node.name or next(filter(None, node.output), "") or f"number {index}")[:200]


def _module(node: Any) -> str:
    """Path of the module a node was exported from: metadata of PyTorch's exporter, or its older style of node names."""
    for one in node.metadata_props:
        if one.key == "namespace":
            paths = [part.partition(":")[0].strip() for part in one.value.split("/")]
            classes = [part.partition(":")[2] for part in one.value.split("/")]
            inner = [p for p, c in zip(paths, classes, strict=True) if p and "aten" not in c]
            return inner[-1][:200] if inner else ""
    words = node.name.strip("/").split("/")
    return ".".join(words[:-1])[:200] if node.name.startswith("/") else ""
