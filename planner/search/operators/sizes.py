"""Sizes of dims on one rank for many strategies of an operator at once, as the cost functions of `planner.cost` read them.

size on a rank = ceil(size / Π sizes of the axes that divide it)          rows of experts: / degrees of all their dims
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from shardwright.models.dims import MADE_OF
from shardwright.models.graph import TensorSpec
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.plans import IntArray

Floats = NDArray[np.float64]


class SplitSizes(LocalSizes):
    """`LocalSizes` of strategies instead of degrees: every method returns arrays of shape [strategies].

    Args:
        whole: size of every dim, nothing divided.
        degrees: dim → ranks it is divided among, [strategies]; dims left out are whole.
        count: number of strategies.
    """

    def __init__(self, whole: Mapping[str, int], degrees: Mapping[str, Floats], count: int) -> None:
        self._sizes = whole
        self._degrees = degrees
        self._count = count

    def dim(self, name: str, *, beside_tensor: bool = False) -> Floats:
        """Size of a dim on a rank; `beside_tensor` says nothing here."""
        degree = np.ones(self._count)
        for part in (name, *MADE_OF.get(name, ())):
            degree = degree * self._degrees.get(part, 1.0)
        return np.ceil(self._sizes[name] / degree)

    def product(self, dims: Iterable[str], *, beside_tensor: bool | None = None) -> Floats:
        """Product of sizes on a rank."""
        total = np.ones(self._count)
        for name in dims:
            total = total * self.dim(name)
        return total

    def loss_pieces(self) -> IntArray:
        """Head and loss take a micro-batch in one piece."""
        return np.ones(self._count, dtype=np.int64)

    def elements(self, tensor: TensorSpec) -> Floats:
        """Elements of a tensor on a rank; tokens travel to experts once a chosen expert."""
        return self.product(tensor.dims)

    def of_a_loss_piece(self) -> LocalSizes:
        """The sizes themselves."""
        return self

    def whole(self, name: str) -> Floats:
        """Size of a dim, not divided."""
        return np.full(self._count, float(self._sizes[name]))

    def head_split(self) -> NDArray[np.int64]:
        """Heads are divided by the degrees of their dim alone."""
        return np.ones(self._count, dtype=np.int64)

    def dispatched_by(self, kind: int) -> NDArray[np.bool_]:
        """Whether rows reach experts in a way of stacks: strategies move them by collectives of their own."""
        return np.zeros(self._count, dtype=np.bool_)

    def gathers_keys(self) -> NDArray[np.bool_]:
        """The keys of an operator are whole where nothing divides them."""
        return np.ones(self._count, dtype=bool)

    def whole_sequence(self) -> Floats:
        """The sequence length, not divided."""
        return self.whole("seq")
