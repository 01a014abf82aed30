"""Prices every legal candidate of a declared space.

`scan` turns legal candidates into plans (`to_batch`), makes the tables they share, prices them in chunks and keeps for each the
step time, the fullest stage and what ranks it. Chunks do not depend on one another, so the number of workers changes
nothing but the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.cost.context import Context, make_context
from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.stages import SPLIT_KINDS, Split, even_chunks, fold
from shardwright.planner.plans import (
    ALL_LAYERS,
    ALL_TO_ALL,
    RECOMPUTE_CHOICES,
    RECOMPUTE_MODES,
    RECOMPUTED_SHARE,
    RING,
    BoolArray,
    FloatArray,
    IntArray,
    PlanBatch,
)
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import FOLDED
from shardwright.planner.search.space import Legal
from shardwright.planner.search.speed_splits import with_speed_splits

CHUNK = 16_384
"""Plans priced at once; the arrays of a chunk fit into the processor's cache better than those of all."""

_RUN_BUCKETS = np.array([1, 2, 3, 4, 6, 8, 16, 32, 64])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Every legal candidate with its price.

    Attributes:
        batch: the candidates, in the order of the space.
        splits: what `batch.split` indexes.
        step_s: seconds a step, [candidates].
        busy_s: seconds of it that the busiest stage is not idle, [candidates].
        peak_bytes: memory of the fullest stage, more than there is where host memory is short, [candidates].
        capacity_bytes: memory of its device, [candidates].
        fits: whether the one is within the other, [candidates].
        priced: candidates priced before the scan ended or was interrupted, [candidates].
        exact: candidates whose step is that of the schedule's recurrence, as `estimate` prints it, [candidates].
        context, key: what they are priced with.
    """

    batch: PlanBatch
    splits: tuple[Split, ...]
    step_s: FloatArray
    busy_s: FloatArray
    peak_bytes: FloatArray
    capacity_bytes: FloatArray
    fits: BoolArray
    priced: BoolArray
    exact: BoolArray
    context: Context
    key: IntArray

    @property
    def interrupted(self) -> bool:
        """Whether candidates are left unpriced."""
        return not bool(self.priced.all())


def to_batch(problem: Problem, columns: dict[str, IntArray]) -> tuple[PlanBatch, tuple[Split, ...]]:
    """Plans of candidates, and the distinct splits of the layers among them."""
    folded = FOLDED[columns["schedule"]]
    first, split = distinct(columns["pp"], columns["vpp"], columns["split"], folded.astype(np.int64))
    layers = problem.graph.layers
    splits = []
    for index in first:
        pp, vpp, kind = (int(columns[name][index]) for name in ("pp", "vpp", "split"))
        chunks = even_chunks(layers, pp, vpp, kind if kind < len(SPLIT_KINDS) else 0)  # plans by speed get their own below
        if chunks is None:  # pragma: no cover - the rule layers-stages rejects these
            raise ValueError(f"no split of {layers} layers over {pp}x{vpp} chunks")
        splits.append(Split(chunks=chunks, pp=pp, vpp=vpp, folded=bool(folded[index])))
    choice = columns["recompute"]
    share = np.array(RECOMPUTED_SHARE)[choice]
    covered = np.ceil(share * -(-layers // columns["pp"])).astype(np.int64)
    partial = choice >= len(RECOMPUTE_MODES)
    mode = np.where(partial, RECOMPUTE_CHOICES.index("full"), choice)
    names = (
        "tp",
        "sp",
        "cp",
        "pp",
        "vpp",
        "ep",
        "etp",
        "dp",
        "dp_replicate",
        "micro_batch",
        "micro_batches",
        "zero",
        "schedule",
        "loss_chunks",
    )
    batch = PlanBatch(
        **{name: columns[name] for name in names},
        recompute=mode,
        recompute_layers=np.where(partial, covered, ALL_LAYERS),
        cp_comm=np.where(columns["cp"] > 1, columns["cp_comm"], RING),
        moe_dispatcher=np.where(columns["ep"] > 1, columns["moe_dispatcher"], ALL_TO_ALL),
        offload=columns["offload"],
        split=split,
    )
    if (columns["split"] >= len(SPLIT_KINDS)).any():
        own, every = with_speed_splits(problem, batch, columns, folded.astype(np.int64), splits)
        return replace(batch, split=own), every
    return batch, tuple(splits)


def scan(
    problem: Problem, legal: Legal, *, workers: int = 1, on_progress: Callable[[int, float | None], None] | None = None
) -> Scan:
    """Prices all legal candidates.

    Args:
        problem: what to plan.
        legal: candidates that keep all rules.
        workers: threads.
        on_progress: called with the number priced so far and the least step time of a plan that fits.

    Interrupted from the keyboard it returns what it has, if any of that fits.
    """
    batch, splits = to_batch(problem, legal.columns)
    step, busy, peak, capacity = (np.full(len(batch), np.inf) for _ in range(4))
    best, done = np.inf, 0
    table = fold(problem.graph, splits, areas=problem.areas)
    context, key = make_context(problem, batch, table, network_of(problem))
    try:
        for rows, (seconds, least, bytes_, room) in _priced(context, batch, key, workers):
            step[rows], busy[rows], peak[rows], capacity[rows] = seconds, least, bytes_, room
            done += len(rows)
            best = min(best, float(np.min(seconds, where=bytes_ <= room, initial=np.inf)))
            if on_progress:
                on_progress(done, None if np.isinf(best) else best)
    except KeyboardInterrupt:
        if not np.isfinite(best):
            raise
    return Scan(
        batch=batch,
        splits=splits,
        step_s=step,
        busy_s=busy,
        peak_bytes=peak,
        capacity_bytes=capacity,
        fits=np.isfinite(peak) & (peak <= capacity),
        priced=np.isfinite(step),
        exact=np.zeros(len(batch), dtype=bool),
        context=context,
        key=key,
    )


def _priced(
    context: Context, batch: PlanBatch, key: IntArray, workers: int
) -> Iterator[tuple[NDArray[np.intp], tuple[FloatArray, FloatArray, FloatArray, FloatArray]]]:
    """Rows and prices of chunks of plans with about as many runs of stages, so that arrays are narrow."""

    def one(rows: NDArray[np.intp]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        made = price(context, batch.take(rows), key[rows])
        short = made.peak_bytes > made.capacity_bytes
        peak = np.where(made.fits | short, made.peak_bytes, made.capacity_bytes + made.host_short_bytes)
        return made.step_s, made.step_s - made.parts["bubble_s"], peak, made.capacity_bytes

    bucket = np.searchsorted(_RUN_BUCKETS, context.splits.runs)[batch.split]
    order = np.argsort(bucket, kind="stable")
    bounds = np.flatnonzero(np.diff(bucket[order], prepend=-1))
    chunks = [
        order[at : min(at + CHUNK, end)]
        for start, end in zip(bounds, np.append(bounds[1:], len(order)), strict=True)
        for at in range(start, end, CHUNK)
    ]
    if workers <= 1:
        yield from ((rows, one(rows)) for rows in chunks)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from zip(chunks, pool.map(one, chunks), strict=True)
