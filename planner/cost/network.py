"""Collectives over the groups of a mesh axis, with the shapes of groups looked up once.

`Network.collective(kind, size, stride, message_bytes)` returns the time, the algorithm and the link of
`hardware.collectives.collective_s` for arrays of group sizes and strides, whose shapes on the cluster follow
exactly from the rank order (`hardware.mesh.group_shape`); `Network.between` does so for pairs (`pair_shape`). Where the
problem holds measured collectives of its machine, times are corrected by them (`hardware.calibration`), here and nowhere else.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.calibration import Corrections
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.collectives import LINKS, CollectiveTime, Fabric, GroupTable, collective_s, fabric_of
from shardwright.hardware.mesh import ALONE, GroupShape, group_shape, pair_shape, some_within
from shardwright.hardware.network_levels import levels_of
from shardwright.planner.axes.base import LayerCollective
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.problem import Problem


class Network:
    """Prices collectives on one cluster; remembers the shape of every group it met.

    Args:
        cluster: where the ranks run.
        fabric: constants of its links.
        corrections: what measured collectives say beside them.
        within: ranks whose groups count; None for all.
    """

    def __init__(
        self,
        cluster: Cluster,
        fabric: Fabric,
        corrections: Corrections | None = None,
        within: NDArray[np.bool_] | None = None,
    ) -> None:
        self._cluster = cluster
        self._fabric = fabric
        self._corrections = corrections
        self._within = within
        self._levels = levels_of(cluster)
        self._known: dict[tuple[int, int], GroupShape] = {}
        self._pairs: dict[int, GroupShape] = {}

    def collective(self, kind: str, size: IntArray, stride: IntArray, message_bytes: FloatArray) -> CollectiveTime:
        """Time of one collective, arrays of shape [n]; groups of one rank cost nothing."""
        groups, inverse = self._groups(size, stride)
        return self._priced(kind, groups.take(inverse), message_bytes)

    def seconds(self, kind: str, size: IntArray, stride: IntArray, message_bytes: FloatArray) -> FloatArray:
        """Time of one collective; see `collective`."""
        return self.collective(kind, size, stride, message_bytes).time_s

    def in_layer(self, c: LayerCollective, at: IntArray | None = None) -> CollectiveTime:
        """Time of a collective inside layers, for all keys or those at some places, [n]."""
        where = np.arange(len(c.size)) if at is None else at
        groups, inverse = self._groups(c.size[where], c.stride[where])
        table, crossing = groups.take(inverse), None
        if c.by_domain is not None:
            other = (table.islands - 1.0) / table.islands
            crossing = c.by_domain.rows_bytes[where] * c.by_domain.routing.places(table.islands) * other
        return self._priced(c.kind, table, c.message_bytes[where], crossing)

    def between(self, kind: str, distance: IntArray, message_bytes: FloatArray) -> CollectiveTime:
        """Time of a send, or of a collective of two, between ranks at a distance, arrays of shape [n]; 0 is no exchange.

        The worst pair counts, wherever it starts: a pipeline waits for its slowest link.
        """
        distances, inverse = np.unique(distance, return_inverse=True)
        table = GroupTable.of([self.pair(int(distance)) for distance in distances]).take(inverse)
        return self._priced(kind, table, message_bytes)

    def shape(self, size: int, stride: int) -> GroupShape:
        """How the worst group of an axis lies on the cluster."""
        found = self._known.get((size, stride))
        if found is None:
            found = self._known[size, stride] = self._shape(size, stride if size > 1 else 1)
        return found

    def _shape(self, size: int, stride: int) -> GroupShape:
        if self._within is not None and not some_within(self._within, size, stride):
            return ALONE  # no stage on these nodes has such a group
        return group_shape(self._cluster, size, stride, self._levels, self._within)

    def pair(self, distance: int) -> GroupShape:
        """How the worst pair of ranks at a distance lies on the cluster; 0 is a rank by itself."""
        if distance == 0:
            return self.shape(1, 1)
        if distance not in self._pairs:
            self._pairs[distance] = pair_shape(self._cluster, distance, self._levels)
        return self._pairs[distance]

    def link_name(self, link: int, shape: GroupShape) -> str:
        """The name of the link (a code of `LINKS`) that a collective over a group reported."""
        return self._fabric.link_name(LINKS[link], shape.crossing.place)

    def _priced(
        self, kind: str, groups: GroupTable, message_bytes: FloatArray, crossing: FloatArray | None = None
    ) -> CollectiveTime:
        message = np.asarray(message_bytes, dtype=np.float64)
        time = collective_s(kind, groups, message, self._fabric, crossing)
        if self._corrections is None:
            return time
        return replace(time, time_s=time.time_s * self._corrections.ratio(kind, groups, message))

    def _groups(self, size: IntArray, stride: IntArray) -> tuple[GroupTable, IntArray]:
        radix = int(stride.max(initial=1)) + 1
        codes, inverse = np.unique(size * radix + stride, return_inverse=True)
        shapes = [self.shape(int(code) // radix, int(code) % radix) for code in codes]
        return GroupTable.of(shapes), inverse


def network_of(problem: Problem) -> Network:
    """The network of a problem: its cluster's links, corrected by what was measured there."""
    return Network(problem.cluster, fabric_of(problem.cluster), problem.collectives)
