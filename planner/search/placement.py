"""Which host runs which part of a plan: `place` finds an order of hosts that keeps traffic off the slow links.

    record, cluster -> Traffic (what nodes exchange), Sites (where hosts are)
      -> known shapes: bands of k rows, column by column          `_bands`
      -> the integer program, from the best of them               `placement_program.solve`
      -> names of columns, so that counts become slots            `_labelled`
      -> swaps of two slots while they help (few slots only)      `_polished`

The least `placement_cost` wins; ties go to fewer bytes that cross groups, then to the order of hosts as the cluster lists them,
which is also the naive order that all is compared with. `gap` = 1 - bound / cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.cluster import Cluster
from shardwright.planner.search.placement_cost import (
    DEFAULT_ORDER,
    ORDERS,
    PlacementCost,
    Traffic,
    placement_cost,
    traffic_of,
)
from shardwright.planner.search.placement_program import Solved, floor_s, places, solve
from shardwright.planner.search.placement_sites import Sites, sites_of

Ints = NDArray[np.int64]

LIMIT = 1.0
"""Deterministic seconds of the program for one plan."""

POLISHED_SLOTS, POLISHED_ROUNDS = 24, 8
BANDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A placement and what it is compared with.

    Attributes:
        order: rank order, one of `placement_cost.ORDERS`.
        hosts: index into `sites.hosts` of each slot.
        cost, naive: of this placement and of the hosts as the cluster lists them.
        bound_s: no placement in this order costs less.
        stopped: the program ended at its limit.
    """

    order: str
    hosts: Ints
    cost: PlacementCost
    naive: PlacementCost
    bound_s: float
    stopped: bool

    @property
    def gap(self) -> float:
        """1 - bound / cost, at least 0."""
        return max(0.0, 1.0 - self.bound_s / self.cost.total_s) if self.cost.total_s > 0 else 0.0


def placement_record(record: Mapping[str, Any], cluster: Cluster, *, limit: float = LIMIT) -> dict[str, Any] | None:
    """The `placement` of a plan.

    Args:
        record: an ESTIMATE.
        cluster: as `sites_of` reads it.
        limit: deterministic seconds.

    Returns:
        Its JSON values; None where the cluster names no hosts or switches, nodes hold different numbers of GPUs, too few
        hosts have all theirs in use, or the plan has no price. Where kinds of node are mixed hosts stay as the file has them:
        stages were planned for the nodes they fall on.
    """
    sites = sites_of(cluster)
    if sites is None or cluster.mixed or record["predicted"] is None or len(set(sites.gpus.tolist())) != 1:
        return None
    per_slot = int(sites.gpus[0])
    if record["parallel"]["world_size"] > per_slot * len(sites.hosts):
        return None
    made = {
        order: place(traffic_of(record, per_slot, order), sites, order=order, limit=limit if order == DEFAULT_ORDER else 0.0)
        for order, targets in ORDERS.items()
        if order == DEFAULT_ORDER or (record["parallel"]["ep"] == 1 and set(targets) & set(record["expressible_by"]))
    }
    chosen = made[DEFAULT_ORDER]
    return {
        "order": chosen.order,
        "hosts": [sites.hosts[index] for index in chosen.hosts],
        "cost_s": chosen.cost.total_s,
        "naive_cost_s": chosen.naive.total_s,
        "bound_s": chosen.bound_s,
        "gap": chosen.gap,
        "axes_s": dict(chosen.cost.axes_s),
        "levels": [
            {
                "name": level.name,
                "groups": level.groups,
                "rates_known": level.known,
                "crossing_bytes": chosen.cost.crossing_bytes[level.name],
                "naive_crossing_bytes": chosen.naive.crossing_bytes[level.name],
            }
            for level in sites.levels
        ],
        "orders": [{"order": o, "cost_s": p.cost.total_s, "naive_cost_s": p.naive.total_s} for o, p in made.items()],
        "stopped": "effort_limit" if chosen.stopped else None,
    }


def place(traffic: Traffic, sites: Sites, *, order: str = DEFAULT_ORDER, limit: float = LIMIT) -> Placement:
    """The best placement found.

    Args:
        traffic: of the plan, in the order.
        sites: with at least as many hosts as the traffic has slots.
        order: for the record.
        limit: deterministic seconds of the program.
    """
    naive = np.arange(traffic.slots)
    best, least = naive, placement_cost(traffic, sites, naive)
    first = least
    bound = sum(floor_s(traffic, sites).values())
    stopped = True
    for hosts in _bands(traffic, sites):
        best, least = _better(traffic, sites, best, least, hosts)
    if traffic.rows and sites.levels and limit > 0 and least.total_s > bound * (1 + 1e-9):
        solved = _solved(traffic, sites, best, least, limit)
        bound, stopped = max(bound, solved.bound_s), solved.stopped
        for hosts in _labelled(solved.counts, traffic, sites):
            best, least = _better(traffic, sites, best, least, hosts)
    if traffic.slots <= POLISHED_SLOTS:
        best, least = _polished(traffic, sites, best, least)
    open_ = least.total_s > bound * (1 + 1e-9)
    return Placement(
        order=order, hosts=best, cost=least, naive=first, bound_s=min(bound, least.total_s), stopped=stopped and open_
    )


