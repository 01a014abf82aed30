"""How a tensor lies over the axes of a mesh: one code an axis.

    R  (-1)   every rank holds the whole
    P  (-2)   every rank holds a summand
    B  (-3)   every rank reads the whole, and its gradient comes back as summands ("broadcast")
    S  (>=0)  divided in the dim at position `code % VIA`

A producer writes R, P or S; a consumer reads R, B or S. The gradient of what was written as R or P is wanted whole, of what was
read as B it comes as summands, and a divided tensor has a gradient divided alike (`gradient_read`, `gradient_written`).

A dim may be divided by others (`models.dims.MADE_OF`: rows of experts lie by token or by expert); `code // VIA` says by which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.models.dims import MADE_OF
from shardwright.models.graph import TensorSpec

Codes = NDArray[np.int8]

WHOLE, PARTIAL, BROADCAST = -1, -2, -3
VIA = 16
FOREIGN = 5 * VIA
"""Codes of dims that the writer of a tensor does not have (a reader sees it in another shape)."""


def code_in(dims: Sequence[str], dim: str, *, last: bool = False) -> int | None:
    """The code of a tensor of these dims when `dim` is divided; None where it does not have that dim.

    Args:
        dims: of the tensor.
        dim: what is divided.
        last: the last of several positions, not the first.
    """
    places = [at for at, name in enumerate(dims) if name == dim]
    if places:
        return places[-1 if last else 0]
    for at, name in enumerate(dims):
        if dim in MADE_OF.get(name, ()):
            return at + VIA * (1 + MADE_OF[name].index(dim))
    return None


def gradient_read(codes: Codes) -> Codes:
    """Layout in which a consumer gives the gradient of what it read."""
    return np.where(codes == BROADCAST, PARTIAL, codes).astype(np.int8)


def gradient_written(codes: Codes) -> Codes:
    """Layout in which a producer wants the gradient of what it wrote."""
    return np.where(codes == PARTIAL, WHOLE, codes).astype(np.int8)


def as_read(codes: Codes) -> Codes:
    """Layout of the values a consumer reads."""
    return np.where(codes == BROADCAST, WHOLE, codes).astype(np.int8)


def divisor(codes: Codes, sizes: Sequence[int]) -> NDArray[np.float64]:
    """By how much a rank's part is smaller than the whole, [...], for codes [..., axes]."""
    return np.asarray(np.where(codes >= 0, np.asarray(sizes, dtype=np.float64), 1.0).prod(axis=-1))


def word(code: int, tensor: TensorSpec) -> str:
    """A code as people write it: R, P, S(seq)."""
    if code < 0:
        return "P" if code == PARTIAL else "R"
    if code >= FOREIGN:
        return "S(other)"
    name = tensor.dims[code % VIA]
    return f"S({MADE_OF[name][code // VIA - 1] if code >= VIA else name})"
