"""Tensors between operators: their layouts, and what bringing them from one to another costs.

What a reader keeps for its backward pass is the tensor as it read it. Where that took a gather and the stack gathers again in
the backward pass (`StackProfile.keeps_gathered_inputs` is false), the writer's part is kept, and the gather costs twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.models.graph import TensorSpec
from shardwright.planner.cost.activations import operator_saves
from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.context import Context
from shardwright.planner.search.operators.layouts import FOREIGN, PARTIAL, Codes, as_read, divisor
from shardwright.planner.search.operators.nodes import NodeTable
from shardwright.planner.search.operators.resharding import reshard

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A tensor of a node: index of the node's table, place among its inputs (or outputs)."""

    node: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTable:
    """Layouts of a tensor and the costs between them.

    Attributes:
        tensor: as its writer names it.
        written, read: distinct layouts, [P, axes] and [Q, axes].
        writes: index into `written` by choice of the writer.
        reads: index into `read` by choice of each reader.
        costs: columns of `amounts.COLUMNS`, [P, Q, columns].
    """

    tensor: TensorSpec
    written: Codes
    read: Codes
    writes: Ints
    reads: tuple[Ints, ...]
    costs: Floats


def edge_table(
    tables: Sequence[NodeTable],
    writer: Port,
    readers: Sequence[Port],
    whole: dict[str, int],
    context: Context,
    *,
    dropped: bool,
) -> EdgeTable:
    """The table of one tensor.

    Args:
        tables: of all operators.
        writer: who writes it, and as which output.
        readers: who reads it, and as which input.
        whole: size of every dim of the writer's layer, nothing divided.
        context: mesh and machine.
        dropped: whether it is made again rather than kept.
    """
    source = tables[writer.node]
    tensor = source.operator.outputs[writer.place]
    written, writes = distinct(source.written(writer.place))
    codes = [_seen(tables[r.node].read(r.place), tables[r.node].operator.inputs[r.place], tensor) for r in readers]
    read, index = distinct(np.concatenate(codes))
    reads = np.split(index, np.cumsum([len(c) for c in codes])[:-1])
    width = float(context.machine.precision.activation_bytes)
    hides = float(context.machine.stack.tp_exposed)
    times = reshard(
        context.links,
        tensor.bytes(whole, width),
        written,
        read,
        before=hides if any(tables[r.node].operator.gemm is not None for r in readers) else 1.0,
        after=hides if source.operator.gemm is not None else 1.0,
    )
    costs = np.zeros((len(written), len(read), len(a.COLUMNS)))
    costs[..., a.F_BLOCKING] = times.forward_s
    costs[..., a.B_BLOCKING] = times.backward_s
    keepers = [tables[r.node] for r in readers if _keeps(tables[r.node], r.place, context)]
    regathers = not context.machine.stack.keeps_gathered_inputs and any(t.operator.trains for t in keepers)
    if context.recompute == "full" and dropped:
        costs[..., a.B_BLOCKING] += times.forward_s
    elif regathers:
        costs[..., a.B_BLOCKING] += times.again_s
    if keepers:
        own = _keeps_written(source, tensor, context)
        kept = _kept_bytes(tensor.bytes(whole, width), written, read, context, regathers=regathers, own=own)
        costs[..., a.DROPPED if dropped else a.SAVED] = kept
    return EdgeTable(
        tensor=tensor, written=written, read=read, writes=writes, reads=tuple(r.astype(np.int64) for r in reads), costs=costs
    )


def _seen(codes: Codes, seen: TensorSpec, tensor: TensorSpec) -> Codes:
    """Layouts in the order of the writer's dims, of a reader that sees them in another order, or under other names."""
    if seen.dims == tensor.dims or (len(seen.dims) == len(tensor.dims) and set(seen.dims) != set(tensor.dims)):
        return codes
    places = [tensor.dims.index(dim) if dim in tensor.dims else at + FOREIGN for at, dim in enumerate(seen.dims)]
    table = np.arange(128, dtype=np.int64)
    for at, place in enumerate(places):
        table[at] = place
    return np.where(codes >= 0, table[np.maximum(codes, 0)], codes).astype(np.int8)


def distinct(codes: Codes) -> tuple[Codes, Ints]:
    """Distinct layouts of [choices, axes], and the index of each choice's."""
    found, index = np.unique(codes, axis=0, return_inverse=True)
    return found.astype(np.int8), index.reshape(-1).astype(np.int64)


def _keeps(table: NodeTable, place: int, context: Context) -> bool:
    name = table.operator.inputs[place].name
    return any(t.name == name for t in operator_saves(table.operator, context.machine))


def _keeps_written(table: NodeTable, tensor: TensorSpec, context: Context) -> bool:
    return any(t.name == tensor.name for t in operator_saves(table.operator, context.machine))


def _kept_bytes(
    whole_bytes: float, written: Codes, read: Codes, context: Context, *, regathers: bool, own: bool
) -> NDArray[np.float64]:
    """Bytes kept of a tensor by pair of layouts, [P, Q]."""
    as_given = whole_bytes / divisor(written, context.links.sizes)[:, None]
    as_taken = np.broadcast_to(whole_bytes / divisor(read, context.links.sizes)[None], (len(written), len(read)))
    same = (written[:, None] == as_read(read)[None]).all(axis=-1)
    summed = (written == PARTIAL).any(axis=-1)[:, None]
    kept = np.where(summed | ~np.bool_(regathers), as_taken, np.minimum(as_given, as_taken))
    already = same | (np.bool_(regathers) & ~summed & (as_given <= as_taken))
    return np.where(already & np.bool_(own), 0.0, kept)
