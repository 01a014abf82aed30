"""The integer program of a placement: how many slots of each row go to each group of hosts.

Slots form a grid: R rows (pipeline) of C columns (replicas). Columns can be named freely, so that a placement comes down to
counts x[r, g] of the slots of row r in group g:

    Σ_g x[r, g] = C,  Σ_r x[r, g] <= hosts of g                     each slot once, each host once               `_counts`
    x = K·q + ρ,  ρ <= min(hosts of g, K - 1)·b                     b = 1: parts of K columns that belong together are cut
    m <= x[r, g],  m <= x[r', g]                                    columns with the slots of rows r and r' in g
    out of g >= Σ cut·b + Σ chain·(x[r] + x[r'] - 2·m)              `_Out`
    T_axis >= (out of g by that axis) / uplink of g,  T_axis >= time on the NICs
    minimise Σ T_axis, and with the same time the bytes that cross

A part that is cut sends at least its least edge out, and where all exchange with all, that of each slot to those outside. So
every placement costs at least what the program says of its counts (`placement_cost`), and the solver's bound is one of all
placements. Groups of higher tiers take the sums of theirs. CP-SAT, one thread, a deterministic limit: the same input gives
the same placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.placement_cost import Edges, PlacementCost, Traffic
from shardwright.planner.search.placement_sites import Sites

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COST_UNITS, CROSSING_UNITS = 10**7, 10**4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a group sends out at least when it holds a part of a row: parts of `size` columns exchange among themselves.

    Attributes:
        bytes: where a part is cut at all.
        each_bytes: of each slot to each slot outside, where all of a row exchange with all; else 0.
    """

    row: int
    size: int
    bytes: float
    each_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What slots of one column send from row to row, bytes each way."""

    source: int
    target: int
    forth_bytes: float
    back_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What the program found.

    Attributes:
        counts: slots of each row in each group of the lowest tier, [rows, groups]; None without a solution.
        bound_s: no placement on the grid costs less.
        stopped: at the limit, before the bound met the solution.
    """

    counts: Ints | None
    bound_s: float
    stopped: bool


def floor_s(traffic: Traffic, sites: Sites) -> dict[str, float]:
    """Time that the bytes of each axis take on NICs wherever slots are; 0 where domains span hosts."""
    alone = len(np.unique(sites.domain)) == len(sites.hosts)
    rate = float(sites.nic_bytes_per_s.max())
    sent = {name: np.bincount(e.source, weights=e.bytes, minlength=traffic.slots) for name, e in traffic.axes.items()}
    got = {name: np.bincount(e.target, weights=e.bytes, minlength=traffic.slots) for name, e in traffic.axes.items()}
    return {name: float(max(sent[name].max(), got[name].max())) / rate if alone else 0.0 for name in traffic.axes}


def cuts_of(traffic: Traffic, edges: Edges) -> list[Cut]:
    """What cutting rows costs at least."""
    row, column = places(traffic)
    known: dict[tuple[bytes, bytes, bytes], tuple[int, float, float]] = {}
    found = []
    for r in range(traffic.rows):
        inside = (row[edges.source] == r) & (row[edges.target] == r)
        parts = column[edges.source[inside]], column[edges.target[inside]], edges.bytes[inside]
        key = (parts[0].tobytes(), parts[1].tobytes(), parts[2].tobytes())
        if key not in known:
            known[key] = _least_cut(*parts, traffic.columns)
        size, bytes_, each = known[key]
        found.append(Cut(row=r, size=size, bytes=bytes_, each_bytes=each))
    return [cut for cut in found if cut.size > 1]


def _least_cut(source: Ints, target: Ints, weight: Floats, columns: int) -> tuple[int, float, float]:
    """Columns of a part, bytes where a part is cut, bytes of each pair where all of a row exchange with all."""
    import networkx

    graph = networkx.DiGraph(zip(source.tolist(), target.tolist(), strict=True))
    graph.add_nodes_from(range(columns))
    sizes = {len(part) for part in networkx.strongly_connected_components(graph)}
    if len(sizes) > 1 or sizes == {1}:
        return 1, 0.0, 0.0
    size, least = sizes.pop(), float(weight.min())
    complete = len(weight) == columns * (size - 1)
    return size, least * (size - 1 if complete else 1), least if complete and size == columns else 0.0


