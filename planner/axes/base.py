"""What a parallel axis is: the collectives it adds to a layer, and the groups they run over.

An axis of this package is one module that declares a `ParallelAxis` and stands in `registry.AXES`. Its `layer_collectives` look
at the operators of a layer (through roles of dims, `axes.sharding`), never at operator names, and return, for every
combination of degrees, what is exchanged, by how many ranks, how often, and how much of it can hide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.models.graph import LayerGraph
from shardwright.planner.axes.routing import Routing
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.plans import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDomain:
    """How an all-to-all of two levels leaves a scale-up domain: with one copy of a token for each domain it goes to.

    Attributes:
        routing: where tokens go.
        rows_bytes: bytes of all tokens of a rank once, [keys].
    """

    routing: Routing
    rows_bytes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCollective:
    """One collective of one layer and micro-batch, for all keys.

    Attributes:
        axis: tp, cp or ep (the key the result files it under).
        kind: all_reduce, all_gather, reduce_scatter, all_to_all or send.
        size: ranks of the group, [keys].
        stride: distance of neighbouring ranks of the group, [keys].
        message_bytes: as nccl-tests counts, [keys].
        forward: times it runs in a forward pass, [keys].
        backward: times it runs in a backward pass, [keys].
        operand: whether it carries what products in low precision read and nothing else does, so that it may travel quantised.
        by_domain: of an all-to-all in two levels, what leaves a domain; `message_bytes` is what is sent inside domains.
    """

    axis: str
    kind: str
    size: IntArray
    stride: IntArray
    message_bytes: FloatArray
    forward: FloatArray
    backward: FloatArray
    operand: bool = False
    by_domain: ByDomain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelAxis:
    """A way to split the work of a layer.

    Attributes:
        name: the axis in results.
        degree: the column of `PlanBatch` with its degree.
        splits: roles of dims that it divides.
        layer_collectives: the collectives it adds to a layer.
    """

    name: str
    degree: str
    splits: tuple[str, ...]
    layer_collectives: Callable[[LayerGraph, LocalSizes, OperatorKeys, float], list[LayerCollective]]
