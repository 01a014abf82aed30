"""Every choice of one pipeline stage with its times, what follows its last pass, and whether it fits.

A chunk at place o of the model that holds n layers takes F, I, W a micro-batch; a rank with all its chunks has a tail r and a
peak. Both are priced by the functions that price whole plans (`cost.pricing.loads`, `memory_of`): the choices of all
chunks are written as the runs of one division. Where a rank holds one chunk, a choice of the chunk is one of the rank.

A rank that recomputes k of its N layers recomputes the share min(k, N)/N of each chunk, which is no matter of one chunk where
there are several. There the share of the fullest rank in the menu is taken, min(1, k/N_max): no chunk takes less (`exact` is
false), and plans are priced as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.memory import FULL
from shardwright.planner.cost.pipelines import Passes, hidden_exchange, passes
from shardwright.planner.cost.pricing import loads, memory_of
from shardwright.planner.cost.sends import send_s
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.cost.work import stage_work
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.orders import stage_ranks
from shardwright.planner.schedules.registry import FOLDED
from shardwright.planner.search.stages.periods import Places, places_of

MOST_OF_RANK = 3_000
"""Choices of one rank beyond which there is no program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """Choices of chunks, [choices], and of ranks with several chunks, [sets].

    Attributes:
        ranks: rank of each chunk, [chunks].
        layers: layers of the model.
        chunk: whose choice it is.
        place, held: where it begins, and its layers.
        next_place: where the next chunk then begins.
        kinds: layers of each kind, [choices, kinds].
        forward_s, input_s, weight_s: passes of one micro-batch.
        set_rank: whose set it is; empty where every rank holds one chunk.
        set_kinds: layers of each kind on the rank, [sets, kinds].
        tail_s: what follows the last pass, of choices, or of sets where there are any.
        exact: whether times are those of the plan, not only never above them.
    """

    ranks: IntArray
    layers: int
    chunk: IntArray
    place: IntArray
    held: IntArray
    next_place: IntArray
    kinds: IntArray
    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    set_rank: IntArray
    set_kinds: IntArray
    tail_s: FloatArray
    exact: bool

    @property
    def chunks(self) -> int:
        """Chunks of the pipeline."""
        return len(self.ranks)

    @property
    def pp(self) -> int:
        """Ranks of the pipeline."""
        return int(self.ranks.max()) + 1


def menu_of(context: Context, plans: PlanBatch, key: IntArray, limit_s: float) -> Menu | None:
    """The choices with which a step of less than `limit_s` is possible.

    Args:
        context: tables and network.
        plans: one plan, whose division of layers is of no matter; or several of one pipeline that differ in what they
            recompute or how they shard: the menu then has the least time and tail of a choice, and all that fit any of them.
        key: operator key of each, the same for all.
        limit_s: seconds of the step to beat.

    Returns:
        None where no division can beat it, or none fits.
    """
    graph, pp, vpp = context.problem.graph, int(plans.pp[0]), int(plans.vpp[0])
    ranks = stage_ranks(pp, vpp, bool(FOLDED[plans.schedule[0]]))
    most = most_layers(context, plans, key, limit_s)
    places = places_of(graph.pattern, len(graph.layer_kinds), most)
    chunk, place, held = _choices(places, layer_range(graph.layers, pp, vpp, most), len(ranks))
    base = {"ranks": ranks, "chunk": chunk, "place": place, "held": held, "kinds": places.held[place, held]}
    base |= {"layers": np.array(graph.layers), "next_place": places.after(place, held)}
    made = _single(context, plans, key, base, limit_s) if vpp == 1 else _several(context, plans, key, base, limit_s, most)
    return None if made is None or not _possible(made) else made


def most_layers(context: Context, plan: PlanBatch, key: IntArray, limit_s: float) -> int:
    """Layers of a rank beyond which its work alone takes as long as the limit."""
    tables, kinds = context.tables, len(context.problem.graph.layer_kinds)
    each = tables.compute_forward_s + tables.compute_backward_s + tables.host_forward_s + tables.host_backward_s
    least = float(each[key[0], :kinds].min()) * int(plan.micro_batches[0])
    layers = context.problem.graph.layers
    return layers if least <= 0 or limit_s / least >= layers else max(int(limit_s / least), 1)


