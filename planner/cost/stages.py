"""Layers of each pipeline stage, folded into runs of neighbouring ranks that hold the same.

A *split* gives every pipeline chunk its number of layers; layers run in chunk order. Chunks stand on ranks in loops (chunk
v·pp + r is the v-th of rank r) or folded like a V (chunks r and 2·pp − 1 − r on rank r); the embedding sits before the first
layer, head, loss and multi-token prediction after the last, so a V holds both ends on rank 0. `even_chunks` divides

    units = layers + [embedding counted] + [head counted]

as evenly as possible over pp·vpp chunks, the larger chunks first, then takes the counted ones out of the first
and last chunk. `SplitTable` holds, for many splits, how often each unit of the model (see `cost.operators.units_of`)
stands on the ranks of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.schedules.orders import stage_ranks

SPLIT_KINDS = ("even", "embedding-counted", "head-counted", "both-counted")
"""What counts as a layer when layers are divided evenly (Megatron-Core `--account-for-embedding-in-pipeline-split`
and `--account-for-loss-in-pipeline-split`; torchtitan's `pipeline_parallel_first_stage_less_layers` likewise)."""


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
    """

    splits: tuple[Split, ...]
    runs: IntArray
    counts: FloatArray
    first_rank: IntArray
    last_rank: IntArray
    layers: FloatArray
    kinds: int

    @property
    def multiplicity(self) -> IntArray:
        """Ranks of each run."""
        return self.last_rank - self.first_rank + 1


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


def fold(graph: ModelGraph, splits: Sequence[Split], *, every_rank: bool = False) -> SplitTable:
    """The table of some splits.

    Args:
        graph: the model.
        splits: ways to divide its layers.
        every_rank: keep each rank a run of its own (to print all stages).
    """
    prefix = _prefix_counts(graph)
    folded = [_folded(split, prefix, graph, every_rank) for split in splits]
    widest = max(len(first) for _, first, _ in folded)
    counts = np.zeros((len(splits), widest, prefix.shape[1] + 2 + (graph.mtp is not None)))
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
        layers=counts[:, :, : prefix.shape[1]].sum(axis=2),
        kinds=prefix.shape[1],
    )


def intervals(split: Split) -> list[list[list[int] | None]]:
    """First and last layer of each chunk, by rank; None for a chunk without layers."""
    starts = np.concatenate(([0], np.cumsum(split.chunks)))
    made: list[list[list[int] | None]] = [[] for _ in range(split.pp)]
    for rank, (a, b) in zip(split.ranks.tolist(), pairwise(starts), strict=True):
        made[rank].append([int(a), int(b) - 1] if b > a else None)
    return made


def by_chunk(splits: Sequence[Split]) -> list[Split]:
    """The same divisions with every chunk on a rank of its own."""
    return [Split(chunks=split.chunks, pp=len(split.chunks), vpp=1) for split in splits]


def _prefix_counts(graph: ModelGraph) -> IntArray:
    """Layers of each kind among the first n, [layers + 1, kinds]."""
    kinds = np.zeros((graph.layers + 1, len(graph.layer_kinds)), dtype=np.int64)
    kinds[np.arange(1, graph.layers + 1), list(graph.pattern)] = 1
    return np.asarray(kinds.cumsum(axis=0))


def _folded(split: Split, prefix: IntArray, graph: ModelGraph, every_rank: bool) -> tuple[FloatArray, IntArray, IntArray]:
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
    changes = np.ones(split.pp, dtype=bool)
    if not every_rank:
        changes[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    first = np.flatnonzero(changes)
    return rows[first].astype(np.float64), first, np.append(first[1:], split.pp) - 1
