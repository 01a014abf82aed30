"""The operations of a pipeline and the order in which each rank does them.

A model runs through `stages` = pp·vpp chunks of layers, numbered as the layers run. Micro-batch m passes stage s as

    forward F(s, m)     after F(s − 1, m)
    backward B(s, m)    after B(s + 1, m), on the last stage after F(s, m)

where a schedule may do B in two parts: the input gradient I, which the stage before waits for, and the weight gradient W,
which nobody waits for. A rank does its operations one after another in the order written here; nothing else is decided.

Stages stand on ranks in loops (stage s on rank s mod pp, arXiv 2104.04473) or folded like a V (stages r and 2·pp − 1 − r on
rank r, arXiv 2401.10241 section 5). GPipe, 1F1B and its interleaved form differ only in w, the forward passes before the
first backward one, counting n = M·vpp passes of one chunk (`alternating`):

    F_k at place k + max(0, k − w)        B_j at place j + min(n, w + j + 1)

    GPipe         w = n
    1F1B          w = pp − r − 1                                 (Megatron-LM, torch `Schedule1F1B`)
    interleaved   w = 2·(pp − r − 1) + (vpp − 1)·group           (Megatron-LM, torch `ScheduleInterleaved1F1B`)
                  and one more where each forward pass runs together with the backward pass after it, so that neither needs
                  the other (Megatron-LM's `overlap_moe_expert_parallel_comm`)

`turns` says which chunk and micro-batch the k-th pass is: `group` micro-batches through each chunk in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.plans import BoolArray, IntArray

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
PHASES = ("forward", "backward", "input-gradient", "weight-gradient")
NONE = -1
"""Phase beyond the last operation of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """What each rank does, in order.

    Attributes:
        pp: pipeline ranks.
        vpp: chunks a rank.
        micro_batches: micro-batches.
        folded: whether stages stand on ranks like a V.
        phase: `FORWARD`, `BACKWARD`, `INPUT`, `WEIGHT`, or `NONE` beyond a rank's last operation, [pp, longest].
        stage: stage of each operation, [pp, longest].
        micro_batch: its micro-batch, [pp, longest].
        paired: where a forward pass and the backward pass after it run together, True for the first, [pp, longest]; nowhere
            where None.
    """

    pp: int
    vpp: int
    micro_batches: int
    folded: bool
    phase: IntArray
    stage: IntArray
    micro_batch: IntArray
    paired: BoolArray | None = None

    @property
    def stages(self) -> int:
        """Chunks of layers."""
        return self.pp * self.vpp

    @property
    def present(self) -> BoolArray:
        """Where there is an operation, [pp, longest]."""
        return np.asarray(self.phase != NONE)

    @property
    def stage_rank(self) -> IntArray:
        """Rank of each stage, [stages]."""
        return stage_ranks(self.pp, self.vpp, self.folded)


