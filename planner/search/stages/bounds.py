"""The least step that any division and recomputing of a candidate could take, for all families of a scan at once.

With a and g the forward and backward time of a layer (of the cheapest kind) and of recomputing it, e what the ends of the model
add to their rank, S the whole model's pass, m = ⌈L / pp⌉, for each recompute mode

    some rank holds m layers            T >= M·m·a + what follows its last pass                       (one kind of layers)
    some rank takes t or longer         T >= M·t        t: least with Σ_r ⌊(t − e_r) / a⌋ >= L        whole layers, the head too
    1F1B, M > pp                        T >= 2·S + (M − pp − 1)·t
    1F1B, M = pp                        T >= 2·S − t, and so 2·S·M / (M + 1)
    1F1B                                T >= S + (M − 1)·b                                            b: as t, backward alone
    GPipe                               T >= S + (M − 1)·t
    without gradients apart             T >= S          one micro-batch there and back

The third and fourth are the chain through the rank of t that waits for the ranks after it before its first and after its last
micro-batch: (M − pp + i + 1)·t + P + 2·A with P >= S − A − t, A >= S − (i + 1)·t. Those of interleaved
pipelines are in `turns`. Times hold the part of every exchange that nothing hides. A mode is left out where not even memory for
the layers alone is there,

    Σ_r ⌊(capacity − c) / (states + alive_r·saved)⌋ < L

and some layers recomputed are counted from the least k with which that holds: the cheapest recomputing under the memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.sends import tied_s
from shardwright.planner.plans import RECOMPUTE_MODES, FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import FOLDED, SCHEDULE_IDS, SCHEDULES
from shardwright.planner.search.stages.layers import Layers, alive_of, layers_of
from shardwright.planner.search.stages.turns import Work, least_turns_s

FULL = RECOMPUTE_MODES.index("full")
HALVINGS = 40
_ONE_F_ONE_B, _GPIPE = SCHEDULE_IDS.index("1f1b"), SCHEDULE_IDS.index("gpipe")
_WHOLE = np.array([not (schedule.splits_backward or schedule.folded) for schedule in SCHEDULES])


def least_step_s(
    context: Context, batch: PlanBatch, key: IntArray, modes: tuple[int, ...], beat_s: float = np.inf
) -> FloatArray:
    """No division takes less; infinite where none fits, [modes, families].

    Args:
        context: tables and network.
        batch: one plan of each family.
        key: its operator key.
        modes: indices into `RECOMPUTE_MODES`.
        beat_s: step to beat; bounds of interleaved pipelines are taken no further.
    """
    made = np.zeros((len(modes), len(batch)))
    for at, mode in enumerate(modes):
        for layers in layers_of(context, batch, key, mode):
            least = _times(batch, layers, layers.whole_s)
            if layers.total == context.problem.graph.layers:
                none = np.zeros(len(batch), dtype=np.int64)
                least = least_turns_s(batch, _work(layers, 0.0 * least, none), least, beat_s)
            made[at] = np.maximum(made[at], np.where(_room(context, batch, layers) >= layers.total, least, np.inf))
    return made + tied_s(context, batch, key)


def least_partial_s(context: Context, batch: PlanBatch, key: IntArray, beat_s: float = np.inf) -> tuple[FloatArray, IntArray]:
    """The same with some layers of each stage recomputed, and the least count that could fit (0: none, or none does)."""
    least, count = np.zeros(len(batch)), np.zeros(len(batch), dtype=np.int64)
    for none, full in zip(layers_of(context, batch, key, 0), layers_of(context, batch, key, FULL), strict=True):
        needed = _least_count(context, batch, none, full)
        timed = least_with_s(context, batch, (none, full), needed, beat_s)
        least = np.maximum(least, np.where(needed <= none.total, timed, np.inf))
        count = np.maximum(count, np.minimum(needed, none.total))
    return least + tied_s(context, batch, key), count


def least_with_s(
    context: Context, batch: PlanBatch, layers: tuple[Layers, Layers], covered: IntArray, beat_s: float
) -> FloatArray:
    """No division takes less with so many layers of each rank recomputed, tied embeddings apart, [families].

    Args:
        context: for the model.
        batch: one plan of each family.
        layers: without recomputing, and with all recomputed.
        covered: how many are.
        beat_s: as of `least_step_s`.
    """
    none, full = layers
    longest = np.maximum(-(-none.total // batch.pp), 1)
    some = np.minimum(covered, longest)
    again = np.maximum(full.layer_s - none.layer_s, 0.0)
    fullest = batch.micro_batches * (longest * none.layer_s + some * again)
    timed = np.maximum(fullest, _times(batch, none, none.whole_s + some * again))
    if none.total == context.problem.graph.layers:
        timed = least_turns_s(batch, _work(none, again, covered), timed, beat_s)
    return np.asarray(timed)


def _work(layers: Layers, again_s: FloatArray, covered: IntArray) -> Work:
    return Work(
        total=layers.total,
        forward=layers.forward,
        backward=layers.backward,
        layer_s=layers.layer_s,
        again_s=again_s,
        covered=covered,
    )


def _least_count(context: Context, batch: PlanBatch, none: Layers, full: Layers) -> IntArray:
    """Layers recomputed on each stage with which there may be room for all; more than all where there is none, [families]."""
    low, high = np.full(len(batch), -1), np.full(len(batch), none.total + 1)
    while (low + 1 < high).any():
        middle = (low + high) // 2
        fits = _room(context, batch, none, full, middle) >= none.total
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


def _times(batch: PlanBatch, layers: Layers, whole_s: FloatArray) -> FloatArray:
    """The greatest of the bounds of time, [families]."""
    longest = longest_rank_s(batch, layers)
    count, pp = batch.micro_batches, batch.pp
    made = np.maximum(count * longest, layers.fullest_s)
    plain = batch.schedule == _ONE_F_ONE_B
    made = np.where(plain & (count > pp), np.maximum(made, 2 * whole_s + (count - pp - 1) * longest), made)
    made = np.where(plain & (count == pp), np.maximum(made, 2 * whole_s * count / (count + 1)), made)
    back = longest_rank_s(batch, _backward(batch, layers))
    made = np.where(plain, np.maximum(made, whole_s + (count - 1) * back), made)
    made = np.where(batch.schedule == _GPIPE, np.maximum(made, whole_s + (count - 1) * longest), made)
    return np.where(_WHOLE[batch.schedule], np.maximum(made, whole_s), made)


def _backward(batch: PlanBatch, layers: Layers) -> Layers:
    """Backward passes alone."""
    back = layers.backward
    whole = back.whole_s + batch.pp * back.send_s
    return replace(layers, layer_s=back.layer_s, first_s=back.first_s, last_s=back.last_s, sends_s=back.send_s, whole_s=whole)


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
        alive = alive_of(batch.take(rows), np.tile(np.arange(pp), (len(rows), 1)))
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
