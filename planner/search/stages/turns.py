"""The least step of interleaved 1F1B whatever its chunks hold, from chains that stay on one rank.

A rank's part of a step begins with its first pass or with its first gradient, and ends with its last pass or with its last
forward pass. With S_f, S_b the whole model there and back, A what ranks before it have in the first chunk, P what ranks after
it have in the last one, and q = 2·(pp − r) − 1 turns of its last chunk before its first backward pass, x = max(q − pp, 0) of
them of the first chunk again, such a chain of rank r holds

    before   A_f           and M forward passes
             S_f + P_b     and of each chunk M − pp − x, x more of all but the first, pp − q more of the last where q < pp
    after    A_b           and M backward passes
             S_b + P_f     and as many as above

A and P are no less than the even share of layers, rounded down, in each chunk but the model's first and last. Each of the four
chains then caps the layers N_r of its rank under a step T, and ranks hold the model together:

    N_r <= ⌊(T − what else the chain holds) / what it holds of a layer⌋         Σ_r N_r = L
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.pipelines import LOOPED
from shardwright.planner.plans import FloatArray, IntArray, PlanBatch
from shardwright.planner.search.stages.layers import Direction

HALVINGS = 14
"""Halvings of what lies between the bound known and the step to beat."""

ROWS_AT_ONCE = 2_048
"""Families looked at together, so that tables stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One micro-batch of families, [families].

    Attributes:
        total: layers of the model.
        forward, backward: passes, nothing recomputed but what every layer does.
        layer_s: both passes of the cheapest layer.
        again_s: what recomputing a layer adds, where some are.
        covered: how many are then, of each rank.
    """

    total: int
    forward: Direction
    backward: Direction
    layer_s: FloatArray
    again_s: FloatArray
    covered: IntArray

    def take(self, rows: IntArray) -> Work:
        """That of some families."""
        return Work(
            total=self.total,
            forward=self.forward.take(rows),
            backward=self.backward.take(rows),
            layer_s=self.layer_s[rows],
            again_s=self.again_s[rows],
            covered=self.covered[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chains:
    """Chains of ranks over the layers of the rank, [families, chains, ranks].

    Attributes:
        other_s: what does not depend on its layers.
        layer_s: of each layer.
        again_s: of each of the first `covered` layers, more.
    """

    other_s: FloatArray
    layer_s: FloatArray
    again_s: FloatArray

    def most(self, step_s: FloatArray, covered: FloatArray) -> FloatArray:
        """Layers of ranks with which no chain is longer than a step, [families, ranks]."""
        left = step_s[:, None, None] - self.other_s
        again = covered[:, None, None] * self.again_s
        each = np.maximum(self.layer_s, 1e-15)
        made = np.minimum(left / (each + self.again_s), covered[:, None, None])
        made = np.maximum(made, (left - again) / each)
        return np.asarray(np.floor(made * (1 + 1e-9) + 1e-9).min(axis=1))


def least_turns_s(batch: PlanBatch, work: Work, least_s: FloatArray, beat_s: float) -> FloatArray:
    """No division of an interleaved pipeline takes less, as far as the step to beat, [families].

    Args:
        batch: one plan of each family.
        work: of its layers.
        least_s: what is known already.
        beat_s: step that is to be beaten; infinite without one.
    """
    made = least_s.copy()
    known = least_s < (beat_s if np.isfinite(beat_s) else np.inf)
    rows = np.flatnonzero((batch.schedule == LOOPED) & (batch.vpp > 1) & (batch.pp > 1) & known)
    if len(rows) == 0:
        return made
    shapes, shape = distinct(batch.pp[rows], batch.vpp[rows], batch.micro_batches[rows])
    for at, first in enumerate(rows[shapes].tolist()):
        sizes = int(batch.pp[first]), int(batch.vpp[first]), int(batch.micro_batches[first])
        members = rows[shape == at]
        for start in range(0, len(members), ROWS_AT_ONCE):
            some = members[start : start + ROWS_AT_ONCE]
            made[some] = _least(sizes, work.take(some), least_s[some], beat_s)
    return made


def _least(sizes: tuple[int, int, int], work: Work, low: FloatArray, beat_s: float) -> FloatArray:
    """The least step with which the ranks of one shape can hold all layers, [families]."""
    pp, vpp, _ = sizes
    share = max(work.total // (pp * vpp), 1)
    least = np.full(pp, vpp * share)
    least[[0, -1]] -= share
    chains = _chains(sizes, work, share)
    largest = vpp * (share + 1)
    covered = np.minimum(work.covered, largest).astype(np.float64)
    high = (chains.other_s + largest * (chains.layer_s + chains.again_s)).max(axis=(1, 2)) * (1 + 1e-9)
    high = np.maximum(np.minimum(high, beat_s), low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        held = np.minimum(chains.most(middle, covered), largest)
        fits = (held >= least).all(axis=1) & (held.sum(axis=1) >= work.total)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return low


def _chains(sizes: tuple[int, int, int], work: Work, share: int) -> _Chains:
    """The chains of every rank."""
    pp, vpp, count = sizes
    turns = 2 * (pp - np.arange(pp)) - 1
    again = np.where(count > pp, np.maximum(turns - pp, 0), 0)
    fewer, spare = np.maximum(count - pp - again, 0), np.maximum(pp - turns, 0)
    ways = [_Way.of(passes, sizes, share) for passes in (work.forward, work.backward)]
    parts = []
    for late, early in product((False, True), (False, True)):
        numbers = [np.where(short, fewer, count) for short in (late, early)]
        both = np.minimum(*numbers)
        other = sum(number * way.own_s for number, way in zip(numbers, ways, strict=True))
        layer = both * work.layer_s[:, None]
        for at, short in enumerate((late, early)):
            mine, back = ways[at], ways[1 - at]
            kept = again * (vpp - 1) * mine.chunk_s + spare * mine.last_s
            other = other + (mine.whole_s + back.after_s + kept if short else mine.before_s)
            layer = layer + (numbers[at] - both) * mine.layer_s
        there = np.full(pp, not (late or early) or count >= pp)
        if late and early:
            there &= turns + (vpp - 1) * pp < count * vpp
        recomputed = numbers[1] * work.again_s[:, None]
        parts.append([np.where(there, part, 0.0) for part in (other, layer, recomputed)])
    other_s, layer_s, again_s = (np.stack(part, axis=1) for part in zip(*parts, strict=True))
    return _Chains(other_s=other_s, layer_s=layer_s, again_s=again_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One direction, [families, 1] or [families, ranks].

    Attributes:
        layer_s, chunk_s, whole_s: a layer, an inner chunk at least, the model on all ranks.
        own_s: what a rank has beside its layers.
        before_s, after_s: ranks before it in the first chunk, and after it in the last one.
        last_s: its own last chunk.
    """

    layer_s: FloatArray
    chunk_s: FloatArray
    whole_s: FloatArray
    own_s: FloatArray
    before_s: FloatArray
    after_s: FloatArray
    last_s: FloatArray

    @staticmethod
    def of(passes: Direction, sizes: tuple[int, int, int], share: int) -> _Way:
        """From passes, for chunks of `share` layers at least."""
        pp, vpp, _ = sizes
        rank = np.arange(pp)
        layer, first, last, whole, send = (
            part[:, None] for part in (passes.layer_s, passes.first_s, passes.last_s, passes.whole_s, passes.send_s)
        )
        chunk = share * layer + send / vpp
        ends = [end + send / vpp for end in (first, last)]
        return _Way(
            layer_s=layer,
            chunk_s=chunk,
            whole_s=whole + pp * send,
            own_s=send + (rank == 0) * first + (rank == pp - 1) * last,
            before_s=np.where(rank > 0, ends[0] + (rank - 1) * chunk, 0.0),
            after_s=np.where(rank < pp - 1, ends[1] + (pp - 2 - rank) * chunk, 0.0),
            last_s=np.where(rank < pp - 1, chunk, ends[1]),
        )
