"""The least step that any division and recomputing of a candidate could take, for all families of a scan at once.

With a and g the forward and backward time of a layer (of the cheapest kind) and of recomputing it, e what the ends of the model
add to their rank, S the whole model's pass, m = ⌈L / pp⌉, for each recompute mode

    some rank holds m layers            T >= M·m·a + what follows its last pass                       (one kind of layers)
    some rank takes t or longer         T >= M·t        t: least with Σ_r ⌊(t − e_r) / a⌋ >= L        whole layers, the head too
    1F1B, M > pp                        T >= 2·S + (M − pp − 1)·t
    GPipe                               T >= S + (M − 1)·t
    without gradients apart             T >= S          one micro-batch there and back

The third is the chain through the rank of t that waits for the ranks after it before its first and after its last
micro-batch: (M − pp + i + 1)·t + P + 2·A with P >= S − A − t, A >= S − (i + 1)·t. Times hold the part of every exchange that
nothing hides. A mode is left out where not even memory for the layers alone is there,

    Σ_r ⌊(capacity − c) / (states + alive_r·saved)⌋ < L

and some layers recomputed are counted from the least k with which that holds: the cheapest recomputing under the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.planner.cost.pricing import FOLDED, Context, loads, memory_of, tied_s
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.plans import ALL_LAYERS, RECOMPUTE_MODES, BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES

FULL = RECOMPUTE_MODES.index("full")
HALVINGS = 40
_ONE_F_ONE_B, _GPIPE = SCHEDULE_IDS.index("1f1b"), SCHEDULE_IDS.index("gpipe")
_WHOLE = np.array([not (schedule.splits_backward or schedule.folded) for schedule in SCHEDULES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """One micro-batch of families in one recompute mode, [families].

    Attributes:
        total: how many such layers the model has.
        layer_s: forward and backward of the cheapest of them.
        first_s, last_s: what embedding, and head, add to their rank.
        sends_s: what every rank adds.
        whole_s: the model on pp ranks.
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
    fullest_s: FloatArray
    fits_one: BoolArray
    constant_bytes: FloatArray
    state_bytes: FloatArray
    saved_bytes: FloatArray


def least_step_s(context: Context, batch: PlanBatch, key: IntArray, modes: tuple[int, ...]) -> FloatArray:
    """No division takes less; infinite where none fits, [modes, families].

    Args:
        context: tables and network.
        batch: one plan of each family.
        key: its operator key.
        modes: indices into `RECOMPUTE_MODES`.
    """
    made = np.zeros((len(modes), len(batch)))
    for at, mode in enumerate(modes):
        for layers in layers_of(context, batch, key, mode):
            least = _times(batch, layers, layers.whole_s)
            made[at] = np.maximum(made[at], np.where(_room(context, batch, layers) >= layers.total, least, np.inf))
    return made + tied_s(context, batch, key)


def least_partial_s(context: Context, batch: PlanBatch, key: IntArray) -> tuple[FloatArray, IntArray]:
    """The same with some layers of each stage recomputed, and the least count that could fit (0: none, or none does)."""
    least, count = np.zeros(len(batch)), np.zeros(len(batch), dtype=np.int64)
    for none, full in zip(layers_of(context, batch, key, 0), layers_of(context, batch, key, FULL), strict=True):
        needed = _least_count(context, batch, none, full)
        longest = np.maximum(-(-none.total // batch.pp), 1)
        covered = np.minimum(needed, longest)
        again = np.maximum(full.layer_s - none.layer_s, 0.0)
        fullest = batch.micro_batches * (longest * none.layer_s + covered * again)
        timed = np.maximum(fullest, _times(batch, none, none.whole_s + covered * again))
        least = np.maximum(least, np.where(needed <= none.total, timed, np.inf))
        count = np.maximum(count, np.minimum(needed, none.total))
    return least + tied_s(context, batch, key), count


def _least_count(context: Context, batch: PlanBatch, none: Layers, full: Layers) -> IntArray:
    """Layers recomputed on each stage with which there may be room for all; more than all where there is none, [families]."""
    low, high = np.full(len(batch), -1), np.full(len(batch), none.total + 1)
    while (low + 1 < high).any():
        middle = (low + high) // 2
        fits = _room(context, batch, none, full, middle) >= none.total
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


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
    both = load.one.forward_s + load.one.backward_s - 2 * load.sends_s[:, None]
    memory = memory_of(priced, plan, load.shared, runs)
    slack = 1 + context.problem.stack.allocator_slack
    other = memory.total_bytes - slack * memory.activations_bytes
    alive = _alive(batch, np.zeros((count, 1), dtype=np.int64))[:, 0]

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
                fullest_s=fullest,
                fits_one=memory.total_bytes[:, first].min(axis=1) <= context.problem.device.memory_bytes,
                constant_bytes=memory.total_bytes[:, second].min(axis=1) - 2 * (state + alive * saved),
                state_bytes=state,
                saved_bytes=saved,
            )
        )
    return made


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


