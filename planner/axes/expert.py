"""Expert parallelism: rows travel to the ranks that hold their experts and back, both ways of a pass.

A rank has t tokens of h values, each goes to k experts; with uneven routing the busiest rank receives u = `sharding.busiest`
times as much as the mean, and all wait for it. D and D' are the distinct ranks and scale-up domains that a token's experts live
in (`axes.routing`), d = ep.

    alltoall      all-to-all of k·t·h: every copy by itself          Megatron-Core MoEAlltoAllTokenDispatcher, torchtitan
    deepep,       all-to-all in two levels: a token leaves its        deepseek-ai/DeepEP: forwarded over NVLink
    hybridep      domain D' times, and inside domains D ranks get it  HybridEP of the same: domains of up to 72 GPUs
    allgather     all-gather of d·t·h before, reduce-scatter after    Megatron-Core MoEAllGatherTokenDispatcher: over etp·ep

Dispatch runs once forward, as combine backward, and combine the other way round (arXiv 2006.16668). Where a stack sends rows to
experts in 8 bits, both dispatches (of rows, and of gradients backward) have one byte a value and a 4-byte scale for 128 of them
(arXiv 2412.19437 section 3.3); combining stays in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.models.graph import LayerGraph
from shardwright.planner.axes.base import ByDomain, LayerCollective, ParallelAxis
from shardwright.planner.axes.routing import Routing
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys, busiest
from shardwright.planner.plans import ALL_GATHER, ALL_TO_ALL, FloatArray

EIGHT_BIT_BYTES = 1.0 + 4.0 / 128.0
"""Bytes of a value sent in 8 bits, with its part of a scale (deepseek-ai/DeepEP: fp8 with scales of 128 values)."""


def layer_collectives(
    layer: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float
) -> list[LayerCollective]:
    """Dispatch and combine of a routed layer; ways that no key goes are left out."""
    if not any(operator.kind == "dispatch" for operator in layer.operators):
        return []
    gather, plain = ((keys.moe_dispatcher == kind).astype(np.float64) for kind in (ALL_GATHER, ALL_TO_ALL))
    narrow = EIGHT_BIT_BYTES if keys.dispatch_8bit else activation_bytes
    made: list[LayerCollective] = []
    for share, exchange in ((plain, _copies), (1.0 - gather - plain, _by_domain)):
        if share.any():
            made += _both_ways(layer, sizes, keys, share, exchange, (narrow, activation_bytes))
    if gather.any():
        made += _gathered(sizes, keys, gather, activation_bytes)
    return made


Exchange = Callable[[LayerGraph, FloatArray, OperatorKeys, FloatArray, FloatArray], LayerCollective]


def _both_ways(
    layer: LayerGraph,
    sizes: LocalSizes,
    keys: OperatorKeys,
    share: FloatArray,
    exchange: Exchange,
    widths: tuple[float, float],
) -> list[LayerCollective]:
    """Rows to experts and back, each in its width."""
    values = sizes.product(("batch", "seq", "hidden"), beside_tensor=False) * busiest(keys, layer.dims["experts"])
    there, back = widths
    if there == back:
        return [exchange(layer, values * back, keys, share, share) for _ in range(2)]
    nothing = 0.0 * share
    return [
        exchange(layer, values * there, keys, share, nothing),
        exchange(layer, values * back, keys, nothing, share),
        exchange(layer, values * back, keys, share, nothing),
        exchange(layer, values * there, keys, nothing, share),
    ]


def _copies(
    layer: LayerGraph, rows: FloatArray, keys: OperatorKeys, forward: FloatArray, backward: FloatArray
) -> LayerCollective:
    """Every copy of a token by itself; `rows` are the bytes of all tokens once."""
    return LayerCollective(
        axis="ep",
        kind="all_to_all",
        size=keys.ep,
        stride=keys.etp,
        message_bytes=rows * layer.dims["topk"],
        forward=forward,
        backward=backward,
    )


def _by_domain(
    layer: LayerGraph, rows: FloatArray, keys: OperatorKeys, forward: FloatArray, backward: FloatArray
) -> LayerCollective:
    """One copy a domain, then one a rank."""
    routing = Routing.of(layer.dims)
    return LayerCollective(
        axis="ep",
        kind="all_to_all",
        size=keys.ep,
        stride=keys.etp,
        message_bytes=rows * routing.places(keys.ep.astype(np.float64)),
        forward=forward,
        backward=backward,
        by_domain=ByDomain(routing=routing, rows_bytes=rows),
    )


def _gathered(sizes: LocalSizes, keys: OperatorKeys, share: FloatArray, activation_bytes: float) -> list[LayerCollective]:
    """All tokens of the ranks that share experts, on each of them."""
    tokens = sizes.product(("batch", "seq", "hidden"), beside_tensor=False) * activation_bytes
    size = keys.ep * keys.etp
    return [
        LayerCollective(
            axis="ep",
            kind=kind,
            size=size,
            stride=np.ones_like(size),
            message_bytes=size * tokens,
            forward=share,
            backward=share,
        )
        for kind in ("all_gather", "reduce_scatter")
    ]


AXIS = ParallelAxis(name="ep", degree="ep", splits=("expert",), layer_collectives=layer_collectives)
