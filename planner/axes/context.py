"""Context parallelism: every rank holds a part of the sequence and meets all keys and values.

Exchange by ring (arXiv 2310.01889): keys and values travel cp − 1 steps forward; backward they travel again and their
gradients return. Volume per attention core of S = bytes of local keys and values:

    forward   (cp − 1)·S          backward   2·(cp − 1)·S

Priced as an all-gather of cp·S (same wire bytes); the attention core hides a part of it where the stack overlaps. A scan over
the sequence exchanges sequence for heads instead: an all-to-all of its operands before and of its output after it, both ways
(arXiv 2309.14509 for attention; Megatron-LM does so for Mamba layers).
"""

from __future__ import annotations

import numpy as np

from shardwright.models.graph import LayerGraph, Operator
from shardwright.planner.axes.base import LayerCollective, ParallelAxis
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys


def layer_collectives(
    layer: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float
) -> list[LayerCollective]:
    """Exchange of keys and values of every attention core of a layer."""
    made: list[LayerCollective] = []
    one = np.ones(len(keys))
    for operator in layer.operators:
        if operator.scan is not None:
            made.append(_around_scan(operator, sizes, keys, activation_bytes))
        if operator.attention is None:
            continue
        shape = operator.attention
        local = sizes.product(("batch", "seq", shape.kv_heads, shape.qk_dim)) + sizes.product(
            ("batch", "seq", shape.kv_heads, shape.v_dim)
        )
        made.append(
            LayerCollective(
                axis="cp",
                kind="all_gather",
                size=keys.cp,
                stride=keys.tp,
                message_bytes=keys.cp * local * activation_bytes,
                forward=one,
                backward=2 * one,
            )
        )
    return made


def _around_scan(operator: Operator, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float) -> LayerCollective:
    """Exchange of sequence for heads before and after a scan."""
    one = np.ones(len(keys))
    moved = sum((sizes.bytes(t, activation_bytes) for t in (*operator.inputs, operator.outputs[0])), start=np.zeros(1))
    return LayerCollective(
        axis="cp", kind="all_to_all", size=keys.cp, stride=keys.tp, message_bytes=moved, forward=one, backward=one
    )


AXIS = ParallelAxis(name="cp", degree="cp", splits=("sequence",), layer_collectives=layer_collectives)