def chains_of(traffic: Traffic, edges: Edges) -> list[Chain]:
    """What rows send each other, the least over the columns."""
    row, column = places(traffic)
    across = (row[edges.source] != row[edges.target]) & (column[edges.source] == column[edges.target])
    table: dict[tuple[int, int], list[float]] = {}
    for a, b, bytes_ in zip(row[edges.source[across]], row[edges.target[across]], edges.bytes[across], strict=True):
        table.setdefault((int(a), int(b)), []).append(float(bytes_))
    least = {pair: min(v) if len(v) == traffic.columns else 0.0 for pair, v in table.items()}
    pairs = sorted({(min(pair), max(pair)) for pair in least})
    return [Chain(source=a, target=b, forth_bytes=least.get((a, b), 0.0), back_bytes=least.get((b, a), 0.0)) for a, b in pairs]


def places(traffic: Traffic) -> tuple[Ints, Ints]:
    """Row and column of each slot."""
    grid = traffic.grid
    row, column = np.empty(traffic.slots, dtype=np.int64), np.empty(traffic.slots, dtype=np.int64)
    row[grid], column[grid] = np.indices(grid.shape)
    return row, column


def solve(traffic: Traffic, sites: Sites, hint: Ints, incumbent: PlacementCost, *, limit: float) -> Solved:
    """Solves the program.

    Args:
        traffic: on a grid.
        sites: with at least one level.
        hint: counts of a known placement, [rows, groups of the lowest tier].
        incumbent: its cost.
        limit: deterministic seconds.
    """
    from ortools.sat.python import cp_model

    made = _Program.of(traffic, sites, incumbent)
    made.add_hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False  # its handler would leave the one that kills behind
    solver.parameters.max_deterministic_time = limit
    status = solver.solve(made.model)
    bound_s = max(solver.best_objective_bound, 0.0) // (CROSSING_UNITS + 1) * made.unit_s
    least = sum(floor_s(traffic, sites).values())
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return Solved(counts=None, bound_s=max(bound_s, least), stopped=True)
    counts = np.array([[solver.value(v) for v in row] for row in made.x[0]], dtype=np.int64)
    return Solved(counts=counts, bound_s=max(bound_s, least), stopped=status != cp_model.OPTIMAL)