def _times(batch: PlanBatch, layers: Layers, whole_s: FloatArray) -> FloatArray:
    """The greatest of the bounds of time, [families]."""
    longest = longest_rank_s(batch, layers)
    count, pp = batch.micro_batches, batch.pp
    made = np.maximum(count * longest, layers.fullest_s)
    filled = (batch.schedule == _ONE_F_ONE_B) & (count > pp)
    made = np.where(filled, np.maximum(made, 2 * whole_s + (count - pp - 1) * longest), made)
    made = np.where(batch.schedule == _GPIPE, np.maximum(made, whole_s + (count - 1) * longest), made)
    return np.where(_WHOLE[batch.schedule], np.maximum(made, whole_s), made)


def longest_rank_s(batch: PlanBatch, layers: Layers) -> FloatArray:
    """Least time of a micro-batch on the busiest rank with whole layers and the ends of the model somewhere, [families]."""
    total, pp = layers.total, batch.pp
    together = (pp == 1) | FOLDED[batch.schedule]
    first = np.where(together, layers.first_s + layers.last_s, layers.first_s)
    last = np.where(together, 0.0, layers.last_s)
    inner = pp - np.where(together, 1, 2)
    each = np.maximum(layers.layer_s, 1e-15)
    low = np.maximum(first, last)
    high = low + each * (total + 1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        held = inner * np.floor(middle / each * (1 + 1e-12)) + np.floor((middle - first) / each * (1 + 1e-12))
        held = held + np.where(together, 0.0, np.floor((middle - last) / each * (1 + 1e-12)))
        low, high = np.where(held >= total, low, middle), np.where(held >= total, middle, high)
    return np.asarray(np.maximum(low, (layers.whole_s / pp - layers.sends_s)) + layers.sends_s)


def _alive(batch: PlanBatch, rank: IntArray) -> FloatArray:
    """Micro-batches in flight on ranks of plans, [plans, ranks]."""
    made = np.ones(rank.shape)
    for index, schedule in enumerate(SCHEDULES):
        rows = np.flatnonzero(batch.schedule == index)
        if len(rows):
            pp, vpp, count = (c[rows, None] for c in (batch.pp, batch.vpp, batch.micro_batches))
            made[rows] = schedule.in_flight(pp, vpp, count, rank[rows])
    return made


def _room(
    context: Context, batch: PlanBatch, layers: Layers, full: Layers | None = None, covered: IntArray | None = None
) -> FloatArray:
    """Layers for which all ranks together have memory at most, [families].

    Args:
        context: for the device.
        batch: one plan of each family.
        layers: without recomputing, or in the mode.
        full: with all layers recomputed, where some are.
        covered: how many are then, of each rank.
    """
    made = np.zeros(len(batch))
    for pp in np.unique(batch.pp):
        rows = np.flatnonzero(batch.pp == pp)
        alive = _alive(batch.take(rows), np.tile(np.arange(pp), (len(rows), 1)))
        room = context.problem.device.memory_bytes - layers.constant_bytes[rows, None]
        held = np.floor(room / (layers.state_bytes[rows, None] + alive * layers.saved_bytes[rows, None]) + 1e-9)
        one = layers.fits_one[rows, None]
        if full is not None and covered is not None:
            low = context.problem.device.memory_bytes - np.minimum(layers.constant_bytes, full.constant_bytes)[rows, None]
            spared = np.maximum(layers.saved_bytes - full.saved_bytes, 0.0)[rows, None]
            some = (low + alive * covered[rows, None] * spared) / (
                layers.state_bytes[rows, None] + alive * layers.saved_bytes[rows, None]
            )
            every = low / (layers.state_bytes[rows, None] + alive * full.saved_bytes[rows, None])
            held = np.floor(np.where(some > covered[rows, None], some, np.minimum(every, covered[rows, None])) + 1e-9)
            one = one | full.fits_one[rows, None]
        made[rows] = np.maximum(held, one * 1.0).sum(axis=1)
    return made
