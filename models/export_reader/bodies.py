"""Graphs within a program: bodies that run as they stand, with gradients or autocast switched.

    wrap_with_set_grad_enabled(flag, body, *operands)        wrap_with_autocast(device, ..., body, *operands)

`flattened` puts the nodes of such bodies in the place of the call. Tensors of a body are renamed ``CALL/NAME``; what it reads
and gives takes the names of the call's operands and results. Bodies that run conditionally or repeatedly are no such bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WRAPPERS = frozenset(("torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"))
MAX_DEPTH = 8


def flattened(graph: Mapping[str, Any], depth: int = 0) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    """The nodes of a graph with bodies in place, and the tensors they make.

    Args:
        graph: as serialised.
        depth: of bodies within bodies.
    """
    nodes: list[Mapping[str, Any]] = []
    tensors = dict(graph["tensor_values"])
    for node in graph["nodes"]:
        if node["target"] not in WRAPPERS or depth >= MAX_DEPTH:
            nodes.append(node)
            continue
        inner, more = _body(node, depth)
        nodes += inner
        tensors |= more
    return nodes, tensors


def _body(node: Mapping[str, Any], depth: int) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    body = next(a["arg"]["as_graph"]["graph"] for a in node["inputs"] if "as_graph" in a["arg"])
    operands = [name for argument in node["inputs"] for name in _names(argument["arg"])]
    results = [name for argument in node["outputs"] for name in _names(argument)]
    given = [name for argument in body["inputs"] for name in _names(argument)]
    made = [name for argument in body["outputs"] for name in _names(argument)]
    inner, tensors = flattened(body, depth + 1)
    called = str(node.get("name") or results[0])
    names = {name: f"{called}/{name}" for name in tensors}
    names |= dict(zip(made, results, strict=True)) | dict(zip(given, operands, strict=True))
    through = [(name, result) for name, result in zip(made, results, strict=True) if names[name] != result]
    copies = [_copy(names[name], result) for name, result in through]
    shapes = {result: tensors[name] for name, result in through}
    return [*(_renamed(one, names) for one in inner), *copies], {names[n]: t for n, t in tensors.items()} | shapes


def _copy(source: str, result: str) -> Mapping[str, Any]:
    """A result that is an operand itself."""
    operand = {"name": "self", "arg": {"as_tensor": {"name": source}}}
    return {
        "target": "torch.ops.aten.alias.default",
        "inputs": [operand],
        "outputs": [{"as_tensor": {"name": result}}],
        "name": result,
    }


def _names(value: Any) -> Iterator[str]:
    """Names of the tensors in an argument."""
    ((kind, held),) = value.items()
    for one in held if isinstance(held, list) else [held]:
        if kind in {"as_tensor", "as_tensors"}:
            yield one["name"]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A node with other names of tensors."""
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"name"}:
        return {"name": names.get(value["name"], value["name"])}
    return {key: item if key in {"metadata", "name"} else _renamed(item, names) for key, item in value.items()}
