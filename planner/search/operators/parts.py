"""Layers with fused operators taken apart where their parts are independent: each part can then be divided in its own way.

    a product with several outputs       one product an output (queries, keys, values; gate and up)
    n inputs to n outputs of their dims  one operator a pair (rotation, or norm, of queries and of keys)

Costs are those of the parts; a fused kernel is a little faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwright.models.graph import LayerGraph, Normalised, Operator, TensorSpec


def apart(layer: LayerGraph) -> LayerGraph:
    """The layer with its independent parts as operators of their own."""
    return replace(layer, operators=tuple(part for operator in layer.operators for part in parts_of(operator)))


def parts_of(operator: Operator) -> Iterator[Operator]:
    """The independent parts of an operator; itself where it has none."""
    if operator.gemm is not None and len(operator.outputs) == len(operator.gemm.n) > 1:
        yield from _products(operator)
    elif _pairs(operator):
        yield from _each(operator)
    else:
        yield operator


def _products(operator: Operator) -> Iterator[Operator]:
    gemm, parts = operator.gemm, len(operator.outputs)
    if gemm is None or len(operator.parameters) % parts:
        yield operator
        return
    for at, output in enumerate(operator.outputs):
        yield replace(
            operator,
            name=f"{operator.name}.{output.name}",
            outputs=(output,),
            parameters=operator.parameters[at::parts],
            gemm=replace(gemm, n=(gemm.n[at],)),
        )


def _pairs(operator: Operator) -> bool:
    ins, outs = operator.inputs, operator.outputs
    bare = operator.gemm is None and operator.attention is None and operator.scan is None
    if not bare or len(ins) != len(outs) or len(ins) < 2 or len(operator.parameters) % len(ins):
        return False
    alike = all(a.dims == b.dims for a, b in zip(ins, outs, strict=True))
    return alike and len({t.name for t in ins}) == len(ins) and _own(operator) is not None


def _own(operator: Operator) -> tuple[tuple[TensorSpec, ...], ...] | None:
    """What each pair keeps; None where it cannot be told."""
    names = {t.name for t in operator.inputs}
    inputs = [t for t in operator.saved if t.name in names]
    others = [t for t in operator.saved if t.name not in names]
    if len(others) not in {0, len(operator.inputs)}:
        return None
    each: list[tuple[TensorSpec, ...]] = [(o,) for o in others] or [()] * len(operator.inputs)
    return tuple((*(t for t in inputs if t.name == i.name), *own) for i, own in zip(operator.inputs, each, strict=True))


def _each(operator: Operator) -> Iterator[Operator]:
    kept, parts = _own(operator) or (), len(operator.inputs)
    for at, (source, target, own) in enumerate(zip(operator.inputs, operator.outputs, kept, strict=True)):
        over = operator.normalised
        yield replace(
            operator,
            name=f"{operator.name}.{target.name}",
            inputs=(source,),
            outputs=(target,),
            parameters=operator.parameters[at::parts],
            saved=own,
            normalised=_within(over, source) if over is not None else None,
            recompute_drops=tuple(n for n in operator.recompute_drops if n == target.name or n in {t.name for t in own}),
        )


def _within(over: Normalised, tensor: TensorSpec) -> Normalised:
    return replace(over, dims=tuple(dim for dim in over.dims if dim in tensor.dims))
