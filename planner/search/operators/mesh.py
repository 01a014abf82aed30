"""The mesh of a problem: its axes as groups of ranks, and the time of collectives over them.

    axis a of (outermost first)    size n_a, stride = Π sizes of the axes inside a
    neighbouring axes together     size Π n, stride of the inner one                 `MeshLinks.joint`

Messages of parameters and gradients are sent many at once (buckets), so that they are priced at the rate of a bucket:
time = bytes · t(bucket) / bucket (`MeshLinks.bucketed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.mesh import DeviceMesh
from shardwright.planner.cost.network import Network

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_AXES = 3


def parse_mesh(text: str, where: str = "--mesh") -> DeviceMesh:
    """The mesh of `dp=8,tp=8`, outermost axis first.

    Raises:
        InvalidValueError: not of that form, more than three axes, or an axis twice.
    """
    pairs = []
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name.isidentifier() or not size.isascii() or not size.isdigit() or not 1 <= int(size) <= 2**20:
            raise InvalidValueError(f"{part!r} is no axis of a mesh", where=where, hint="write dp=8,tp=8, outermost axis first")
        pairs.append((name, int(size)))
    if len(pairs) > MAX_AXES:
        raise InvalidValueError(f"a mesh of {len(pairs)} axes", where=where, hint=f"at most {MAX_AXES} are modelled")
    return DeviceMesh(axes=tuple(pairs))


def check_fits(mesh: DeviceMesh, gpus: int, where: str = "--mesh") -> None:
    """Refuses a mesh that is no part of the cluster.

    Raises:
        ConflictError: more ranks than GPUs, or a number that does not divide them.
    """
    if mesh.size > gpus or gpus % mesh.size:
        hint = f"give axes whose sizes multiply to {gpus}, or to a part of it (a pipeline stage)"
        raise ConflictError(f"the mesh has {mesh.size} ranks and the cluster {gpus} GPUs", where=where, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLinks:
    """Prices collectives over axes of a mesh.

    Attributes:
        mesh: the axes.
        network: prices groups by size and stride.
    """

    mesh: DeviceMesh
    network: Network
    _rates: dict[tuple[str, tuple[int, ...], float], float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ranks of each axis."""
        return self.mesh.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each axis."""
        return tuple(self.mesh.stride(name) for name, _ in self.mesh.axes)

    def seconds(self, kind: str, axis: Ints, message_bytes: Floats) -> Floats:
        """Time of one collective a row over single axes, arrays of one shape; equal rows are priced once."""
        if not len(axis):
            return np.zeros(0)
        rows, inverse = np.unique(np.stack([axis.astype(np.float64), message_bytes]), axis=1, return_inverse=True)
        at = rows[0].astype(np.int64)
        sizes, strides = np.asarray(self.sizes, dtype=np.int64)[at], np.asarray(self.strides, dtype=np.int64)[at]
        return np.asarray(self.network.seconds(kind, sizes, strides, rows[1])[inverse.reshape(-1)])

    def joint(self, axes: Sequence[int]) -> tuple[int, int] | None:
        """Size and stride of the group of several axes together; None where they do not lie next to each other."""
        used = [a for a in axes if self.sizes[a] > 1]
        if not used:
            return 1, 1
        nested = all(self.strides[a] == self.strides[b] * self.sizes[b] for a, b in pairwise(used))
        return (int(np.prod([self.sizes[a] for a in used])), self.strides[used[-1]]) if nested else None

    def together(self, kind: str, axes: Sequence[int], message_bytes: Floats) -> Floats:
        """Time of one collective over the group of several neighbouring axes; infinite where they are no neighbours."""
        group = self.joint(axes)
        if group is None:
            return np.full(message_bytes.shape, np.inf)
        flat = message_bytes.reshape(-1)
        size, stride = (np.full(flat.shape, v, dtype=np.int64) for v in group)
        return self.network.seconds(kind, size, stride, flat).reshape(message_bytes.shape)

    def rate(self, kind: str, axes: tuple[int, ...], bucket_bytes: float) -> float:
        """Seconds a byte of a collective over axes when a bucket is sent; axes that do not join are used in turn."""
        key = kind, axes, bucket_bytes
        if key not in self._rates:
            bucket = np.array([bucket_bytes])
            joined = float(self.together(kind, axes, bucket)[0])
            if not np.isfinite(joined):
                joined = sum(float(self.together(kind, (a,), bucket)[0]) for a in axes)
            self._rates[key] = joined / bucket_bytes
        return self._rates[key]
