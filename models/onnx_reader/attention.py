"""Attention found again in the products it was exported as.

    scores = q kT;  scores' = scale, mask (elementwise, read by nothing else);  out = softmax(scores') v

becomes one node of the word ``attention``: that is what the framework ran before the export, and what it will train. Below
opset 23 an ONNX graph has no other way to say it. Masks that stand in the file are constants, not parameters; a triangle is a
causal mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwright.models.traced.records import TracedNode, TracedTensor

MAX_CHAIN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """Nodes with attention as one, tensors that it needs, and constants that were masks or scales."""

    nodes: tuple[TracedNode, ...]
    tensors: dict[str, TracedTensor]
    masks: frozenset[str]


def fused(
    nodes: tuple[TracedNode, ...],
    tensors: Mapping[str, TracedTensor],
    outputs: tuple[str, ...],
    causal_masks: frozenset[str] = frozenset(),
) -> Fused:
    """The nodes with every softmax between two products joined to attention.

    Args:
        nodes: of the graph.
        tensors: of the graph.
        outputs: what it gives.
        causal_masks: constants that hide what comes later.
    """
    search = _Search(nodes, outputs)
    made = dict(tensors)
    replaced: dict[str, tuple[TracedNode, ...]] = {}
    gone: set[str] = set()
    masks: set[str] = set()
    for node in nodes:
        found = search.core(node) if node.op == "softmax" else None
        if found is None or any(_rank(tensors, n) < 3 for n in (*found.first.inputs[:2], found.last.inputs[1])):
            continue
        causal = bool(causal_masks & search.behind(found.masks)) or search.is_triangle(found.masks)
        replaced[found.last.name] = _joined(found, made, tensors, causal)
        gone |= {n.name for n in found.inner}
        masks |= search.behind(found.masks)
    kept = tuple(new for node in nodes if node.name not in gone for new in replaced.get(node.name, (node,)))
    return Fused(nodes=kept, tensors=made, masks=frozenset(masks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """First and last product, the nodes between (with the first), and other tensors they read."""

    first: TracedNode
    last: TracedNode
    inner: tuple[TracedNode, ...]
    masks: frozenset[str]


class _Search:
    """Who makes a tensor, and who reads it."""

    def __init__(self, nodes: tuple[TracedNode, ...], outputs: tuple[str, ...]) -> None:
        self._maker = {name: node for node in nodes for name in node.outputs}
        self._readers = Counter(name for node in nodes for name in dict.fromkeys(node.inputs))
        self._reader = {name: node for node in nodes for name in node.inputs}
        self._outputs = set(outputs)

    def core(self, softmax: TracedNode) -> _Core | None:
        """The attention around a softmax, if there is one."""
        back, masks = self._backward(softmax)
        ahead = self._forward(softmax)
        if back is None or ahead is None:
            return None
        inner = (*back, softmax, *ahead[:-1])
        return _Core(first=back[0], last=ahead[-1], inner=inner, masks=frozenset(masks))

    def behind(self, names: frozenset[str]) -> frozenset[str]:
        """The tensors that some are made of, they themselves among them."""
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack += self._maker[name].inputs if name in self._maker else ()
        return frozenset(seen)

    def is_triangle(self, names: frozenset[str]) -> bool:
        """Whether a mask is cut to a triangle within the graph."""
        return any(self._maker[n].kind == "Trilu" for n in self.behind(names) if n in self._maker)

    def _only(self, name: str) -> bool:
        return self._readers[name] == 1 and name not in self._outputs

    def _backward(self, softmax: TracedNode) -> tuple[tuple[TracedNode, ...] | None, set[str]]:
        """Nodes from the first product to the softmax."""
        chain: list[TracedNode] = []
        masks: set[str] = set()
        name = softmax.inputs[0]
        for _ in range(MAX_CHAIN):
            node = self._maker.get(name)
            if node is None or not self._only(name):
                return None, masks
            chain.insert(0, node)
            if node.op == "matmul":
                return tuple(chain), masks
            if node.op != "pointwise":
                return None, masks
            scores = [n for n in node.inputs if self._leads_to_product(n)]
            if len(scores) != 1:
                return None, masks
            masks |= set(node.inputs) - set(scores)
            name = scores[0]
        return None, masks

    def _leads_to_product(self, name: str) -> bool:
        for _ in range(MAX_CHAIN):
            node = self._maker.get(name)
            if node is None or node.op not in {"pointwise", "matmul"} or not self._only(name):
                return False
            if node.op == "matmul":
                return True
            name = next((n for n in node.inputs if n in self._maker and self._maker[n].op in {"pointwise", "matmul"}), "")
        return False

    def _forward(self, softmax: TracedNode) -> tuple[TracedNode, ...] | None:
        """Nodes from behind the softmax to the second product, which reads the weights first."""
        chain: list[TracedNode] = []
        name = softmax.outputs[0]
        for _ in range(MAX_CHAIN):
            if not self._only(name):
                return None
            node = self._reader[name]
            chain.append(node)
            if node.op == "matmul":
                return tuple(chain) if node.inputs[0] == name and len(node.inputs) == 2 else None
            if node.op != "pointwise":
                return None
            name = node.outputs[0]
        return None


def _rank(tensors: Mapping[str, TracedTensor], name: str) -> int:
    return len(tensors[name].shape)


def _joined(
    found: _Core, made: dict[str, TracedTensor], tensors: Mapping[str, TracedTensor], causal: bool
) -> tuple[TracedNode, ...]:
    """The attention node, and a permutation of the keys to tokens x size."""
    query, turned = found.first.inputs[:2]
    shape = tensors[turned].shape
    keys = f"{turned}@{found.last.name}"
    made[keys] = replace(tensors[turned], name=keys, shape=(*shape[:-2], shape[-1], shape[-2]))
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    swap = TracedNode(
        name=f"{found.first.name}@keys",
        op="permute",
        kind="Transpose",
        inputs=(turned,),
        outputs=(keys,),
        attributes={"order": order},
    )
    inputs = (query, keys, found.last.inputs[1])
    core = replace(found.last, op="attention", kind="attention", inputs=inputs, attributes={"causal": causal})
    return swap, core
