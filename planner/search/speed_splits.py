"""Layers in proportion to what stages can do, on clusters that mix kinds of node.

A rank on ground a takes t_a for a layer, with the degrees, micro-batch and recomputing of its plan, and x for the embedding or
head it holds beside. With n layers it takes n·t_a + x, and the longest rank counts:

    share      n = ⌊(T − x) / t_a⌋, at least one a chunk, where T lets all ranks take as long
    remainder  one layer at a time to the rank that is then the shortest
    at last    layers move from slower to faster ranks while none becomes longer than the longest: the pipeline fills sooner

and the layers of a rank are divided over its chunks in the same way. `by-speed` takes t and x from the tables that price plans
(`cost.operators`: computing, launches, exposed exchange and recomputing), `by-memory` what parameters weigh in the memory of
the ground, `speed-and-memory` the geometric mean of both: where fast GPUs have too little memory for their share of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.planner.cost.grounds import Ground, grounds_of, joined_tables
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.operators import UnitTables
from shardwright.planner.cost.routed import operator_keys
from shardwright.planner.cost.stages import SPEED_KINDS, SPLIT_KINDS, Split
from shardwright.planner.plans import RECOMPUTE_MODES, RECOMPUTED_SHARE, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import Columns

Costs = tuple[FloatArray, FloatArray, FloatArray]
"""A layer, the embedding, and head with what follows it, [keys, grounds] each."""


def with_speed_splits(
    problem: Problem, batch: PlanBatch, columns: Columns, folded: IntArray, splits: Sequence[Split]
) -> tuple[IntArray, tuple[Split, ...]]:
    """Splits by speed or memory for the plans that ask for them: the split of every plan, and all splits.

    Args:
        problem: on a cluster that mixes kinds of node.
        batch: plans; their `split` indexes `splits`.
        columns: their `split` as of `SPLIT_CHOICES` and `recompute` as of `RECOMPUTE_CHOICES`, [plans].
        folded: whether its chunks stand on ranks like a V, [plans].
        splits: known ones.
    """
    keys, key = operator_keys(problem, batch)
    grounds = grounds_of(problem, network_of(problem))
    tables = joined_tables(problem.graph, keys, grounds)
    kind, choice = columns["split"], columns["recompute"]
    costs = {one: _costs(problem, tables, grounds, one) for one in np.unique(choice).tolist()}
    made, split = list(splits), batch.split.copy()
    known: dict[tuple[tuple[int, ...], int, int, bool], int] = {}
    asks = kind >= len(SPLIT_KINDS)
    shapes = np.unique(np.stack((batch.pp, batch.vpp, kind, folded, choice))[:, asks], axis=1)
    for pp, vpp, way, fold, again in shapes.T.tolist():
        rows = np.flatnonzero(
            asks & (batch.pp == pp) & (batch.vpp == vpp) & (kind == way) & (folded == fold) & (choice == again)
        )
        used, own = np.unique(key[rows], return_inverse=True)
        shape = Split(chunks=(problem.graph.layers,) * (pp * vpp), pp=pp, vpp=vpp, folded=bool(fold))
        area = problem.areas.of_stages(pp)
        chunks = divided(
            problem.graph.layers, area, shape, tuple(part[used] for part in costs[again][SPEED_KINDS[way - len(SPLIT_KINDS)]])
        )
        places = []
        for row in chunks.tolist():
            name = (tuple(row), pp, vpp, bool(fold))
            if name not in known:
                known[name] = len(made)
                made.append(Split(chunks=name[0], pp=pp, vpp=vpp, folded=bool(fold)))
            places.append(known[name])
        split[rows] = np.array(places)[own]
    return split, tuple(made)


def divided(layers: int, area: IntArray, shape: Split, costs: tuple[FloatArray, ...]) -> IntArray:
    """Layers of each chunk so that the longest rank takes least, [keys, chunks].

    Args:
        layers: layers to divide, at least one a chunk.
        area: ground of each rank, [ranks].
        shape: how chunks stand on ranks; its own layers do not matter.
        costs: as `Costs`.
    """
    layer, embedding, head = costs
    each, ranks = layer[:, area], shape.ranks
    beside = np.zeros((len(each), len(ranks)))
    beside[:, 0] += embedding[:, area[ranks[0]]]
    beside[:, -1] += head[:, area[ranks[-1]]]
    of_rank = np.stack([beside[:, ranks == rank].sum(axis=1) for rank in range(shape.pp)], axis=1)
    held = _shifted(_level(np.full(len(each), layers), each, of_rank, shape.vpp), each, of_rank, shape.vpp)
    if shape.vpp == 1:
        return held
    made = np.zeros(beside.shape, dtype=np.int64)
    for rank in range(shape.pp):
        at = np.flatnonzero(ranks == rank)
        made[:, at] = _level(held[:, rank], np.repeat(each[:, [rank]], len(at), axis=1), beside[:, at], 1)
    return made


def _level(layers: IntArray, each: FloatArray, beside: FloatArray, least: int) -> IntArray:
    """Layers of each part so that the longest is as short as can be, [keys, parts]."""
    level = (layers + (beside / each).sum(axis=1)) / (1.0 / each).sum(axis=1)
    held = np.maximum(np.floor((level[:, None] - beside) / each), least).astype(np.int64)
    rows = np.arange(len(held))
    while (over := held.sum(axis=1) > layers).any():
        longest = np.where(held > least, held * each + beside, -np.inf).argmax(axis=1)
        held[rows[over], longest[over]] -= 1
    while (under := held.sum(axis=1) < layers).any():
        shortest = ((held + 1) * each + beside).argmin(axis=1)
        held[rows[under], shortest[under]] += 1
    return np.asarray(held)


def _shifted(held: IntArray, each: FloatArray, beside: FloatArray, least: int) -> IntArray:
    """Layers moved from slower to faster ranks as long as none becomes longer than the longest."""
    rows, longest = np.arange(len(held)), (held * each + beside).max(axis=1, keepdims=True) * (1 + 1e-12)
    while True:
        room = (held + 1) * each + beside <= longest
        fast, slow = np.where(room, each, np.inf).argmin(axis=1), np.where(held > least, each, -np.inf).argmax(axis=1)
        moved = np.flatnonzero(
            room.any(axis=1) & (each[rows, slow] > each[rows, fast] * (1 + 1e-9)) & (held[rows, slow] > least)
        )
        if len(moved) == 0:
            return np.asarray(held)
        held[moved, slow[moved]] -= 1
        held[moved, fast[moved]] += 1


def _costs(problem: Problem, tables: UnitTables, grounds: Sequence[Ground], choice: int) -> dict[str, Costs]:
    seconds, weights = (
        _of_units(_seconds(tables, choice), problem, len(grounds)),
        _of_units(_weights(tables), problem, len(grounds)),
    )
    capacity = np.array([ground.capacity_bytes for ground in grounds], dtype=np.float64)
    heavy = (weights[0] / capacity, weights[1] / capacity, weights[2] / capacity)
    scale = heavy[0].mean(axis=1, keepdims=True) / seconds[0].mean(axis=1, keepdims=True)
    both = tuple(np.sqrt(s * scale * h) for s, h in zip(seconds, heavy, strict=True))
    return dict(zip(SPEED_KINDS, (seconds, heavy, (both[0], both[1], both[2])), strict=True))


def _seconds(tables: UnitTables, choice: int) -> FloatArray:
    """What a unit takes of a micro-batch with what is recomputed of it, [keys, units of all grounds]."""
    mode, share = min(choice, RECOMPUTE_MODES.index("full")), RECOMPUTED_SHARE[choice]
    again = tables.again_s[:, :, mode] + tables.again_exposed_s.sum(axis=2) * (mode == RECOMPUTE_MODES.index("full"))
    exposed = (tables.exposed_forward_s + tables.exposed_backward_s).sum(axis=2)
    host = tables.host_forward_s + tables.host_backward_s
    return np.asarray(tables.compute_forward_s + tables.compute_backward_s + host + exposed + share * again)


def _weights(tables: UnitTables) -> FloatArray:
    return np.asarray(tables.dense_parameters + tables.expert_parameters)


def _of_units(values: FloatArray, problem: Problem, grounds: int) -> Costs:
    """A mean layer, the embedding, and head with multi-token prediction."""
    graph = problem.graph
    by_ground = values.reshape(len(values), grounds, -1)
    kinds = len(graph.layer_kinds)
    often = np.bincount(np.array(graph.pattern), minlength=kinds) / graph.layers
    head = by_ground[:, :, kinds + 1]
    if graph.mtp is not None:
        head = head + graph.mtp_layers * by_ground[:, :, kinds + 2]
    return by_ground[:, :, :kinds] @ often, by_ground[:, :, kinds], head
