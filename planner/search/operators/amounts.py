"""What a choice costs, as columns of a table: times of a micro-batch in seconds, memory in bytes.

    pass of a micro-batch, forward and backward alike, with C = computing, x = exchange of states in every pass, y = once a
    step, M micro-batches, ι = interference, φ = part of y never hidden (`planner.stacks`):

    V >= 0,  V >= x - C                                      exposed in every pass
    W >= (1-ι)·V + φ·y,  W >= y + (1-ι)·(x - C)              exposed in the pass of the update
    time = C + blocking + ι·x + ((M-1)·(1-ι)·V + W) / M

A layer's exchange hides behind the computing of a layer: it is gathered one layer ahead, and reduced one layer behind.
All of it is convex in what is chosen: exposed parts are rows of the integer program, priced at its own operating point,
and no round of re-pricing is needed. `Pricing.total_s` computes the same for a choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COLUMNS = (
    "forward_compute_s",
    "forward_blocking_s",
    "forward_gather_s",
    "forward_once_s",
    "backward_compute_s",
    "backward_blocking_s",
    "backward_exchange_s",
    "backward_once_s",
    "states_bytes",
    "saved_bytes",
    "dropped_bytes",
    "transient_bytes",
)
(
    F_COMPUTE,
    F_BLOCKING,
    F_EACH,
    F_ONCE,
    B_COMPUTE,
    B_BLOCKING,
    B_EACH,
    B_ONCE,
    STATES,
    SAVED,
    DROPPED,
    TRANSIENT,
) = range(len(COLUMNS))
PASSES = ((F_COMPUTE, F_BLOCKING, F_EACH, F_ONCE), (B_COMPUTE, B_BLOCKING, B_EACH, B_ONCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """How columns add up to time and memory.

    Attributes:
        micro_batches: M.
        interference: ι.
        floor: φ.
        in_flight: micro-batches whose activations are kept.
        budget_bytes: of a device; infinite for none.
    """

    micro_batches: int = 1
    interference: float = 0.0
    floor: float = 0.0
    in_flight: int = 1
    budget_bytes: float = float("inf")

    def pass_s(self, totals: Floats, way: int) -> float:
        """Time of a forward (0) or backward (1) pass of a micro-batch, from totals of the columns."""
        compute, blocking, each, once = (float(totals[column]) for column in PASSES[way])
        share = 1.0 - self.interference
        exposed = max(each - compute, 0.0)
        update = max(share * exposed + self.floor * once, once + share * (each - compute))
        later = (self.micro_batches - 1) * share * exposed
        return compute + blocking + self.interference * each + (later + update) / self.micro_batches

    def total_s(self, totals: Floats) -> float:
        """Time of a micro-batch, forward and backward."""
        return self.pass_s(totals, 0) + self.pass_s(totals, 1)

    def memory_bytes(self, totals: Floats) -> float:
        """Memory of a device; `totals[TRANSIENT]` is the largest, not the sum."""
        return float(totals[STATES] + self.in_flight * totals[SAVED] + totals[TRANSIENT])
