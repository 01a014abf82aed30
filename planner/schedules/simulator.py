"""The event simulator: every operation of one step of one plan, as early as its order and its inputs allow.

An operation starts when its rank has done the one before and its input has arrived (`orders` says from where):

    start = max(rank free, arrival)      end = start + time      arrival at the next stage = end + send

where a message may also keep the sender from computing, or start only once the receiver waits (`timing.Sends`). As every
rank's order is given, the result does not depend on the order in which ranks are visited. This is the reference that the
vectorised `recurrence` is tested against; it shares no arithmetic with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shardwright.errors import ConflictError
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order, check
from shardwright.planner.schedules.timeline import Event, Timeline, Transfer
from shardwright.planner.schedules.timing import ChunkTimes, Sends

Key = tuple[bool, int, int]
"""Whether forward, stage and micro-batch of a pass whose result another stage waits for."""


@dataclass(slots=True, kw_only=True)
class _State:
    """A simulation under way.

    Attributes:
        operations: (phase, stage, micro-batch) still to do, by rank.
        free_s: when each rank has done what it did so far.
        ready_s: when the result of a pass is there, by key; on its sender for `Sends.RECEIVER`.
    """

    operations: list[deque[tuple[int, int, int]]]
    free_s: list[float]
    ready_s: dict[Key, float] = field(default_factory=dict)
    events: list[list[Event]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)


def simulate(order: Order, times: ChunkTimes, plan: int = 0) -> Timeline:
    """One step.

    Args:
        order: what each rank does, in order.
        times: of the stages, for many plans.
        plan: which of them.

    Raises:
        ConflictError: an operation is missing or too early, or the ranks wait for each other.
    """
    check(order)
    state = _State(operations=_queues(order), free_s=[0.0] * order.pp, events=[[] for _ in range(order.pp)])
    ranks = order.stage_rank.tolist()
    cost = _Costs(order=order, times=times, plan=plan, ranks=ranks)
    while any(state.operations):
        moved = [_advance(state, cost, rank) for rank in range(order.pp)]
        if not any(moved):
            raise ConflictError("the ranks of this pipeline wait for each other", hint="give another order of operations")
    tails = times.tail_s[plan].tolist()
    return Timeline(
        pp=order.pp,
        vpp=order.vpp,
        stage_rank=tuple(ranks),
        events=tuple(event for events in state.events for event in events),
        transfers=tuple(sorted(state.transfers, key=lambda sent: (sent.start_s, sent.source, sent.stage))),
        finish_s=tuple(free + tail for free, tail in zip(state.free_s, tails, strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    order: Order
    times: ChunkTimes
    plan: int
    ranks: list[int]

    def seconds(self, phase: int, stage: int) -> float:
        """Computation of an operation."""
        at = (self.plan, stage)
        times = self.times
        if phase == FORWARD:
            return float(times.forward_s[at])
        backward = {INPUT: times.input_s[at], WEIGHT: times.weight_s[at], BACKWARD: times.input_s[at] + times.weight_s[at]}
        return float(backward[phase])

    def source(self, phase: int, stage: int) -> int | None:
        """Stage whose pass in the same direction comes before; None for the first one and for weight gradients."""
        before = stage + (-1 if phase == FORWARD else 1)
        return before if phase != WEIGHT and 0 <= before < len(self.ranks) else None

    def send(self, stage: int, other: int) -> float:
        """A message between two neighbouring stages."""
        return float(self.times.send_s[self.plan, min(stage, other)]) if self.ranks[stage] != self.ranks[other] else 0.0


def _queues(order: Order) -> list[deque[tuple[int, int, int]]]:
    rows = zip(order.phase.tolist(), order.stage.tolist(), order.micro_batch.tolist(), strict=True)
    return [deque(one for one in zip(*row, strict=True) if one[0] >= 0) for row in rows]


def _advance(state: _State, cost: _Costs, rank: int) -> bool:
    """Does all operations of a rank whose inputs are known; False if there are none."""
    queue, moved = state.operations[rank], False
    while queue:
        phase, stage, micro_batch = queue[0]
        source = cost.source(phase, stage)
        if source is not None and (phase == FORWARD, source, micro_batch) not in state.ready_s:
            break
        start = state.free_s[rank]
        if source is not None:
            start = max(start, _arrival(state, cost, (phase == FORWARD, source, micro_batch), stage, start))
        _do(state, cost, rank, queue.popleft(), start)
        moved = True
    return moved


def _arrival(state: _State, cost: _Costs, key: Key, stage: int, free: float) -> float:
    """When the input of a pass is there, given when its rank is free."""
    ready, send = state.ready_s[key], cost.send(key[1], stage)
    if cost.times.sends is not Sends.RECEIVER:
        return ready
    begin = max(ready, free)
    _record(state, cost, key, stage, (begin, begin + send))
    return begin + send


def _do(state: _State, cost: _Costs, rank: int, operation: tuple[int, int, int], start: float) -> None:
    """Does an operation and sends what it made."""
    phase, stage, micro_batch = operation
    end = start + cost.seconds(phase, stage)
    made = Event(rank=rank, stage=stage, micro_batch=micro_batch, phase=phase, start_s=start, end_s=end)
    state.events[rank].append(made)
    state.free_s[rank] = end
    if phase == WEIGHT:
        return
    key = (phase == FORWARD, stage, micro_batch)
    target = stage + (1 if phase == FORWARD else -1)
    if not 0 <= target < len(cost.ranks) or cost.times.sends is Sends.RECEIVER:
        state.ready_s[key] = end
        return
    state.ready_s[key] = arrival = end + cost.send(stage, target)
    _record(state, cost, key, target, (end, arrival))
    if cost.times.sends is Sends.SENDER:
        state.free_s[rank] = arrival


def _record(state: _State, cost: _Costs, key: Key, target: int, span: tuple[float, float]) -> None:
    """Notes a message between ranks."""
    forward, stage, micro_batch = key
    ranks = cost.ranks[stage], cost.ranks[target]
    if ranks[0] != ranks[1]:
        sent = Transfer(
            source=ranks[0],
            target=ranks[1],
            stage=stage,
            micro_batch=micro_batch,
            phase=FORWARD if forward else BACKWARD,
            start_s=span[0],
            end_s=span[1],
        )
        state.transfers.append(sent)
