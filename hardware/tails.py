"""How much longer than its median a collective takes on an unlucky set of nodes.

A collective waits for its slowest link. With Q the quantile of the slowdown of one pair of nodes against the median pair, and
I islands whose links are slow or not by themselves, the slowest of I - 1 pairs is within

    slowdown(I, q) = Q(q^(1 / (I - 1)))                                         `slowdown`

with probability q. Beyond the worst pair that was measured nothing is claimed. Q averages two H100 clusters, one healthy (2 %
at 95 %) and one not (61 %): a cluster's own logs say which it is. Inside a node Q is nearly 1.

Source: pairwise nccl-tests logs of xxrjun/nccl-tests-cluster (commit 455de4f8dee2), 45 and 134 pairs, 10 nodes, messages from
32 MiB; quantiles by ``benchmarks/fit_tails.py``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUANTILES = (0.5, 0.95, 1.0)
BETWEEN_NODES = (1.0, 1.315, 1.484)
INSIDE_NODES = (1.0, 1.009, 1.009)
TAIL = 0.95
"""The quantile that results print."""


def slowdown(islands: Floats | float, quantile: float = TAIL) -> Floats:
    """Time at a quantile over the median time, at least 1.

    Args:
        islands: that the groups touch, any shape; 1 = inside a node or domain.
        quantile: between 0 and 1.
    """
    pairs = np.maximum(np.asarray(islands, dtype=np.float64) - 1.0, 1.0)
    between = np.interp(quantile ** (1.0 / pairs), QUANTILES, BETWEEN_NODES)
    inside = np.interp(quantile, QUANTILES, INSIDE_NODES)
    return np.where(np.asarray(islands) > 1, between, inside)
