"""Elementwise operators that run as one kernel, joined.

    trees    an elementwise node takes in every elementwise node whose only reader it is: GELU written out in eight operators,
             or `silu(gate) * up`, is one that reads what comes from outside and writes the last result
    biases   a vector of parameters added to a product becomes the product's bias

Compilers do this (PyTorch's TorchInductor), and a format that has no GELU had to take it apart before. What the fused
operator keeps for the backward pass are its inputs where some operator behind them is not linear; the rest is computed again
from them, as AOTAutograd's partitioner does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from shardwright.models.traced.records import Traced, TracedNode

SHOWN = 3


def fused(graph: Traced) -> Traced:
    """The graph with biases in their products and elementwise trees as single nodes."""
    biased = _Biases(graph).nodes()
    return replace(graph, nodes=_Trees(replace(graph, nodes=biased)).nodes())


class _Readers:
    """Who makes and who reads a tensor."""

    def __init__(self, graph: Traced) -> None:
        self.graph = graph
        self._count = Counter(name for node in graph.nodes for name in dict.fromkeys(node.inputs))
        self._outputs = set(graph.outputs)

    def lone(self, name: str) -> bool:
        """Whether one node alone reads a tensor."""
        return self._count[name] == 1 and name not in self._outputs


class _Biases(_Readers):
    """Products that take in the vector added to them."""

    def nodes(self) -> tuple[TracedNode, ...]:
        maker = {
            node.outputs[0]: node for node in self.graph.nodes if node.op in {"linear", "matmul"} and len(node.inputs) == 2
        }
        taken: dict[str, TracedNode] = {}
        gone: set[str] = set()
        for node in self.graph.nodes:
            product, bias = self._sum(node, maker)
            if product is not None and product.name not in gone:
                taken[node.name] = replace(product, inputs=(*product.inputs, bias), outputs=node.outputs)
                gone.add(product.name)
        return tuple(taken.get(node.name, node) for node in self.graph.nodes if node.name not in gone)

    def _sum(self, node: TracedNode, maker: Mapping[str, TracedNode]) -> tuple[TracedNode | None, str]:
        """The product and the bias that a node adds up, if it does."""
        if node.op != "pointwise" or _word(node) != "add" or len(node.inputs) != 2:
            return None, ""
        for made, other in (node.inputs, node.inputs[::-1]):
            vector = other in self.graph.parameters and len(self.graph.tensors[other].shape) == 1
            if vector and made in maker and self.lone(made):
                return maker[made], other
        return None, ""


class _Trees(_Readers):
    """Elementwise nodes and what they take in."""

    def __init__(self, graph: Traced) -> None:
        super().__init__(graph)
        self._live = _live(graph)

    def nodes(self) -> tuple[TracedNode, ...]:
        members: dict[str, list[TracedNode]] = {}
        taken: set[str] = set()
        for node in self.graph.nodes:
            if not _joins(node) or node.outputs[0] not in self._live:
                continue
            own: list[TracedNode] = []
            for name in dict.fromkeys(node.inputs):
                if name in members and self.lone(name):
                    own += members.pop(name)
                    taken.add(name)
            members[node.outputs[0]] = [*own, node]
        made = (self._one(members.get(n.outputs[0]), n) for n in self.graph.nodes if not (_joins(n) and n.outputs[0] in taken))
        return tuple(made)

    def _one(self, members: list[TracedNode] | None, node: TracedNode) -> TracedNode:
        """One node for the members of a tree, the last of which is `node`."""
        if members is None or len(members) == 1:
            return node
        made = {name for member in members for name in member.outputs}
        inputs = tuple(dict.fromkeys(name for member in members for name in member.inputs if name not in made))
        words = list(dict.fromkeys(map(_word, members)))
        kind = "+".join(words) if len(words) <= SHOWN else f"{'+'.join(words[:SHOWN])}+{len(words) - SHOWN}"
        kept = self._kept(members, made)
        curved = [member for member in members if self._is_curved(member)]
        if curved == [node] and node.attributes["saves"] == "output":
            kept = node.outputs
        masked = any(member.attributes.get("saves") == "mask" for member in members)
        how = {"saves": "listed", "kept": kept, "masked": masked}
        return replace(node, kind=kind, inputs=inputs, attributes=how)

    def _kept(self, members: list[TracedNode], made: set[str]) -> tuple[str, ...]:
        """Inputs from outside that some operator of the tree needs for its gradient, directly or through others."""
        behind: dict[str, list[str]] = {}
        kept: list[str] = []
        for member in members:
            sources = [s for name in member.inputs for s in (behind.get(name, []) if name in made else [name])]
            behind[member.outputs[0]] = list(dict.fromkeys(sources))
            kept += sources if self._is_curved(member) else []
        return tuple(dict.fromkeys(kept))

    def _is_curved(self, node: TracedNode) -> bool:
        """Whether the gradient of an operator depends on what it reads."""
        if node.attributes.get("saves") not in {"inputs", "output"}:
            return False
        return _word(node) not in {"mul", "div", "true_divide"} or sum(1 for n in node.inputs if n in self._live) > 1


def _joins(node: TracedNode) -> bool:
    return node.op == "pointwise" and len(node.outputs) == 1


def _word(node: TracedNode) -> str:
    return node.kind.rsplit(".", 1)[-1].strip("_").lower()


def _live(graph: Traced) -> set[str]:
    """Tensors that depend on what is fed or trained."""
    live = set(graph.inputs) | set(graph.parameters)
    for node in graph.nodes:
        if node.op != "constant" and live.intersection(node.inputs):
            live.update(node.outputs)
    return live