@dataclass(slots=True, kw_only=True)
class _Program:
    """The model with its variables: x[level][row][group]."""

    model: cp_model.CpModel
    traffic: Traffic
    sites: Sites
    unit_s: float
    x: list[list[list[Any]]] = field(default_factory=list)
    out: dict[tuple[str, int, int], list[tuple[Any, float]]] = field(default_factory=dict)

    @staticmethod
    def of(traffic: Traffic, sites: Sites, incumbent: PlacementCost) -> _Program:
        from ortools.sat.python import cp_model

        made = _Program(
            model=cp_model.CpModel(), traffic=traffic, sites=sites, unit_s=max(incumbent.total_s, 1e-12) / COST_UNITS
        )
        made._counts()
        for level in range(len(sites.levels)):
            for name, edges in traffic.axes.items():
                made._cuts(level, name, edges)
                made._chains(level, name, edges)
        made._objective(sum(incumbent.crossing_bytes.values()))
        return made

    def _counts(self) -> None:
        """Counts on every level; equal groups of the lowest tier in the order of their first row."""
        rows, columns = self.traffic.rows, self.traffic.columns
        lowest = self.sites.levels[0]
        hosts = np.bincount(lowest.group, minlength=lowest.groups).tolist()
        x = [[self.model.new_int_var(0, min(columns, n), "") for n in hosts] for _ in range(rows)]
        for row in x:
            self.model.add(sum(row) == columns)
        for g, n in enumerate(hosts):
            self.model.add(sum(row[g] for row in x) <= n)
        self.x.append(x)
        for level in self.sites.levels[1:]:
            inside = [np.unique(lowest.group[level.group == g]).tolist() for g in range(level.groups)]
            self.x.append([[sum(row[g] for g in groups) for groups in inside] for row in x])
        for alike in alike_groups(self.sites, hosts):
            for one, other in pairwise(alike):
                self.model.add(x[0][one] >= x[0][other])

    def _capacity(self, level: int, group: int) -> int:
        return min(int((self.sites.levels[level].group == group).sum()), self.traffic.columns)

    def _cuts(self, level: int, name: str, edges: Edges) -> None:
        for cut in cuts_of(self.traffic, edges):
            for g in range(self.sites.levels[level].groups):
                most = min(self._capacity(level, g), cut.size - 1)
                whole = self.model.new_int_var(0, self.traffic.columns // cut.size, "")
                rest = self.model.new_int_var(0, most, "")
                split = self.model.new_bool_var("")
                self.model.add(self.x[level][cut.row][g] == cut.size * whole + rest)
                self.model.add(rest <= most * split)
                self._sends(name, level, g, split, cut.bytes)
                if cut.each_bytes:
                    least = cut.each_bytes * (cut.size - most)
                    self._sends(f"{name}*", level, g, rest, least)

    def _chains(self, level: int, name: str, edges: Edges) -> None:
        for chain in chains_of(self.traffic, edges):
            for g in range(self.sites.levels[level].groups):
                above, below = self.x[level][chain.source][g], self.x[level][chain.target][g]
                together = self.model.new_int_var(0, self._capacity(level, g), "")
                self.model.add(together <= above)
                self.model.add(together <= below)
                self._sends(name, level, g, above - together, chain.forth_bytes)
                self._sends(name, level, g, below - together, chain.back_bytes)

    def _sends(self, name: str, level: int, group: int, term: Any, bytes_: float) -> None:
        if bytes_:
            self.out.setdefault((name, level, group), []).append((term, bytes_))

    def _objective(self, crossing_bytes: float) -> None:
        """Times in units of a share of the incumbent's, rounded down: bounds stay bounds."""
        times = []
        for name, least in floor_s(self.traffic, self.sites).items():
            time = self.model.new_int_var(int(least / self.unit_s), 4 * COST_UNITS, "")
            times.append(time)
            for (axis, level, g), terms in self.out.items():
                if axis.rstrip("*") == name:
                    unit = float(self.sites.levels[level].uplink_bytes_per_s[g]) * self.unit_s
                    self.model.add(time >= sum(int(bytes_ / unit) * term for term, bytes_ in terms))
        share = CROSSING_UNITS / (2.0 * max(crossing_bytes, 1e-12))
        crossing = self.model.new_int_var(0, CROSSING_UNITS, "")
        sent = [
            (term, round(bytes_ * share))
            for (axis, _, _), terms in self.out.items()
            if "*" not in axis
            for term, bytes_ in terms
        ]
        self.model.add(crossing >= sum(weight * term for term, weight in sent))
        self.model.minimize((CROSSING_UNITS + 1) * sum(times) + crossing)

    def add_hint(self, counts: Ints) -> None:
        """Starts from known counts, equal groups put in the order that the program keeps."""
        hosts = np.bincount(self.sites.levels[0].group, minlength=self.sites.levels[0].groups).tolist()
        placed = counts.copy()
        for alike in alike_groups(self.sites, hosts):
            order = sorted(alike, key=lambda g: tuple(-counts[:, g]))
            placed[:, alike] = counts[:, order]
        for row, values in zip(self.x[0], placed.tolist(), strict=True):
            for variable, value in zip(row, values, strict=True):
                self.model.add_hint(variable, value)


def alike_groups(sites: Sites, hosts: Sequence[int]) -> list[list[int]]:
    """Groups of the lowest tier that nothing tells apart: as many hosts, the same uplinks and cards, the same groups above."""
    lowest = sites.levels[0]
    first = [int(np.flatnonzero(lowest.group == g)[0]) for g in range(lowest.groups)]
    found: dict[tuple[Any, ...], list[int]] = {}
    for g, host in enumerate(first):
        above = tuple(int(level.group[host]) for level in sites.levels[1:])
        cards = tuple(np.unique(sites.nic_bytes_per_s[lowest.group == g]).tolist())
        found.setdefault((hosts[g], float(lowest.uplink_bytes_per_s[g]), cards, above), []).append(g)
    return list(found.values())
