"""What happened when: the record of one simulated step.

The micro-batches a rank keeps grow by one when a forward pass starts and shrink by one when the last gradient of that chunk
and micro-batch is done (`live`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.planner.schedules.orders import BACKWARD, FORWARD, WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One operation.

    Attributes:
        rank, stage, micro_batch: where and on what.
        phase: index into `orders.PHASES`.
        start_s, end_s: computation, from the start of the step.
    """

    rank: int
    stage: int
    micro_batch: int
    phase: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One message: activations to the next stage (phase forward), or their gradients to the one before.

    Attributes:
        source, target: ranks.
        stage, micro_batch, phase: of the operation whose result travels.
        start_s, end_s: on its way.
    """

    source: int
    target: int
    stage: int
    micro_batch: int
    phase: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Micro-batches that a rank keeps from an instant on.

    Attributes:
        time_s: the instant.
        chunks: micro-batches of each of the rank's chunks.
    """

    time_s: float
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step.

    Attributes:
        pp, vpp: pipeline ranks, chunks a rank.
        stage_rank: rank of each stage.
        events: operations, rank after rank, each rank's in order.
        transfers: messages, in the order they start.
        finish_s: when each rank is done, its tail included.
    """

    pp: int
    vpp: int
    stage_rank: tuple[int, ...]
    events: tuple[Event, ...]
    transfers: tuple[Transfer, ...]
    finish_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """When the last rank is done."""
        return max(self.finish_s)

    def of_rank(self, rank: int) -> tuple[Event, ...]:
        """The operations of a rank, in order."""
        return tuple(event for event in self.events if event.rank == rank)

    def busy_s(self, rank: int) -> float:
        """Seconds that a rank computes."""
        return sum(event.end_s - event.start_s for event in self.of_rank(rank))

    def live(self, rank: int) -> tuple[Live, ...]:
        """Micro-batches that a rank keeps, over time."""
        stages = [stage for stage, on in enumerate(self.stage_rank) if on == rank]
        counts = [0] * len(stages)
        made = [Live(time_s=0.0, chunks=tuple(counts))]
        for event in self.of_rank(rank):
            if event.phase == FORWARD:
                counts[stages.index(event.stage)] += 1
                made.append(Live(time_s=event.start_s, chunks=tuple(counts)))
            elif event.phase in {BACKWARD, WEIGHT}:
                counts[stages.index(event.stage)] -= 1
                made.append(Live(time_s=event.end_s, chunks=tuple(counts)))
        return tuple(made)

    def peak_live(self, rank: int) -> int:
        """Most chunks of micro-batches that a rank keeps at once."""
        return max(sum(live.chunks) for live in self.live(rank))