def stage_ranks(pp: int, vpp: int, folded: bool) -> IntArray:
    """Rank of each stage, [stages]."""
    place = np.arange(pp * vpp) % pp
    back = (np.arange(pp * vpp) // pp) % 2 == 1
    return np.where(back & folded, pp - 1 - place, place)


def gpipe_order(pp: int, micro_batches: int) -> Order:
    """All forward passes, then all backward passes in the same order."""
    require(pp, 1, micro_batches)
    return alternating(pp, 1, micro_batches, np.full(pp, micro_batches), micro_batches)


def one_f_one_b_order(pp: int, micro_batches: int) -> Order:
    """1F1B: pp − r − 1 forward passes, then one forward and one backward pass in turn."""
    require(pp, 1, micro_batches)
    return alternating(pp, 1, micro_batches, pp - 1 - np.arange(pp), micro_batches)


def interleaved_order(pp: int, vpp: int, micro_batches: int, group: int | None = None, more: int = 0) -> Order:
    """Interleaved 1F1B.

    Args:
        pp: pipeline ranks.
        vpp: chunks a rank.
        micro_batches: micro-batches.
        group: micro-batches that pass a chunk before the next chunk's turn; pp where none is given.
        more: forward passes that come sooner than they must.

    Raises:
        InvalidValueError: counts below 1, or groups with which the pipeline would wait for itself.
    """
    size = whole_groups(pp, vpp, micro_batches, group)
    warm_up = 2 * (pp - 1 - np.arange(pp)) + (vpp - 1) * size + more
    return alternating(pp, vpp, micro_batches, warm_up, size)


def whole_groups(pp: int, vpp: int, micro_batches: int, group: int | None) -> int:
    """Micro-batches of a group, pp where none is given.

    Raises:
        InvalidValueError: counts below 1, or groups with which the pipeline would wait for itself.
    """
    require(pp, vpp, micro_batches)
    size = pp if group is None else group
    rest = micro_batches % size if size > 0 else 0
    if vpp > 1 and (size < min(pp, micro_batches) or 0 < rest < pp < micro_batches):
        raise InvalidValueError(
            f"{micro_batches} micro-batches in groups of {size} on {pp} pipeline ranks",
            hint=f"every group needs at least {pp} micro-batches, the last one too",
        )
    return size


def alternating(pp: int, vpp: int, micro_batches: int, warm_up: IntArray, group: int) -> Order:
    """One forward and one backward pass in turn after `warm_up` forward ones; those of a turn are paired.

    Args:
        pp: pipeline ranks.
        vpp: chunks a rank.
        micro_batches: micro-batches.
        warm_up: forward passes before the first pair, [pp].
        group: micro-batches that pass a chunk before the next chunk's turn.
    """
    count = micro_batches * vpp
    step, first = np.arange(count)[None, :], np.minimum(warm_up, count)[:, None]
    forward = step + np.maximum(0, step - first)
    backward = step + np.minimum(count, first + step + 1)
    chunk, micro_batch = turns(vpp, micro_batches, group)
    shape = (pp, 2 * count)
    phase, stage, batch = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    rank = np.arange(pp)[:, None]
    for place, kind, of in ((forward, FORWARD, chunk), (backward, BACKWARD, vpp - 1 - chunk)):
        phase[rank, place] = kind
        stage[rank, place] = of * pp + rank
        batch[rank, place] = micro_batch
    paired = np.zeros(shape, dtype=bool)
    paired[rank, forward] = step >= first
    return Order(
        pp=pp, vpp=vpp, micro_batches=micro_batches, folded=False, phase=phase, stage=stage, micro_batch=batch, paired=paired
    )


def turns(vpp: int, micro_batches: int, group: int) -> tuple[IntArray, IntArray]:
    """Chunk and micro-batch of each forward pass of a rank, [micro_batches·vpp] each; backward, chunks count from the last."""
    micro_batch = np.tile(np.arange(micro_batches), vpp)
    chunk = np.repeat(np.arange(vpp), micro_batches)
    by_turn = np.lexsort((micro_batch, chunk, micro_batch // group))
    return chunk[by_turn], micro_batch[by_turn]


def from_lists(pp: int, vpp: int, micro_batches: int, ranks: Sequence[IntArray]) -> Order:
    """A folded order from the operations of every rank.

    Args:
        pp: pipeline ranks.
        vpp: chunks a rank.
        micro_batches: micro-batches.
        ranks: of every rank, phase, chunk and micro-batch of each operation and whether it runs together with the next,
            [operations, 4].
    """
    made = np.full((4, pp, max(len(operations) for operations in ranks)), NONE, dtype=np.int64)
    for rank, operations in enumerate(ranks):
        made[:, rank, : len(operations)] = operations.T
    phase, chunk, micro_batch, together = made
    rank_column = np.arange(pp)[:, None]
    stage = np.where(chunk % 2 == 1, (chunk + 1) * pp - 1 - rank_column, chunk * pp + rank_column)
    return Order(
        pp=pp,
        vpp=vpp,
        micro_batches=micro_batches,
        folded=True,
        phase=phase,
        stage=np.where(phase == NONE, 0, stage),
        micro_batch=micro_batch,
        paired=together == 1 if (together == 1).any() else None,
    )


def require(pp: int, vpp: int, micro_batches: int) -> None:
    """Refuses counts below 1.

    Raises:
        InvalidValueError: a count below 1.
    """
    if min(pp, vpp, micro_batches) < 1:
        raise InvalidValueError(
            f"a pipeline of pp {pp}, vpp {vpp} and {micro_batches} micro-batches", hint="each is a whole number from 1"
        )


def check(order: Order) -> None:
    """Refuses an order that does not do every pass once, or a backward pass before what it needs on its own rank.

    Raises:
        ConflictError: such an order.
    """
    rank, column = np.nonzero(order.present)
    phase, stage, micro_batch = (part[rank, column] for part in (order.phase, order.stage, order.micro_batch))
    place = np.full((len(PHASES), order.stages, order.micro_batches), NONE)
    place[phase, stage, micro_batch] = column
    apart = (place[INPUT] != NONE) & (place[WEIGHT] != NONE) & (place[BACKWARD] == NONE)
    together = (place[INPUT] == NONE) & (place[WEIGHT] == NONE) & (place[BACKWARD] != NONE)
    once = len(phase) == (2 * together + 3 * apart).sum()
    if not once or (rank != order.stage_rank[stage]).any() or not ((place[FORWARD] != NONE) & (apart | together)).all():
        raise ConflictError(
            "an order without every pass exactly once",
            hint="each stage passes each micro-batch forward and backward on its rank",
        )
    early = np.where(apart, place[INPUT] > place[WEIGHT], False) | (
        place[FORWARD] > np.where(apart, place[INPUT], place[BACKWARD])
    )
    if early.any():
        raise ConflictError(
            "a backward pass before what it needs on the same rank", hint="forward pass, input gradient, weight gradient"
        )
