"""What happened when: the record of one simulated step.

The micro-batches a rank keeps grow by one when a forward pass starts and shrink by one when the last gradient of that chunk
and micro-batch is done (`live`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.planner.schedules.orders import FORWARD, INPUT, WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One operation.

    Attributes:
        rank, stage, micro_batch: where and on what.
        phase: index into `orders.PHASES`.
        start_s, end_s: computation, from the start of the step.
        paired: whether it runs together with another one, both from start to end.
    """

    rank: int
    stage: int
    micro_batch: int
    phase: int
    start_s: float
    end_s: float
    paired: bool = False


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
        waiting: those of them of which only the weight gradient is still to be done.
    """

    time_s: float
    chunks: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step.

    Attributes:
        pp, vpp: pipeline ranks, chunks a rank.
        stage_rank: rank of each stage.
        events: operations, rank after rank, each rank's in order.
        transfers: messages, in the order they start.
        tail_s: what each rank does after its last operation (reduction of gradients, update).
        finish_s: when each rank is done, its tail included.
    """

    pp: int
    vpp: int
    stage_rank: tuple[int, ...]
    events: tuple[Event, ...]
    transfers: tuple[Transfer, ...]
    tail_s: tuple[float, ...]
    finish_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """When the last rank is done."""
        return max(self.finish_s)

    def of_rank(self, rank: int) -> tuple[Event, ...]:
        """The operations of a rank, in order."""
        return tuple(event for event in self.events if event.rank == rank)

    def busy_s(self, rank: int) -> float:
        """Seconds that a rank computes; two passes that run together count once."""
        return sum(e.end_s - e.start_s for e in self.of_rank(rank) if e.phase == FORWARD or not e.paired)

    def live(self, rank: int) -> tuple[Live, ...]:
        """Micro-batches that a rank keeps, over time."""
        stages = [stage for stage, on in enumerate(self.stage_rank) if on == rank]
        counts, waiting = [0] * len(stages), [0] * len(stages)
        made = [Live(time_s=0.0, chunks=tuple(counts), waiting=tuple(waiting))]
        for event in self.of_rank(rank):
            chunk = stages.index(event.stage)
            counts[chunk] += {FORWARD: 1, INPUT: 0}.get(event.phase, -1)
            waiting[chunk] += {INPUT: 1, WEIGHT: -1}.get(event.phase, 0)
            time_s = event.start_s if event.phase == FORWARD else event.end_s
            made.append(Live(time_s=time_s, chunks=tuple(counts), waiting=tuple(waiting)))
        return tuple(made)

    def peak_chunks(self, rank: int) -> tuple[int, ...]:
        """Most micro-batches that a rank keeps of each of its chunks."""
        return tuple(max(kept) for kept in zip(*(live.chunks for live in self.live(rank)), strict=True))

    def peak_live(self, rank: int) -> int:
        """Most chunks of micro-batches that a rank keeps at once."""
        return max(sum(live.chunks) for live in self.live(rank))
