"""The integer program as plain arrays: nodes with choices, tensors with layouts, how costs add up.

A node has a table of costs, one row a choice. A tensor is written by one node in one of P layouts and read by others in some
of Q layouts; bringing it from layout p to layout q costs once, however many readers want q. Nodes belong to sections (layers);
exchange of states hides behind the computing of its own section. `total_s` and `memory_bytes` price a choice of every node: the
solver, the explanation and brute force in the tests all agree with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.amounts import Pricing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An operator as the program sees it.

    Attributes:
        name: of the operator.
        costs: columns of `amounts.COLUMNS`, [choices, columns].
        weight: how many equal ones it stands for.
        section: the layer it belongs to.
    """

    name: str
    costs: Floats
    weight: float = 1.0
    section: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A node that reads a tensor.

    Attributes:
        node: index.
        layout: index of the layout read, by choice of the node.
    """

    node: int
    layout: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor between operators.

    Attributes:
        name: of the tensor.
        writer: index of the node that writes it.
        written: index of the layout written, by choice of the writer.
        readers: the nodes that read it.
        costs: columns of `amounts.COLUMNS` of each pair of layouts, [written, read, columns].
        weight: how many equal ones it stands for.
    """

    name: str
    writer: int
    written: Ints
    readers: tuple[Reader, ...]
    costs: Floats
    weight: float = 1.0

    def pairs(self, choice: Sequence[int]) -> set[tuple[int, int]]:
        """Pairs of layouts that a choice of every node uses."""
        p = int(self.written[choice[self.writer]])
        return {(p, int(reader.layout[choice[reader.node]])) for reader in self.readers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Nodes, tensors and pricing."""

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    pricing: Pricing

    @property
    def weights(self) -> Floats:
        """How many layers each section stands for, [sections]."""
        made = np.ones(max((n.section for n in self.nodes), default=-1) + 1)
        for node in self.nodes:
            made[node.section] = node.weight
        return made

    def columns(self, choice: Sequence[int]) -> Floats:
        """Totals of all columns of every section, all its layers together, [sections, columns].

        The transient is the largest of the section, with what is made again in one layer, which is alive with it.
        """
        weights = self.weights
        totals = np.zeros((len(weights), len(a.COLUMNS)))
        transient, dropped = np.zeros(len(weights)), np.zeros(len(weights))
        for node, row in zip(self.nodes, choice, strict=True):
            totals[node.section] += node.weight * node.costs[row]
            transient[node.section] = max(transient[node.section], node.costs[row, a.TRANSIENT])
            dropped[node.section] += node.costs[row, a.DROPPED]
        for tensor in self.tensors:
            section = self.nodes[tensor.writer].section
            for pair in sorted(tensor.pairs(choice)):
                totals[section] += tensor.weight * tensor.costs[pair]
                dropped[section] += tensor.weight / weights[section] * tensor.costs[pair][a.DROPPED]
        totals[:, a.TRANSIENT] = transient + dropped
        return totals

    def total_s(self, choice: Sequence[int]) -> float:
        """Time of a micro-batch through all nodes, forward and backward."""
        return sum(self.pricing.total_s(row) for row in self.columns(choice))

    def memory_bytes(self, choice: Sequence[int]) -> float:
        """Memory of a device."""
        totals = self.columns(choice)
        summed = totals.sum(axis=0)
        summed[a.TRANSIENT] = totals[:, a.TRANSIENT].max(initial=0.0)
        return self.pricing.memory_bytes(summed)

    @property
    def variables(self) -> tuple[int, int]:
        """Choices of all nodes, and pairs of layouts of all readers."""
        pairs = sum(t.costs.shape[0] * t.costs.shape[1] * len(t.readers) for t in self.tensors)
        return sum(len(n.costs) for n in self.nodes), pairs

    def around(self, node: int) -> Iterator[Tensor]:
        """Tensors that a node writes or reads."""
        return (t for t in self.tensors if t.writer == node or any(r.node == node for r in t.readers))
