"""Layers of each pipeline stage, folded into runs of neighbouring ranks that hold the same.

A *split* gives every pipeline chunk its number of layers; layers run in chunk order. Chunks stand on ranks in loops (chunk
v·pp + r is the v-th of rank r) or folded like a V (chunks r and 2·pp − 1 − r on rank r); the embedding sits before the first
layer, head, loss and multi-token prediction after the last, so a V holds both ends on rank 0. `even_chunks` divides

    units = layers + [embedding counted] + [head counted]

as evenly as possible over pp·vpp chunks, the larger chunks first, then takes the counted ones out of the first
and last chunk. `SplitTable` holds, for many splits, how often each unit of the model (see `cost.operators.units_of`)
stands on the ranks of each run. On clusters that mix nodes every unit is counted apart for each area (`hardware.areas`) that
stages stand on, area by area, and runs end where the area changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.hardware.areas import Areas
from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import stage_ranks

SPLIT_KINDS = ("even", "embedding-counted", "head-counted", "both-counted")
"""What counts as a layer when layers are divided evenly (Megatron-Core `--account-for-embedding-in-pipeline-split`
and `--account-for-loss-in-pipeline-split`; torchtitan's `pipeline_parallel_first_stage_less_layers` likewise)."""


SPEED_KINDS = ("by-speed", "by-memory", "speed-and-memory")
"""Uneven divisions on clusters that mix kinds of node: by what a layer takes on each stage, by the memory of stages, and the
geometric mean of both (`search.speed_splits`)."""

SPLIT_CHOICES = (*SPLIT_KINDS, *SPEED_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way to divide the layers.

    Attributes:
        chunks: layers of each chunk in the order they run, pp·vpp numbers.
        pp: pipeline ranks.
        vpp: chunks a rank.
        folded: whether chunks stand on ranks like a V.
    """

    chunks: tuple[int, ...]
    pp: int
    vpp: int
    folded: bool = False

    @property
    def ranks(self) -> IntArray:
        """Rank of each chunk, [pp·vpp]."""
        return stage_ranks(self.pp, self.vpp, self.folded)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable:
    """Splits, folded: arrays of shape [splits], [splits, runs] or [splits, runs, units].

    Attributes:
        splits: the splits themselves.
        runs: number of runs of each split.
        counts: how often each unit stands on a rank of the run; 0 beyond the last run.
        first_rank, last_rank: pipeline ranks of the run; last < first beyond the last run.
        layers: layers on a rank of the run.
        kinds: layer kinds of the model; among the units, embedding and head follow them.
        areas: areas of the cluster; units of `counts` are those of area 0, then of area 1, ...
        area: area each run stands on; None where there is one.
    """

    splits: tuple[Split, ...]
    runs: IntArray
    counts: FloatArray
    first_rank: IntArray
    last_rank: IntArray
    layers: FloatArray
    kinds: int
    areas: int = 1
    area: IntArray | None = None

    @property
    def multiplicity(self) -> IntArray:
        """Ranks of each run."""
        return self.last_rank - self.first_rank + 1

    def held(self, counts: FloatArray, unit: int) -> FloatArray:
        """How often a unit stands on runs, wherever they stand, [...]; `counts` are rows of the table's, [..., units]."""
        return counts[..., unit] if self.areas == 1 else counts[..., unit :: counts.shape[-1] // self.areas].sum(axis=-1)

    def layer_units(self, units: int) -> IntArray:
        """Those of so many columns that are layers, wherever they stand."""
        return np.flatnonzero(np.arange(units) % (units // self.areas) < self.kinds)

    def units(self, split: int, run: int) -> FloatArray:
        """How often each unit of the model stands on a run, wherever it stands, [units]."""
        return np.asarray(self.counts[split, run].reshape(self.areas, -1).sum(axis=0))

    def standing(self, split: IntArray, runs: int) -> IntArray:
        """The area of the first `runs` runs of some splits, [splits, runs]."""
        return np.zeros((len(split), runs), dtype=np.int64) if self.area is None else self.area[split, :runs]


def even_chunks(layers: int, pp: int, vpp: int, kind: int) -> tuple[int, ...] | None:
    """Layers of each chunk, or None where the counted embedding or head leaves a chunk with less than nothing.

    Args:
        layers: layers to divide.
        pp: pipeline ranks.
        vpp: chunks a rank.
        kind: index into `SPLIT_KINDS`.
    """
    embedding, head = kind & 1, kind >> 1 & 1
    chunks = pp * vpp
    base, larger = divmod(layers + embedding + head, chunks)
    made = [base + 1] * larger + [base] * (chunks - larger)
    made[0] -= embedding
    made[-1] -= head
    return tuple(made) if min(made) >= 0 else None


def fold(
    graph: ModelGraph,
    splits: Sequence[Split],
    *,
    every_rank: bool = False,
    areas: Areas | None = None,
    area: Sequence[IntArray] | None = None,
) -> SplitTable:
    """The table of some splits.

    Args:
        graph: the model.
        splits: ways to divide its layers.
        every_rank: keep each rank a run of its own (to print all stages).
        areas: of the cluster; None for one.
        area: area of each rank of each split, where it does not follow from its place among them.
    """
    prefix, count = _prefix_counts(graph), 1 if areas is None else len(areas)
    stands: Sequence[IntArray | None] = [None] * len(splits)
    if areas is not None and count > 1:
        stands = [areas.of_stages(split.pp) for split in splits] if area is None else area
    folded = [_folded(split, prefix, graph, every_rank, (at, count)) for split, at in zip(splits, stands, strict=True)]
    widest = max(len(first) for _, first, _ in folded)
    units = prefix.shape[1] + 2 + (graph.mtp is not None)
    counts = np.zeros((len(splits), widest, count * units))
    first_rank = np.ones((len(splits), widest), dtype=np.int64)
    last_rank = np.zeros((len(splits), widest), dtype=np.int64)
    for index, (rows, first, last) in enumerate(folded):
        counts[index, : len(first)] = rows
        first_rank[index, : len(first)] = first
        last_rank[index, : len(first)] = last
    return SplitTable(
        splits=tuple(splits),
        runs=np.array([len(first) for _, first, _ in folded], dtype=np.int64),
        counts=counts,
        first_rank=first_rank,
        last_rank=last_rank,
        layers=counts.reshape(len(splits), widest, count, units)[..., : prefix.shape[1]].sum(axis=(2, 3)),
        kinds=prefix.shape[1],
        areas=count,
        area=_of_runs(stands, first_rank),
    )


def _of_runs(stands: Sequence[IntArray | None], first_rank: IntArray) -> IntArray | None:
    """The area of the first rank of each run; 0 beyond the last, [splits, runs]."""
    if any(at is None for at in stands):
        return None
    made = np.zeros_like(first_rank)
    for index, at in enumerate(stands):
        if at is not None:
            made[index] = at[np.minimum(first_rank[index], len(at) - 1)]
    return made


def intervals(split: Split) -> list[list[list[int] | None]]:
    """First and last layer of each chunk, by rank; None for a chunk without layers."""
    starts = np.concatenate(([0], np.cumsum(split.chunks)))
    made: list[list[list[int] | None]] = [[] for _ in range(split.pp)]
    for rank, (a, b) in zip(split.ranks.tolist(), pairwise(starts), strict=True):
        made[rank].append([int(a), int(b) - 1] if b > a else None)
    return made


def fold_chunks(graph: ModelGraph, splits: Sequence[Split], areas: Areas | None = None) -> SplitTable:
    """The table of the same divisions with every chunk on a rank of its own, in the area of the rank it stands on."""
    own = [areas.of_stages(split.pp)[split.ranks] for split in splits] if areas is not None else None
    return fold(graph, by_chunk(splits), every_rank=True, areas=areas, area=own)


def by_chunk(splits: Sequence[Split]) -> list[Split]:
    """The same divisions with every chunk on a rank of its own."""
    return [Split(chunks=split.chunks, pp=len(split.chunks), vpp=1) for split in splits]


def _prefix_counts(graph: ModelGraph) -> IntArray:
    """Layers of each kind among the first n, [layers + 1, kinds]."""
    kinds = np.zeros((graph.layers + 1, len(graph.layer_kinds)), dtype=np.int64)
    kinds[np.arange(1, graph.layers + 1), list(graph.pattern)] = 1
    return np.asarray(kinds.cumsum(axis=0))


def _folded(
    split: Split, prefix: IntArray, graph: ModelGraph, every_rank: bool, stands: tuple[IntArray | None, int]
) -> tuple[FloatArray, IntArray, IntArray]:
    area, areas = stands
    bounds = np.concatenate(([0], np.cumsum(split.chunks)))
    rounds = np.diff(prefix[bounds], axis=0).reshape(split.vpp, split.pp, -1)
    if split.folded:
        rounds[1::2] = rounds[1::2, ::-1].copy()
    by_rank, last = rounds.sum(axis=0), int(split.ranks[-1])
    ends = np.zeros((split.pp, 2 + (graph.mtp is not None)), dtype=np.int64)
    ends[0, 0] = ends[last, 1] = 1
    if graph.mtp is not None:
        ends[last, 2] = graph.mtp_layers
    rows = np.concatenate((by_rank, ends), axis=1)
    if area is not None:
        placed = np.zeros((split.pp, areas, rows.shape[1]), dtype=np.int64)
        placed[np.arange(split.pp), area] = rows
        rows = placed.reshape(split.pp, -1)
    changes = np.ones(split.pp, dtype=bool)
    if not every_rank:
        changes[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        if area is not None:
            changes[1:] |= area[1:] != area[:-1]
    first = np.flatnonzero(changes)
    return rows[first].astype(np.float64), first, np.append(first[1:], split.pp) - 1
