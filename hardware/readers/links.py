"""Islands of scale-up links from the links of every pair of GPUs.

    island          a connected component of the pairs with links
    direct mesh     a pair has n links, a GPU n · (size - 1): possible only up to `MOST_LINKS` of any GPU so far
    switch          a pair can use all n links of a GPU

Link counts of pairs are kept (`NodeLayout.link_counts`) where pairs inside an island differ. Sources: NVIDIA's legend of
`nvidia-smi topo -m` ("NV#: bonded set of # NVLinks"); NVLink 1 to 5 have 4, 6, 12, 18, 18 links a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.hardware.readers.rails import linked
from shardwright.hardware.topology_records import Groups

MOST_LINKS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """What the links between GPUs say.

    Attributes:
        groups: islands; GPUs without links alone.
        counts: links of every pair, where pairs of an island differ.
        links_of_gpu: links of one GPU (of the best connected one); None without any.
        direct: wired pair by pair.
    """

    groups: Groups
    counts: Groups | None
    links_of_gpu: int | None
    direct: bool


def islands_of(links: Sequence[Sequence[int]]) -> Islands:
    """Islands of a symmetric matrix of link counts, [gpu][gpu]."""
    groups = linked([[count > 0 for count in row] for row in links])
    uniform = all(_uniform(links, group) for group in groups)
    most = max((count for row in links for count in row), default=0)
    direct = not uniform or any(most * (len(group) - 1) <= MOST_LINKS for group in groups if len(group) > 2)
    total = max((sum(row) for row in links), default=0) if direct else most
    return Islands(
        groups=groups,
        counts=None if uniform else tuple(tuple(row) for row in links),
        links_of_gpu=total or None,
        direct=direct and most > 0,
    )


def _uniform(links: Sequence[Sequence[int]], group: Sequence[int]) -> bool:
    return len({links[a][b] for a in group for b in group if a != b}) <= 1
