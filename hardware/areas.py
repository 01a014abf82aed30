"""Which kinds of node a pipeline stage stands on, on clusters that mix them.

Ranks follow the groups of a cluster in the order of its file, and pipeline stages follow the ranks: with G GPUs, stage s of pp
holds the ranks s·G/pp … (s + 1)·G/pp − 1. A *kind* is a distinct node (two groups of the same node are one kind); an *area* is
a set of kinds that some run of neighbouring groups has. A stage stands on the area of exactly the kinds its ranks have:

    area 0 of a cluster of one kind: everything          two kinds A, B: {A}, {B} and {A, B}, for a stage that straddles both
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.cluster import Cluster, Node

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Areas:
    """Kinds of node of a cluster and the sets of them that stages may stand on.

    Attributes:
        cluster: the cluster.
        kinds: distinct nodes, in the order of the file.
        members: kinds of each area, ascending.
        kind_of_group: kind of each group of nodes.
    """

    cluster: Cluster
    kinds: tuple[Node, ...]
    members: tuple[tuple[int, ...], ...]
    kind_of_group: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.members)

    def of_stages(self, pp: int) -> Ints:
        """The area that each of `pp` stages stands on, [pp]; `pp` divides the GPUs."""
        if len(self) == 1:
            return np.zeros(pp, dtype=np.int64)
        ends = np.cumsum([group.gpus for group in self.cluster.groups])
        bounds = np.arange(pp + 1) * self.cluster.gpus // pp
        first = np.searchsorted(ends, bounds[:-1], side="right")
        last = np.searchsorted(ends, bounds[1:] - 1, side="right")
        spans = zip(first.tolist(), last.tolist(), strict=True)
        return np.array([self.members.index(_kinds_of(self.kind_of_group[a : b + 1])) for a, b in spans], dtype=np.int64)

    def part(self, area: int) -> Cluster:
        """The groups of nodes of an area, as a cluster."""
        held = zip(self.cluster.groups, self.kind_of_group, strict=True)
        groups = tuple(group for group, kind in held if kind in self.members[area])
        return replace(self.cluster, name=f"{self.cluster.name}: {self.name(area)}", groups=groups)

    def ranks(self, area: int) -> NDArray[np.bool_]:
        """Whether each rank stands on a node of one of the kinds of an area, [GPUs]."""
        kinds = np.repeat(self.kind_of_group, [group.gpus for group in self.cluster.groups])
        return np.isin(kinds, self.members[area])

    def name(self, area: int) -> str:
        """The nodes of an area in words."""
        return " + ".join(dict.fromkeys(self.kinds[kind].id for kind in self.members[area]))

    def gpus_of(self, kind: int) -> int:
        """Usable GPUs on nodes of a kind."""
        held = zip(self.cluster.groups, self.kind_of_group, strict=True)
        return sum(group.gpus for group, own in held if own == kind)

    def gpus_per_node(self, kind: int) -> int:
        """Usable GPUs of the fullest node of a kind."""
        held = zip(self.cluster.groups, self.kind_of_group, strict=True)
        return max(group.gpus_per_node for group, own in held if own == kind)


def areas_of(cluster: Cluster) -> Areas:
    """The areas of a cluster; one of everything where all nodes are alike."""
    kinds: list[Node] = []
    for group in cluster.groups:
        if group.node not in kinds:
            kinds.append(group.node)
    own = tuple(kinds.index(group.node) for group in cluster.groups)
    spans = [own[a:b] for a in range(len(own)) for b in range(a + 1, len(own) + 1)] if len(kinds) > 1 else [own]
    members = sorted({_kinds_of(span) for span in spans}, key=lambda kinds: (len(kinds), kinds))
    return Areas(cluster=cluster, kinds=tuple(kinds), members=tuple(members), kind_of_group=own)


def _kinds_of(span: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(span)))
