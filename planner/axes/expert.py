"""Expert parallelism: rows travel to the ranks that hold their experts and back.

A rank sends the k·t copies of its t tokens that dispatch produced; with balanced routing all ranks send and receive
the same, else the busiest one receives `sharding.busiest` times as much and all wait for it. Dispatch and combine each run once
forward and once backward (arXiv 2006.16668). A token whose k experts live on fewer than k ranks travels once to each such rank;
with d ranks the expected number of distinct ones is d·(1 − (1 − 1/d)^k).
"""

from __future__ import annotations

import numpy as np

from shardwright.models.graph import LayerGraph
from shardwright.planner.axes.base import LayerCollective, ParallelAxis
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys, busiest
from shardwright.planner.plans import FloatArray


def layer_collectives(
    layer: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, activation_bytes: float
) -> list[LayerCollective]:
    """Dispatch and combine of a routed layer."""
    made: list[LayerCollective] = []
    one = np.ones(len(keys))
    for operator in layer.operators:
        if operator.kind not in {"dispatch", "combine"}:
            continue
        tokens = sizes.product(("batch", "seq", "hidden"), beside_tensor=False) * activation_bytes
        made.append(
            LayerCollective(
                axis="ep",
                kind="all_to_all",
                size=keys.ep,
                stride=keys.etp,
                message_bytes=tokens * copies_sent(layer.dims["topk"], keys.ep) * busiest(keys, layer.dims["experts"]),
                forward=one,
                backward=one,
            )
        )
    return made


def copies_sent(topk: int, ranks: np.ndarray) -> FloatArray:
    """Expected distinct ranks that a token's k experts live on, experts drawn evenly."""
    d = np.asarray(ranks, dtype=np.float64)
    return np.asarray(d * (1.0 - (1.0 - 1.0 / d) ** topk))


AXIS = ParallelAxis(name="ep", degree="ep", splits=("expert",), layer_collectives=layer_collectives)
