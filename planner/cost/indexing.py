"""Finding the distinct rows of a few integer columns, so that what they share is computed once."""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import IntArray

_LIMIT = 2**62


def distinct(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows of columns of non-negative integers.

    Args:
        columns: arrays of shape [n].

    Returns:
        The index of one row of each kind, [kinds], and the kind of every row, [n].
    """
    code = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for column in columns:
        radix = int(column.max(initial=0)) + 1
        if span * radix > _LIMIT:
            _, code = np.unique(code, return_inverse=True)
            span = int(code.max(initial=0)) + 1
        code = code * radix + column
        span *= radix
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse
