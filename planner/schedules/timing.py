"""Times of the operations of a pipeline, for many plans, and what a send costs.

Stage s takes F_s, I_s (recomputing included) and W_s a micro-batch; a whole backward pass takes I_s + W_s. Activations pass
from stage s to s + 1, and their gradients back, in p_s, unless both stand on one rank, where nothing is sent:

    overlapped   the next stage may start p_s after the pass ends; both ranks compute meanwhile
    sender       as overlapped, and the sending rank waits until the message has arrived
    receiver     the message starts to travel when the sender has it and the receiver waits for it
    both         between two passes a rank sends what it made and receives what it needs next, in one exchange that ends when
                 all its messages have arrived; a message travels when its sender and its receiver have come to it
                 (Megatron-LM's `send_forward_recv_backward`, torch's `Schedule1F1B`)

With one blocking end, p_s is simply part of the time of that end's operation (`busy_s`), with neither it is a delay
(`delay_s`); where both wait, it is a delay and exchanges are steps of their own (`steps`). Two passes that run together take
F + B − gain·min(F, B). After its last operation rank r spends `tail_s` more (reduction of gradients, update).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import InvalidValueError
from shardwright.planner.plans import BoolArray, FloatArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT, stage_ranks


class Sends(StrEnum):
    """Who waits while a message travels."""

    OVERLAPPED = "overlapped"
    SENDER = "sender"
    RECEIVER = "receiver"
    BOTH = "both"


DELAYED = (Sends.OVERLAPPED, Sends.BOTH)
"""Where a message is a delay and no part of the time of a pass."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTimes:
    """Times of one micro-batch on the stages of plans that share a schedule, pp, vpp and the number of micro-batches.

    Attributes:
        forward_s, input_s, weight_s: of each stage, in the order layers run, [plans, stages].
        send_s: one message between a stage and the next, [plans, stages]; the last column is not read.
        tail_s: what a rank does after its last operation, [plans, pp].
        sends: who waits for messages.
        gain: share of the shorter pass that is hidden where a forward and a backward pass run together, 0 to 1.
    """

    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    send_s: FloatArray
    tail_s: FloatArray
    sends: Sends = Sends.OVERLAPPED
    gain: float = 0.0

    @property
    def plans(self) -> int:
        """How many plans."""
        return int(self.forward_s.shape[0])

    def take(self, index: slice | NDArray[np.intp]) -> ChunkTimes:
        """Some of the plans."""
        return ChunkTimes(
            forward_s=self.forward_s[index],
            input_s=self.input_s[index],
            weight_s=self.weight_s[index],
            send_s=self.send_s[index],
            tail_s=self.tail_s[index],
            sends=self.sends,
            gain=self.gain,
        )


def chunk_times(
    forward_s: FloatArray,
    input_s: FloatArray,
    weight_s: FloatArray,
    *,
    pp: int,
    send_s: FloatArray | float = 0.0,
    tail_s: FloatArray | float = 0.0,
    sends: Sends = Sends.OVERLAPPED,
    gain: float = 0.0,
) -> ChunkTimes:
    """Times from arrays that broadcast to [plans, stages] and [plans, pp].

    Raises:
        InvalidValueError: a negative time, a gain outside 0 to 1, or stages that are no multiple of pp.
    """
    shape = np.broadcast_shapes(np.shape(forward_s), np.shape(input_s), np.shape(weight_s), np.shape(send_s), (1, 1))
    if shape[1] % pp:
        raise InvalidValueError(f"{shape[1]} stages on {pp} pipeline ranks", hint="every rank holds as many stages")
    plans = max(shape[0], np.atleast_2d(tail_s).shape[0])
    parts = [np.broadcast_to(np.asarray(part, dtype=np.float64), (plans, shape[1])) for part in (forward_s, input_s, weight_s)]
    send = np.broadcast_to(np.asarray(send_s, dtype=np.float64), (plans, shape[1]))
    tail = np.broadcast_to(np.asarray(tail_s, dtype=np.float64), (plans, pp))
    if min(float(part.min(initial=0.0)) for part in (*parts, send, tail)) < 0:
        raise InvalidValueError("a time below 0", hint="times of stages, sends and tails are seconds from 0")
    if not 0 <= gain <= 1:
        raise InvalidValueError(
            f"a gain of {gain} for passes that run together", hint="the hidden share of the shorter, 0 to 1"
        )
    return ChunkTimes(forward_s=parts[0], input_s=parts[1], weight_s=parts[2], send_s=send, tail_s=tail, sends=sends, gain=gain)


def crossing(pp: int, vpp: int, folded: bool) -> BoolArray:
    """Whether a message goes from each stage to the next, [stages]."""
    rank = stage_ranks(pp, vpp, folded)
    made = np.zeros(pp * vpp, dtype=bool)
    made[:-1] = rank[1:] != rank[:-1]
    return made


def busy_s(times: ChunkTimes, crosses: BoolArray) -> FloatArray:
    """Seconds that an operation occupies its rank, [phases, stages, plans]."""
    onward = np.where(crosses, times.send_s, 0.0).T
    back = np.zeros_like(onward)
    back[1:] = onward[:-1]
    if times.sends in DELAYED:
        onward = back = np.zeros_like(onward)
    elif times.sends is Sends.RECEIVER:
        onward, back = back, onward
    made = np.zeros((len(PHASES), *onward.shape))
    made[FORWARD] = times.forward_s.T + onward
    made[INPUT] = times.input_s.T + back
    made[BACKWARD] = made[INPUT] + times.weight_s.T
    made[WEIGHT] = times.weight_s.T
    return made


def delay_s(times: ChunkTimes, crosses: BoolArray) -> FloatArray:
    """Seconds between the end of a pass and the earliest start of the next on another rank, [stages, plans]."""
    if times.sends in DELAYED:
        return np.where(crosses, times.send_s, 0.0).T
    return np.zeros_like(times.send_s.T)
