"""Gradients that stand in for those of weights that a fused product has already added to the main gradient.

Autograd wants a gradient of every parameter, for its hooks to run. Where the product adds to the main gradient itself,
Transformer Engine hands out memory that nobody reads, one piece for each shape of weight, and keeps it for all layers and
micro-batches (NVIDIA/TransformerEngine, pytorch/module/base.py, get_dummy_wgrad, since April 2025; NVIDIA/Megatron-LM takes it
for the head too, core/tensor_parallel/layers.py):

    bytes = p · (trained weights of products of the largest layer, one expert for all, and of the head)

Where a product does not add itself, autograd makes the gradient of its weights first, which is added and let go, product by
product (`made_bytes`). What sharded parameters reduce at once (ZeRO 3) is counted as `states.reducing_bytes`.
"""

from __future__ import annotations

import numpy as np

from shardwright.models.graph import LayerGraph, Operator
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.cost.compute import Machine
from shardwright.planner.plans import FloatArray

EXPERTS = "experts"


def stand_in_bytes(unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> FloatArray:
    """Bytes of the stand-ins of a unit's weights on one rank, [keys]; 0 where the stack makes none."""
    none = np.zeros(len(keys))
    if not machine.stack.stand_in_gradients:
        return none
    products = (o for o in unit.operators if o.gemm is not None)
    weights = {p.name: p for o in products for p in o.parameters if p.trainable}
    each = (sizes.product(d for d in p.dims if d != EXPERTS) for p in weights.values())
    return np.asarray(sum(each, start=none) * machine.precision.parameter_bytes)


def made_bytes(operator: Operator, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> FloatArray:
    """Bytes of the gradient of a product's weights before it is added, of one expert for all, [keys]; 0 where products add."""
    width, none = machine.precision.parameter_bytes, np.zeros(len(keys))
    if operator.gemm is None or machine.stack.adds_in_products(width):
        return none
    weights = (p for p in operator.parameters if p.trainable)
    each = (sizes.product(d for d in p.dims if d != EXPERTS) for p in weights)
    return np.asarray(sum(each, start=none) * width)