def _better(traffic: Traffic, sites: Sites, best: Ints, least: PlacementCost, hosts: Ints) -> tuple[Ints, PlacementCost]:
    cost = placement_cost(traffic, sites, hosts)
    return (hosts, cost) if cost.key < least.key else (best, least)


def _solved(traffic: Traffic, sites: Sites, best: Ints, least: PlacementCost, limit: float) -> Solved:
    row, _ = places(traffic)
    lowest = sites.levels[0]
    counts = np.zeros((traffic.rows, lowest.groups), dtype=np.int64)
    np.add.at(counts, (row, lowest.group[best]), 1)
    return solve(traffic, sites, counts, least, limit=limit)


def _by_group(sites: Sites) -> Ints:
    """Hosts group by group, of the highest tier first, in their order within a group."""
    keys = [np.arange(len(sites.hosts)), sites.domain, *(level.group for level in sites.levels)]
    return np.lexsort(keys)


def _bands(traffic: Traffic, sites: Sites) -> Iterator[Ints]:
    """Placements that fill groups with bands of k rows, column by column; once without a gap, once with whole columns only."""
    hosts = _by_group(sites)
    if not traffic.rows:
        yield hosts[: traffic.slots]
        return
    row, column = places(traffic)
    lowest = sites.levels[0].group[hosts] if sites.levels else np.zeros(len(hosts), dtype=np.int64)
    for k in sorted({-(-traffic.rows // n) for n in range(1, min(traffic.rows, BANDS) + 1)}):
        slots = np.lexsort((row, column, row // k))
        for chosen in (hosts, hosts[_whole_first(lowest, k)]):
            made = np.empty(traffic.slots, dtype=np.int64)
            made[slots] = chosen[: traffic.slots]
            yield made


def _whole_first(group: Ints, size: int) -> Ints:
    """Places of hosts, those that make up whole multiples of a size within their group first."""
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    lengths = np.diff(np.append(starts, len(group)))
    within = np.arange(len(group)) - np.repeat(starts, lengths)
    spare = within >= np.repeat(lengths // size * size, lengths)
    return np.argsort(spare, kind="stable")


def _labelled(counts: Ints | None, traffic: Traffic, sites: Sites) -> Iterator[Ints]:
    """Placements with the counts of a solution: rows in the order of groups, and rows that follow the row before."""
    if counts is None:
        return
    hosts = _by_group(sites)
    members = [hosts[sites.levels[0].group[hosts] == g] for g in range(counts.shape[1])]
    order = list(dict.fromkeys(sites.levels[0].group[hosts].tolist()))
    for follow in (False, True):
        groups = _columns(counts, order, follow=follow)
        made = np.empty(traffic.slots, dtype=np.int64)
        flat, slots = groups.reshape(-1), traffic.grid.reshape(-1)
        for g, own in enumerate(members):
            mine = slots[flat == g]
            made[mine] = own[: len(mine)]
        yield made


def _columns(counts: Ints, order: list[int], *, follow: bool) -> Ints:
    """The group of every row and column."""
    columns = int(counts[0].sum())
    found = np.full((len(counts), columns), -1, dtype=np.int64)
    for r, left in enumerate(counts.copy()):
        if follow and r:
            for c, g in enumerate(found[r - 1]):
                if left[g]:
                    found[r, c], left[g] = g, left[g] - 1
        found[r, found[r] < 0] = np.repeat(order, left[order])
    return found


def _polished(traffic: Traffic, sites: Sites, best: Ints, least: PlacementCost) -> tuple[Ints, PlacementCost]:
    """Swaps the hosts of two slots, or a used with a spare one, while that helps."""
    spare = np.setdiff1d(np.arange(len(sites.hosts)), best)
    for _ in range(POLISHED_ROUNDS):
        before, every = least, np.concatenate([best, spare])
        for i in range(traffic.slots):
            for j in range(i + 1, len(every)):
                tried = every.copy()
                tried[[i, j]] = tried[[j, i]]
                cost = placement_cost(traffic, sites, tried[: traffic.slots])
                if cost.key < least.key:
                    every, least = tried, cost
        best, spare = every[: traffic.slots], every[traffic.slots :]
        if least is before:
            break
    return best, least
