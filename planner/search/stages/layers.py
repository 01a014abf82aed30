"""What layers of a family take and keep: one micro-batch of the cheapest kind of layer, and the ends of the model.

Priced by the functions that price whole plans (`cost.pricing.loads`, `memory_of`): one, two and four layers, the layers of the
model, its embedding and its head are written as runs of one division. A layer keeps half of what four keep more than two.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.pricing import loads, memory_of
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.plans import ALL_LAYERS, BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Passes in one direction, [families].

    Attributes:
        layer_s: of the cheapest layer.
        first_s, last_s: what embedding, and head, add.
        whole_s: all layers and both ends.
        send_s: what every rank adds.
    """

    layer_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    whole_s: FloatArray
    send_s: FloatArray

    def take(self, rows: IntArray) -> Direction:
        """Those of some families."""
        return Direction(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """One micro-batch of families in one recompute mode, [families].

    Attributes:
        total: how many such layers the model has.
        layer_s: forward and backward of the cheapest of them.
        first_s, last_s: what embedding, and head, add to their rank.
        sends_s: what every rank adds.
        whole_s: the model on pp ranks.
        forward, backward: the same of each direction alone.
        fullest_s: a step's work of a rank with ⌈L / pp⌉ layers, what follows included; of one kind of layers.
        fits_one: bytes of a rank with one layer are there.
        constant_bytes, state_bytes, saved_bytes: of a rank; of a layer; of a layer and micro-batch in flight.
    """

    total: int
    layer_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    sends_s: FloatArray
    whole_s: FloatArray
    forward: Direction
    backward: Direction
    fullest_s: FloatArray
    fits_one: BoolArray
    constant_bytes: FloatArray
    state_bytes: FloatArray
    saved_bytes: FloatArray


def layers_of(context: Context, batch: PlanBatch, key: IntArray, mode: int) -> list[Layers]:
    """Times and memory of layers of families in a mode: the least of all kinds, and of each kind where there are several."""
    count = len(batch)
    one = replace(batch, recompute=np.full(count, mode), recompute_layers=np.full(count, ALL_LAYERS))
    graph = context.problem.graph
    kinds = len(graph.layer_kinds)
    pattern = np.bincount(graph.pattern, minlength=kinds)
    ends = 2 + (graph.mtp is not None)
    few = [np.concatenate((n * np.eye(kinds), np.zeros((kinds, ends))), axis=1) for n in (1, 2, 4)]
    whole = np.zeros((3, kinds + ends))
    whole[0, :kinds], whole[1, kinds], whole[2, kinds + 1 :] = pattern, 1.0, 1.0
    if graph.mtp is not None:
        whole[2, kinds + 2] = graph.mtp_layers
    table = _table(np.concatenate((*few, whole)), kinds)
    priced, plan = replace(context, splits=table), replace(one, split=np.zeros(count, dtype=np.int64))
    runs = table.counts.shape[1]
    load = loads(priced, plan, key, runs)
    ahead, back = (part - load.sends_s[:, None] for part in (load.one.forward_s, load.one.backward_s))
    both = ahead + back
    memory = memory_of(priced, plan, load.shared, runs)
    slack = 1 + context.problem.stack.allocator_slack
    other = memory.total_bytes - slack * memory.activations_bytes
    alive = alive_of(batch, np.zeros((count, 1), dtype=np.int64))[:, 0]

    chosen: list[tuple[list[int], int]] = [(list(range(kinds)), graph.layers)]
    chosen += [([kind], int(pattern[kind])) for kind in range(kinds)] if kinds > 1 else []
    fullest = _fullest(context, one, key)
    made = []
    for some, total in chosen:
        first, second, fourth = (np.array(some) + at * kinds for at in range(3))
        state = np.maximum(((other[:, fourth] - other[:, second]) / 2).min(axis=1), 0.0)
        kept = memory.activations_bytes * slack / alive[:, None]
        saved = np.maximum(((kept[:, fourth] - kept[:, second]) / 2).min(axis=1), 0.0)
        made.append(
            Layers(
                total=total,
                layer_s=both[:, first].min(axis=1),
                first_s=both[:, -2],
                last_s=both[:, -1],
                sends_s=2 * load.sends_s,
                whole_s=both[:, -3:].sum(axis=1) + 2 * batch.pp * load.sends_s,
                forward=_direction(ahead, first, load.sends_s),
                backward=_direction(back, first, load.sends_s),
                fullest_s=fullest,
                fits_one=memory.total_bytes[:, first].min(axis=1) <= context.problem.device.memory_bytes,
                constant_bytes=memory.total_bytes[:, second].min(axis=1) - 2 * (state + alive * saved),
                state_bytes=state,
                saved_bytes=saved,
            )
        )
    return made


def _direction(passes_s: FloatArray, one: IntArray, send_s: FloatArray) -> Direction:
    """Passes of one direction from those of runs, of which some are one layer and the last three the model's."""
    return Direction(
        layer_s=passes_s[:, one].min(axis=1),
        first_s=passes_s[:, -2],
        last_s=passes_s[:, -1],
        whole_s=passes_s[:, -3:].sum(axis=1),
        send_s=send_s,
    )


def _table(counts: FloatArray, kinds: int) -> SplitTable:
    """One division with given runs, each on the first rank."""
    runs = len(counts)
    zero = np.zeros((1, runs), dtype=np.int64)
    return SplitTable(
        splits=(),
        runs=np.array([runs]),
        counts=counts[None].astype(np.float64),
        first_rank=zero,
        last_rank=zero,
        layers=counts[None, :, :kinds].sum(axis=2),
        kinds=kinds,
    )


def _fullest(context: Context, batch: PlanBatch, key: IntArray) -> FloatArray:
    """Work of a rank with ⌈L / pp⌉ layers over a step, and what follows; 0 where layers are of several kinds."""
    graph = context.problem.graph
    if len(graph.layer_kinds) > 1:
        return np.zeros(len(batch))
    most, split = np.unique(-(-graph.layers // batch.pp), return_inverse=True)
    counts = np.zeros((len(most), 1, 3 + (graph.mtp is not None)))
    counts[:, 0, 0] = most
    zero = np.zeros((len(most), 1), dtype=np.int64)
    table = SplitTable(
        splits=(),
        runs=np.ones(len(most), dtype=np.int64),
        counts=counts,
        first_rank=zero,
        last_rank=zero,
        layers=counts[:, :, 0],
        kinds=1,
    )
    load = loads(replace(context, splits=table), replace(batch, split=split), key, 1)
    return np.asarray((batch.micro_batches[:, None] * (load.one.forward_s + load.one.backward_s) + load.rest.total_s)[:, 0])


def alive_of(batch: PlanBatch, rank: IntArray) -> FloatArray:
    """Micro-batches in flight on ranks of plans, [plans, ranks]."""
    made = np.ones(rank.shape)
    for index, schedule in enumerate(SCHEDULES):
        rows = np.flatnonzero(batch.schedule == index)
        if len(rows):
            pp, vpp, count = (c[rows, None] for c in (batch.pp, batch.vpp, batch.micro_batches))
            made[rows] = schedule.in_flight(pp, vpp, count, rank[rows])
    return made