def layer_range(layers: int, pp: int, vpp: int, most: int) -> tuple[int, int]:
    """Least and most layers of an inner chunk: any number of one or more; the even share or one more where ranks hold several.

    The first and the last chunk may also hold fewer, down to none.
    """
    if vpp == 1:
        return 1, most
    chunks = pp * vpp
    return max(layers // chunks, 1), min(layers // chunks + 1, most)


def _choices(places: Places, between: tuple[int, int], chunks: int) -> tuple[IntArray, IntArray, IntArray]:
    """Chunk, place and layers of all choices."""
    parts = []
    for chunk in range(chunks):
        least = 0 if chunk in {0, chunks - 1} else between[0]
        begins = np.arange(1 if chunk == 0 else places.count)
        held, place = np.meshgrid(np.arange(least, between[1] + 1), begins)
        parts.append(np.stack((np.full(held.size, chunk), place.ravel(), held.ravel())))
    made = np.concatenate(parts, axis=1)
    return made[0], made[1], made[2]


def _table(context: Context, kinds: IntArray, rank: IntArray, first: BoolArray, last: BoolArray) -> SplitTable:
    """One division whose runs are the choices: layers of kinds on a rank, with the embedding and the ends of the model."""
    graph = context.problem.graph
    ends = [first, last] + ([last * graph.mtp_layers] if graph.mtp is not None else [])
    counts = np.concatenate((kinds, np.stack(ends, axis=1)), axis=1).astype(np.float64)
    return SplitTable(
        splits=(),
        runs=np.array([len(rank)]),
        counts=counts[None],
        first_rank=rank[None],
        last_rank=rank[None],
        layers=counts[None, :, : kinds.shape[1]].sum(axis=2),
        kinds=kinds.shape[1],
    )


def _ends(ranks: IntArray, chunk: IntArray) -> tuple[BoolArray, BoolArray]:
    return chunk == 0, chunk == len(ranks) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """Runs of several plans as choices: those that may be taken, [kept], with the least of all plans."""

    keep: IntArray
    one: Passes
    tail_s: FloatArray


def _priced(context: Context, plans: PlanBatch, key: IntArray, table: SplitTable, limit_s: float) -> _Priced:
    """Choices that fit a plan and leave it below the limit."""
    runs = table.counts.shape[1]
    own, some = replace(context, splits=table), replace(plans, split=np.zeros(len(plans), dtype=np.int64))
    load = loads(own, some, key, runs)
    memory = memory_of(own, some, load.shared, runs)
    busy = plans.micro_batches[:, None] * (load.one.forward_s + load.one.backward_s) + load.rest.total_s
    fits = (memory.total_bytes <= context.problem.device.memory_bytes) & (busy < limit_s)
    names = Passes.__slots__
    one = Passes(**{name: getattr(load.one, name).min(axis=0, keepdims=True) for name in names})
    keep = np.flatnonzero(fits.any(axis=0))
    return _Priced(keep=keep, one=one, tail_s=load.rest.total_s.min(axis=0)[keep])


def _single(context: Context, plans: PlanBatch, key: IntArray, base: dict[str, IntArray], limit_s: float) -> Menu | None:
    """The menu where every rank holds one chunk."""
    first, last = _ends(base["ranks"], base["chunk"])
    made = _priced(context, plans, key, _table(context, base["kinds"], base["chunk"], first, last), limit_s)
    return _menu(base, made.one, made.keep, none_of(base["kinds"]), made.tail_s, exact=len(plans) == 1)


def none_of(kinds: IntArray) -> tuple[IntArray, IntArray]:
    """No sets."""
    return np.zeros(0, dtype=np.int64), np.zeros((0, kinds.shape[1]), dtype=np.int64)


def _several(
    context: Context, plans: PlanBatch, key: IntArray, base: dict[str, IntArray], limit_s: float, most: int
) -> Menu | None:
    """The menu where ranks hold several chunks: choices of chunks, and what ranks hold in all."""
    sets = _sets(context, plans, base["ranks"], most)
    if sets is None:
        return None
    rank, kinds = sets
    made = _priced(context, plans, key, _table(context, kinds, rank, rank == 0, rank == base["ranks"][-1]), limit_s)
    if len(made.keep) == 0:
        return None
    fullest = int(kinds[made.keep].sum(axis=1).max())
    covered = np.minimum(plans.recompute_layers, fullest) / max(fullest, 1)
    share = np.where(plans.recompute == FULL, covered, 1.0 * (plans.recompute > 0))
    times = [chunk_passes(context, plans.take(np.array([at])), key[[at]], base, float(share[at])) for at in range(len(plans))]
    one = Passes(**{name: np.minimum.reduce([getattr(t, name) for t in times]) for name in Passes.__slots__})
    held = np.flatnonzero(base["held"] <= fullest)
    exact = len(plans) == 1 and float(share[0]) in {0.0, 1.0}
    return _menu(base, one, held, (rank[made.keep], kinds[made.keep]), made.tail_s, exact=exact)


def _sets(context: Context, plan: PlanBatch, ranks: IntArray, most: int) -> tuple[IntArray, IntArray] | None:
    """Rank and layers of each kind of all that ranks could hold; None where there are too many."""
    graph, vpp = context.problem.graph, int(plan.vpp[0])
    of_kind = np.bincount(graph.pattern, minlength=len(graph.layer_kinds))
    if np.prod(np.minimum(of_kind, most) + 1.0) > 50 * MOST_OF_RANK:
        return None
    grid = np.array(list(product(*(range(min(int(n), most) + 1) for n in of_kind))), dtype=np.int64)
    least = np.full(ranks.max() + 1, vpp) - np.bincount(ranks[[0, -1]], minlength=ranks.max() + 1)
    grid = grid[(grid.sum(axis=1) <= most)]
    if len(grid) > MOST_OF_RANK:
        return None
    rank = np.repeat(np.arange(len(least)), len(grid))
    kinds = np.tile(grid, (len(least), 1))
    keep = kinds.sum(axis=1) >= least[rank]
    return rank[keep], kinds[keep]


def chunk_passes(context: Context, plan: PlanBatch, key: IntArray, base: dict[str, IntArray], share: float) -> Passes:
    """Passes of choices of chunks of a plan whose ranks hold several, sends included, [1, choices]."""
    first, last = _ends(base["ranks"], base["chunk"])
    table = _table(context, base["kinds"], base["chunk"], first, last)
    zero = np.zeros(1, dtype=np.int64)
    work = stage_work(key, zero, context.tables, table, len(first))
    covered = np.where(base["held"] > 0, share, 0.0)[None]
    one = passes(work, zero, covered, plan, hidden_exchange(plan, context.problem.stack))
    return one.plus(send_s(context, plan, key) / plan.vpp)


def _menu(
    base: dict[str, IntArray],
    one: Passes,
    keep: IntArray,
    sets: tuple[IntArray, IntArray],
    tail_s: FloatArray,
    *,
    exact: bool,
) -> Menu:
    names = ("chunk", "place", "held", "next_place", "kinds")
    return Menu(
        ranks=base["ranks"],
        layers=int(base["layers"]),
        **{name: base[name][keep] for name in names},
        forward_s=one.forward_s[0, keep],
        input_s=(one.backward_s - one.weight_s)[0, keep],
        weight_s=one.weight_s[0, keep],
        set_rank=sets[0],
        set_kinds=sets[1],
        tail_s=tail_s,
        exact=exact,
    )


def _possible(menu: Menu) -> bool:
    """Whether every chunk and rank has a choice and together they can hold all layers."""
    most = np.full(menu.chunks, -1)
    np.maximum.at(most, menu.chunk, menu.held)
    if most.min() < 0 or most.sum() < menu.layers:
        return False
    if len(menu.set_rank) == 0:
        return True
    full = np.full(menu.pp, -1)
    np.maximum.at(full, menu.set_rank, menu.set_kinds.sum(axis=1))
    return bool(full.min() >= 0 and full.sum() >= menu.layers)
