"""The event simulator: every operation of one step of one plan, as early as its order and its inputs allow.

A rank works in slots: one operation, or a forward and a backward pass that run together. A slot starts when the rank is free
and its inputs have arrived (`orders` says from where):

    start = max(rank free, arrivals)      end = start + time      arrival at the next stage = end + send

A message may also keep the sender from computing, start only once the receiver waits, or both: then it starts when its sender
has ended the slot that makes it and its receiver the slot before the one that needs it, and keeps both (`timing.Sends`). As
every rank's order is given, the result does not depend on the order in which ranks are visited. This is the reference that the
vectorised `recurrence` is tested against; it shares no arithmetic with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwright.errors import ConflictError
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order, check
from shardwright.planner.schedules.timeline import Event, Timeline, Transfer
from shardwright.planner.schedules.timing import ChunkTimes, Sends

Key = tuple[bool, int, int]
"""Whether forward, stage and micro-batch of a pass."""

Slot = tuple[tuple[int, int, int], ...]
"""(phase, stage, micro-batch) of what runs together."""


@dataclass(slots=True, kw_only=True)
class _State:
    """A simulation under way.

    Attributes:
        slots: what each rank does.
        place: rank and slot of each pass.
        done: how many slots each rank has come past, the last exchange counting as one more.
        ended_s: when each slot that was done ended, by rank.
        free_s: when each rank has done what it did so far.
        ready_s: when the result of a pass has reached the next stage; on its sender where the receiver has to wait for it.
    """

    slots: list[list[Slot]]
    place: dict[Key, tuple[int, int]]
    done: list[int]
    ended_s: list[list[float]]
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
    state, cost = _start(order), _Costs(times=times, plan=plan, ranks=order.stage_rank.tolist())
    while any(done <= len(slots) for done, slots in zip(state.done, state.slots, strict=True)):
        moved = [_advance(state, cost, rank) for rank in range(order.pp)]
        if not any(moved):
            raise ConflictError("the ranks of this pipeline wait for each other", hint="give another order of operations")
    tails = times.tail_s[plan].tolist()
    return Timeline(
        pp=order.pp,
        vpp=order.vpp,
        stage_rank=tuple(cost.ranks),
        events=tuple(event for events in state.events for event in events),
        transfers=tuple(sorted(state.transfers, key=lambda sent: (sent.start_s, sent.source, sent.stage))),
        tail_s=tuple(tails),
        finish_s=tuple(free + tail for free, tail in zip(state.free_s, tails, strict=True)),
    )


def _start(order: Order) -> _State:
    slots = _slots(order)
    place = {
        (phase == FORWARD, stage, micro_batch): (rank, at)
        for rank, own in enumerate(slots)
        for at, slot in enumerate(own)
        for phase, stage, micro_batch in slot
        if phase != WEIGHT
    }
    ended: list[list[float]] = [[] for _ in slots]
    events: list[list[Event]] = [[] for _ in slots]
    return _State(slots=slots, place=place, done=[0] * order.pp, ended_s=ended, free_s=[0.0] * order.pp, events=events)


def _slots(order: Order) -> list[list[Slot]]:
    paired = order.phase * 0 if order.paired is None else order.paired * 1
    parts = (part.tolist() for part in (order.phase, order.stage, order.micro_batch, paired))
    made: list[list[Slot]] = []
    for phases, stages, batches, joined in zip(*parts, strict=True):
        own: list[Slot] = []
        for at, operation in enumerate(zip(phases, stages, batches, strict=True)):
            if operation[0] >= 0:
                own.append((*own.pop(), operation) if at and joined[at - 1] else (operation,))
        made.append(own)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    times: ChunkTimes
    plan: int
    ranks: list[int]

    def seconds(self, slot: Slot) -> float:
        """Computation of a slot."""
        each = [self.alone(phase, stage) for phase, stage, _ in slot]
        return sum(each) - (self.times.gain * min(each) if len(each) > 1 else 0.0)

    def alone(self, phase: int, stage: int) -> float:
        """Computation of an operation that runs alone."""
        at, times = (self.plan, stage), self.times
        if phase == FORWARD:
            return float(times.forward_s[at])
        backward = {INPUT: times.input_s[at], WEIGHT: times.weight_s[at], BACKWARD: times.input_s[at] + times.weight_s[at]}
        return float(backward[phase])

    def neighbour(self, operation: tuple[int, int, int], onward: bool) -> int | None:
        """Stage that a pass gives its result to, or takes one from; None where there is none."""
        phase, stage, _ = operation
        other = stage + (1 if (phase == FORWARD) == onward else -1)
        return other if phase != WEIGHT and 0 <= other < len(self.ranks) else None

    def send(self, stage: int, other: int) -> float:
        """A message between two neighbouring stages."""
        return float(self.times.send_s[self.plan, min(stage, other)]) if self.crosses(stage, other) else 0.0

    def crosses(self, stage: int, other: int) -> bool:
        """Whether two stages stand on different ranks."""
        return self.ranks[stage] != self.ranks[other]


def _inputs(cost: _Costs, slot: Slot) -> list[tuple[Key, int]]:
    """Passes whose results a slot needs, and the stage that needs them."""
    found = [(operation, cost.neighbour(operation, onward=False)) for operation in slot]
    return [((phase == FORWARD, source, batch), stage) for (phase, stage, batch), source in found if source is not None]


def _advance(state: _State, cost: _Costs, rank: int) -> bool:
    """Does all slots of a rank that can start; False if there are none."""
    before = state.done[rank]
    slots = state.slots[rank]
    while (at := state.done[rank]) <= len(slots):
        slot = slots[at] if at < len(slots) else ()
        inputs = _inputs(cost, slot)
        if any(key not in state.ready_s for key, _ in inputs):
            break
        released = _released(state, cost, rank, at)
        if released is None:
            break
        _do(state, cost, rank, slot, max(released, _received(state, cost, rank, inputs)))
        state.done[rank] += 1
    return state.done[rank] > before


def _released(state: _State, cost: _Costs, rank: int, at: int) -> float | None:
    """When the messages made by the slot before have been taken, where both ends wait; None where that is not known yet."""
    if cost.times.sends is not Sends.BOTH or at == 0:
        return 0.0
    released = 0.0
    for operation in state.slots[rank][at - 1]:
        target = cost.neighbour(operation, onward=True)
        if target is None or not cost.crosses(operation[1], target):
            continue
        taker, slot = state.place[operation[0] == FORWARD, target, operation[2]]
        if len(state.ended_s[taker]) < slot:
            return None
        there = state.ended_s[taker][slot - 1] if slot else 0.0
        released = max(released, max(state.free_s[rank], there) + cost.send(operation[1], target))
    return released


def _received(state: _State, cost: _Costs, rank: int, inputs: list[tuple[Key, int]]) -> float:
    """When a rank is free and has the inputs of its next slot, which only `Sends.RECEIVER` brings one after the other."""
    free, sends = state.free_s[rank], cost.times.sends
    ready = [state.ready_s[key] for key, _ in inputs]
    if sends in {Sends.OVERLAPPED, Sends.SENDER}:
        return max([free, *ready])
    start = latest = max([free, *ready])
    for (key, stage), made in zip(inputs, ready, strict=True):
        begin = start if sends is Sends.RECEIVER else max(free, made)
        start = begin + cost.send(key[1], stage)
        latest = max(latest, start)
        _record(state, cost, key, stage, (begin, start))
    return latest


def _do(state: _State, cost: _Costs, rank: int, slot: Slot, start: float) -> None:
    """Does a slot and sends what it made; nothing but the end of the last exchange where the slot is empty."""
    end = start + (cost.seconds(slot) if slot else 0.0)
    state.free_s[rank] = end
    if slot:
        state.ended_s[rank].append(end)
    for operation in slot:
        phase, stage, micro_batch = operation
        state.events[rank].append(
            Event(
                rank=rank,
                stage=stage,
                micro_batch=micro_batch,
                phase=phase,
                start_s=start,
                end_s=end,
                paired=len(slot) > 1,
            )
        )
    _send(state, cost, rank, slot)


def _send(state: _State, cost: _Costs, rank: int, slot: Slot) -> None:
    """Hands on the results of a slot; `Sends.SENDER` sends one after the other, and the last opens them all."""
    end, sends = state.free_s[rank], cost.times.sends
    for operation in slot:
        phase, stage, micro_batch = operation
        if phase != WEIGHT:
            state.ready_s[phase == FORWARD, stage, micro_batch] = end
        target = cost.neighbour(operation, onward=True)
        if target is None or sends in {Sends.RECEIVER, Sends.BOTH}:
            continue
        key, begin = (phase == FORWARD, stage, micro_batch), state.free_s[rank]
        state.ready_s[key] = begin + cost.send(stage, target)
        _record(state, cost, key, target, (begin, state.ready_s[key]))
        if sends is Sends.SENDER:
            state.free_s[rank] = state.ready_s[key]
    if sends is Sends.SENDER:
        made = [(phase == FORWARD, stage, micro_batch) for phase, stage, micro_batch in slot if phase != WEIGHT]
        state.ready_s.update(dict.fromkeys(made, state.free_s[rank]))


def _record(state: _State, cost: _Costs, key: Key, target: int, span: tuple[float, float]) -> None:
    """Notes a message between ranks."""
    forward, stage, micro_batch = key
    if cost.crosses(stage, target):
        sent = Transfer(
            source=cost.ranks[stage],
            target=cost.ranks[target],
            stage=stage,
            micro_batch=micro_batch,
            phase=FORWARD if forward else BACKWARD,
            start_s=span[0],
            end_s=span[1],
        )
        state.transfers.append(sent)
