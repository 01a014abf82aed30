"""What a pipeline schedule is: the price of a step and the activations it keeps.

`rows` gives for every run of equal stages the length of the longest chain of work through its last stage, so that the
pipeline takes the greatest of them; `in_flight` gives the micro-batches whose activations a rank keeps at its peak, in
units of all layers of the rank. `fits_chunks` says which numbers of chunks a rank a schedule can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of one micro-batch on the stages of many plans; runs as in `cost.stages`.

    Attributes:
        forward_s, backward_s: a rank's whole pass, recomputing and sends included, [plans, runs].
        multiplicity: ranks of each run, 0 beyond the last, [plans, runs].
        last_rank: last rank of each run, [plans, runs].
        pp, vpp, micro_batches: [plans, 1].
        stretch: what unequal chunks of interleaved schedules cost beyond the chains, a factor, [plans, 1]; 1 where None.
        weight_s: the part of `backward_s` that is the weight gradient, [plans, runs]; half of it where none is given.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    multiplicity: IntArray
    last_rank: IntArray
    pp: IntArray
    vpp: IntArray
    micro_batches: IntArray
    stretch: FloatArray | None = None
    weight_s: FloatArray | None = None

    @property
    def both_s(self) -> FloatArray:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def weight_part_s(self) -> FloatArray:
        """Weight gradient of a rank's pass."""
        return self.backward_s / 2 if self.weight_s is None else self.weight_s

    def around(self) -> tuple[FloatArray, FloatArray]:
        """Sums over the stages before and after the last stage of each run, [plans, runs]."""
        both = self.both_s
        weighted = both * self.multiplicity
        until = np.cumsum(weighted, axis=1)
        return until - both, until[:, -1:] - until


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule.

    Attributes:
        id: the word in `--schedule`.
        interleaved: whether a rank holds more than one chunk.
        rows: longest chain through the last stage of each run, [plans, runs].
        in_flight: (pp, vpp, micro-batches, rank) -> micro-batches kept, all broadcast together.
        keeps_all_logits: whether the logits of all micro-batches are alive at once.
        source: where the schedule is described.
        folded: whether chunks stand on ranks like a V, two on each: the first and the last one on rank 0.
        drains: whether ranks are done one after another from the last to the first, a backward pass of one chunk apart.
        splits_backward: whether input and weight gradients are operations of their own.
        least_rounds: micro-batches it needs at least, in multiples of pp.
        logits_behind: (pp, micro-batches) -> micro-batches whose gradient of the logits still waits for the head's weight
            gradient, at most; None where none does.
    """

    id: str
    interleaved: bool
    rows: Callable[[StageTimes], FloatArray]
    in_flight: Callable[[IntArray, IntArray, IntArray, IntArray], FloatArray]
    keeps_all_logits: bool
    source: str
    folded: bool = False
    drains: bool = False
    splits_backward: bool = False
    least_rounds: int = 0
    logits_behind: Callable[[IntArray, IntArray], IntArray] | None = None

    @property
    def chunks(self) -> str:
        """Chunks a rank it can have, in words."""
        return "2" if self.folded else "2 or more" if self.interleaved else "1"

    def fits_chunks(self, vpp: IntArray) -> BoolArray:
        """Whether it can have so many chunks a rank."""
        return np.asarray(vpp == 2 if self.folded else (vpp > 1) == self.interleaved)
