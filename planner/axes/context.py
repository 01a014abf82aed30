"""Context parallelism: every rank holds a part of the sequence and meets all keys and values.

With S bytes of local keys and values and q, k, v, o bytes of what a core reads and writes, an attention core exchanges

                        forward                             backward
    p2p, a ring         (cp − 1)·S                          2·(cp − 1)·S
    allgather           all-gather of cp·S                  the same again, and a reduce-scatter of cp·S
    a2a, heads          all-to-all of q, k, v and o         the same of their gradients

The ring (arXiv 2310.01889) passes keys and values on; backward they travel again and their gradients return. It is priced as an
all-gather of cp·S (same wire bytes), and the attention core hides a part of it where the stack overlaps. Gathering keeps the
local part and gathers again backward (Transformer Engine `context_parallel`). Heads are exchanged for sequence as DeepSpeed-
Ulysses does (arXiv 2309.14509): the core runs on 1/cp of the heads with the whole sequence. Cores wait for both of these, so
nothing hides them. A scan exchanges sequence for heads whatever the attention does: an all-to-all of its operands before and of
its output after it, both ways (Megatron-LM does so for Mamba layers).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.models.graph import AttentionShape, LayerGraph, Operator
from shardwright.planner.axes.base import LayerCollective, ParallelAxis
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.plans import GATHER, RING, SWAP, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreBytes:
    """What an attention core reads and writes on one rank, each in bytes, [keys]."""

    query: FloatArray
    key: FloatArray
    value: FloatArray
    output: FloatArray

    @property
    def total(self) -> FloatArray:
        """All four."""
        return self.query + self.key + self.value + self.output


def core_bytes(shape: AttentionShape, sizes: LocalSizes, activation_bytes: float) -> CoreBytes:
    """What an attention core reads and writes with the part of the sequence that a rank holds."""

    def held(heads: str, width: str) -> FloatArray:
        return sizes.product(("batch", "seq", heads, width)) * activation_bytes

    return CoreBytes(
        query=held(shape.heads, shape.qk_dim),
        key=held(shape.kv_heads, shape.qk_dim),
        value=held(shape.kv_heads, shape.v_dim),
        output=held(shape.heads, shape.v_dim),
    )


def layer_collectives(
    layer: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float
) -> list[LayerCollective]:
    """Exchange around every attention core and scan of a layer."""
    made: list[LayerCollective] = []
    for operator in layer.operators:
        if operator.scan is not None:
            made.append(_around_scan(operator, sizes, keys, activation_bytes))
        if operator.attention is not None:
            made += _around_attention(core_bytes(operator.attention, sizes, activation_bytes), keys)
    return made


def _around_attention(moved: CoreBytes, keys: OperatorKeys) -> list[LayerCollective]:
    """Exchange of keys and values, or of sequence for heads; kinds that no key uses are left out."""
    ring, gather, swap = ((keys.cp_comm == kind).astype(np.float64) for kind in (RING, GATHER, SWAP))
    whole = keys.cp * (moved.key + moved.value)
    made = []
    if (ring + gather).any():
        made.append(_over_cp("all_gather", whole, keys, forward=ring + gather, backward=2 * ring + gather))
    if gather.any():
        made.append(_over_cp("reduce_scatter", whole, keys, forward=0 * gather, backward=gather))
    if swap.any():
        parts = (moved.query, moved.key, moved.value, moved.output)
        made += [_over_cp("all_to_all", part, keys, forward=swap, backward=swap) for part in parts]
    return made


def _over_cp(
    kind: str, message: FloatArray, keys: OperatorKeys, *, forward: FloatArray, backward: FloatArray
) -> LayerCollective:
    return LayerCollective(
        axis="cp", kind=kind, size=keys.cp, stride=keys.tp, message_bytes=message, forward=forward, backward=backward
    )


def _around_scan(operator: Operator, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float) -> LayerCollective:
    """Exchange of sequence for heads before and after a scan."""
    one = np.ones(len(keys))
    moved = sum((sizes.bytes(t, activation_bytes) for t in (*operator.inputs, operator.outputs[0])), start=np.zeros(1))
    return _over_cp("all_to_all", moved, keys, forward=one, backward=one)


AXIS = ParallelAxis(name="cp", degree="cp", splits=("sequence",), layer_collectives=layer_collectives)
