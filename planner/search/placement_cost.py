"""What a placement costs: the time that the busiest link of the network needs for the bytes of each axis.

`Traffic` holds what slots (the node-sized parts of a job, in rank order) send each other in a step, by axis. With slot i on
host h(i), a link l of rate B_l (the NICs of a host, the uplinks of a group of hosts; each way by itself) carries

    bytes_l = Σ over slots i inside l, j outside of it of bytes(i, j)

and the axes exchange one after the other, so that

    cost = Σ over axes of max over links of bytes_l / B_l                      `placement_cost`

Collectives other than all-to-all go round the ranks of their group in rank order, as NCCL's rings do over nodes; all-to-all
sends from each to each; stages send to their neighbours, both ways. The cost is busy time, not what stays exposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.placement_sites import Sites

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ORDERS: Mapping[str, tuple[str, ...]] = {
    "tp-cp-ep-dp-pp": ("megatron", "torchtitan", "pytorch"),
    "tp-cp-ep-pp-dp": ("megatron",),
}
"""Rank orders, innermost axis first, and who can launch them: the default of Megatron-LM and torchtitan's mesh; and
`--use-tp-pp-dp-mapping` of Megatron-LM."""

DEFAULT_ORDER = "tp-cp-ep-dp-pp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What slots send each other in a step: bytes[k] from slot source[k] to slot target[k], each pair once."""

    source: Ints
    target: Ints
    bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What the slots of a plan exchange.

    Attributes:
        slots: nodes that the plan needs.
        axes: edges by axis; axes that stay inside slots are left out.
        rows, columns: the slots as a grid, pipeline along the rows, replicas along the columns; 0 where they are none.
        by_column: slot = column · rows + row, else row · columns + column.
    """

    slots: int
    axes: Mapping[str, Edges]
    rows: int = 0
    columns: int = 0
    by_column: bool = False

    @property
    def grid(self) -> Ints:
        """Slot numbers, [rows, columns]."""
        numbers = np.arange(self.rows * self.columns)
        return numbers.reshape(self.columns, self.rows).T if self.by_column else numbers.reshape(self.rows, self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCost:
    """Cost of one placement.

    Attributes:
        total_s: of all axes.
        axes_s: by axis.
        crossing_bytes: bytes of a step that leave a group, by level.
    """

    total_s: float
    axes_s: Mapping[str, float]
    crossing_bytes: Mapping[str, float]

    @property
    def key(self) -> tuple[float, float]:
        """What placements are compared by: the time, then all bytes that cross."""
        return (float(f"{self.total_s:.12g}"), float(f"{sum(self.crossing_bytes.values()):.12g}"))


def placement_cost(traffic: Traffic, sites: Sites, hosts: Ints) -> PlacementCost:
    """The cost of a placement.

    Args:
        traffic: of the plan.
        sites: of the cluster.
        hosts: index into `sites.hosts` of each slot, [slots], none twice.
    """
    axes = {name: axis_seconds(edges, sites, hosts) for name, edges in traffic.axes.items()}
    crossing = {
        level.name: float(
            sum(e.bytes[level.group[hosts[e.source]] != level.group[hosts[e.target]]].sum() for e in traffic.axes.values())
        )
        for level in sites.levels
    }
    return PlacementCost(total_s=sum(axes.values()), axes_s=axes, crossing_bytes=crossing)


def axis_seconds(edges: Edges, sites: Sites, hosts: Ints) -> float:
    """Time of the busiest link for the bytes of one axis."""
    source, target = hosts[edges.source], hosts[edges.target]
    over_nics = np.where(sites.domain[source] != sites.domain[target], edges.bytes, 0.0)
    slowest = _busiest(source, target, over_nics, sites.nic_bytes_per_s)
    for level in sites.levels:
        out, into = level.group[source], level.group[target]
        crossing = np.where(out != into, edges.bytes, 0.0)
        slowest = max(slowest, _busiest(out, into, crossing, level.uplink_bytes_per_s))
    return slowest


def _busiest(source: Ints, target: Ints, weight: Floats, rates: Floats) -> float:
    sent = np.bincount(source, weights=weight, minlength=len(rates))
    received = np.bincount(target, weights=weight, minlength=len(rates))
    return float(np.max(np.maximum(sent, received) / rates, initial=0.0))


def traffic_of(record: Mapping[str, Any], gpus_per_slot: int, order: str = DEFAULT_ORDER) -> Traffic:
    """What the nodes of a plan exchange in a step, all stages taken to be like the one that determines it.

    Args:
        record: an ESTIMATE: `parallel` and `communication`.
        gpus_per_slot: ranks of a node.
        order: one of `ORDERS`.
    """
    parallel = record["parallel"]
    world = int(parallel["world_size"])
    slot = _positions(parallel, order) // gpus_per_slot
    found: dict[str, list[tuple[Ints, Ints, Floats]]] = {}
    for row in record["communication"]:
        for source, target, share in _pairs(row, parallel, world):
            bytes_ = np.full(len(source), share * float(row["wire_bytes"]))
            found.setdefault(str(row["axis"]), []).append((slot[source], slot[target], bytes_))
    slots = -(-world // gpus_per_slot)
    axes = {name: _joined(parts, slots) for name, parts in found.items()}
    rows, columns, by_column = _grid(parallel, gpus_per_slot, order, slots)
    used = {name: edges for name, edges in axes.items() if len(edges.bytes)}
    return Traffic(slots=slots, axes=used, rows=rows, columns=columns, by_column=by_column)


def _positions(parallel: Mapping[str, Any], order: str) -> Ints:
    """The rank in an order of each rank of the default order, [world]."""
    world = int(parallel["world_size"])
    if order == DEFAULT_ORDER:
        return np.arange(world)
    inner, dp, pp = int(parallel["tp"] * parallel["cp"]), int(parallel["dp"]), int(parallel["pp"])
    return np.arange(world).reshape(dp, pp, inner).transpose(1, 0, 2).reshape(-1)


def _grid(parallel: Mapping[str, Any], per_slot: int, order: str, slots: int) -> tuple[int, int, bool]:
    """Rows and columns of slots, and whether columns are numbered first; 0, 0 where stages and nodes do not meet."""
    pp, dp = int(parallel["pp"]), int(parallel["dp"])
    inside, outer, lines = (dp, pp, False) if order == DEFAULT_ORDER else (pp, dp, True)
    block = int(parallel["tp"] * parallel["cp"]) * inside
    if block % per_slot == 0:
        inner = block // per_slot
        return (inner, outer, True) if lines else (outer, inner, False)
    if per_slot % block == 0 and slots * per_slot == block * outer:
        return (1, slots, True) if lines else (slots, 1, False)
    return 0, 0, False


def _pairs(row: Mapping[str, Any], parallel: Mapping[str, Any], world: int) -> list[tuple[Ints, Ints, float]]:
    """Sending and receiving ranks of one kind of collective, and the share of a rank's bytes on each pair."""
    size, stride = int(row["group_size"]), int(row["group_stride"])
    if row["axis"] == "pp" and size == 2:
        return _neighbours(row, parallel, world)
    groups = np.arange(world).reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    if row["collective"] != "all_to_all":
        return [(groups.reshape(-1), np.roll(groups, -1, axis=1).reshape(-1), 1.0)]
    shifted = (np.roll(groups, -step, axis=1).reshape(-1) for step in range(1, size))
    return [(groups.reshape(-1), target, 1.0 / (size - 1)) for target in shifted]


def _neighbours(row: Mapping[str, Any], parallel: Mapping[str, Any], world: int) -> list[tuple[Ints, Ints, float]]:
    """Stages and their neighbours, both ways; interleaved stages also send from the last to the first."""
    distance = int(row["group_stride"])
    ranks = np.arange(world)
    if row["collective"] != "send":  # tied embeddings, between the first and the last stage
        first = ranks[: world - distance]
        return [(first, first + distance, 1.0), (first + distance, first, 1.0)]
    first = ranks if int(parallel["vpp"]) > 1 else ranks[: world - distance]
    after = (first + distance) % world
    return [(first, after, 0.5), (after, first, 0.5)]


def _joined(parts: Sequence[tuple[Ints, Ints, Floats]], slots: int) -> Edges:
    source, target, bytes_ = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = (source != target) & (bytes_ > 0)
    code, inverse = np.unique(source[kept] * slots + target[kept], return_inverse=True)
    total = np.bincount(inverse, weights=bytes_[kept]).astype(np.float64)
    return Edges(source=code // slots, target=code % slots, bytes=total)
