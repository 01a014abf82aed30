"""An order written as chains of steps, each of which waits for at most one other chain.

A chain holds what one rank does. A step starts when the one before has ended and what it waits for has arrived:

    end(o) = max(end(o − 1), end(w(o)) + delay(o)) + spent(o)

Most steps are passes: w(o) is the pass of a neighbouring stage whose result it needs. Two things need more steps:

    pair       a forward and a backward pass that run together wait for two results: the first step of the pair spends
               nothing and waits for one, the second waits for the other and spends the time of both
    exchange   where both ends of a message wait (`Sends.BOTH`), the sends of what was just made and the receipts of what is
               needed next are one exchange between two passes: a step that spends the longest of the messages, and for each
               message sent one that waits until its receiver has ended the pass before the receipt

`chains` writes them; step 0 stands for "nothing" and ends at 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import BoolArray, IntArray
from shardwright.planner.schedules.orders import FORWARD, PHASES, WEIGHT, Order
from shardwright.planner.schedules.timing import crossing

MESSAGES = 4
"""Messages of one exchange: two sent, two received, where passes are paired."""

NO_EXCHANGES: IntArray = np.zeros((0, MESSAGES), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """Steps of all ranks, rank after rank.

    Attributes:
        rank: rank of each step, [steps + 1]; −1 for step 0.
        row: what it spends, a row of `recurrence.spent_s`, [steps + 1].
        waits: w(o), [steps + 1].
        link: stage before the link that the result of w(o) passes, the last stage where it passes none, [steps + 1].
        pairs: rows of the forward and the backward pass of each kind of pair, [pairs, 2].
        exchanges: links of the messages of each kind of exchange, [exchanges, `MESSAGES`].
    """

    rank: IntArray
    row: IntArray
    waits: IntArray
    link: IntArray
    pairs: IntArray
    exchanges: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Operations:
    """All operations, rank after rank, [operations] each.

    Attributes:
        rank, row: where, and row of the pass.
        head, tail: first and last operation of the slot, the same unless passes are paired.
        source: operation whose result is needed, −1 for none.
        link: stage before the link that this result passes; the last stage where it is made on the same rank.
        stages: chunks of layers.
    """

    rank: IntArray
    row: IntArray
    head: IntArray
    tail: IntArray
    source: IntArray
    link: IntArray
    stages: int

    @property
    def numbers(self) -> IntArray:
        """Their numbers, from 0."""
        return np.arange(len(self.rank))

    @property
    def final(self) -> BoolArray:
        """Whether the slot is the last one of its rank."""
        after = np.minimum(self.tail + 1, len(self.rank) - 1)
        return np.asarray((self.rank[after] != self.rank) | (after == self.tail))


def chains(order: Order, exchange: bool = False) -> Chains:
    """Writes an order that `orders.check` accepts as steps.

    Args:
        order: what each rank does, in order.
        exchange: whether both ends of a message wait for it.
    """
    operations = _operations(order)
    zero = len(PHASES) * order.stages
    row, pairs = _pair_rows(operations, zero)
    passes = (8 * operations.numbers + 3, row, operations.source, operations.link)
    exchanged, exchanges = _exchanges(operations, zero, zero + 1 + len(pairs)) if exchange else ([], NO_EXCHANGES)
    key, rows, waits, link = (np.concatenate(parts) for parts in zip(passes, *exchanged, strict=True))
    by_key = np.argsort(key, kind="stable")
    place = np.empty(len(key), dtype=np.int64)
    place[by_key] = np.arange(1, len(key) + 1)
    ended = place[operations.tail]
    return Chains(
        rank=np.append(-1, operations.rank[key[by_key] // 8]),
        row=np.append(zero, rows[by_key]),
        waits=np.append(0, np.where(waits < 0, 0, ended[waits])[by_key]),
        link=np.append(order.stages - 1, link[by_key]),
        pairs=pairs,
        exchanges=exchanges,
    )


def _operations(order: Order) -> _Operations:
    rank, column = np.nonzero(order.present)
    phase, stage, batch = (part[rank, column] for part in (order.phase, order.stage, order.micro_batch))
    paired = np.zeros(len(rank), dtype=np.int64) if order.paired is None else order.paired[rank, column].astype(np.int64)
    numbers = np.arange(len(rank))
    other = np.where(phase == FORWARD, stage - 1, stage + 1)
    needs = (phase != WEIGHT) & (other >= 0) & (other < order.stages)
    inside = np.where(needs, other, 0)
    made = np.zeros((2, order.stages, order.micro_batches), dtype=np.int64)
    passes, back = phase != WEIGHT, (phase != FORWARD).astype(np.int64)
    made[back[passes], stage[passes], batch[passes]] = numbers[passes]
    between = np.minimum(stage, inside)
    crosses = needs & crossing(order.pp, order.vpp, order.folded)[between]
    return _Operations(
        rank=rank,
        row=phase * order.stages + stage,
        head=numbers - np.append(0, paired[:-1]),
        tail=numbers + paired,
        source=np.where(needs, made[back, inside, batch], -1),
        link=np.where(crosses, between, order.stages - 1),
        stages=order.stages,
    )


def _pair_rows(operations: _Operations, zero: int) -> tuple[IntArray, IntArray]:
    """Row of each operation, where the first of a pair spends nothing, and the kinds of pairs."""
    first = np.flatnonzero(operations.tail > operations.numbers)
    pairs, kind = np.unique(operations.row[np.stack((first, first + 1), axis=1)].reshape(-1, 2), axis=0, return_inverse=True)
    row = operations.row.copy()
    row[first] = zero
    row[first + 1] = zero + 1 + kind.reshape(-1)
    return row, pairs


def _exchanges(operations: _Operations, zero: int, first_row: int) -> tuple[list[tuple[IntArray, ...]], IntArray]:
    """Steps of exchanges as (key, row, awaited operation, link), and the kinds of exchanges.

    The key sorts steps: eight times an operation's number, and 3 for its pass; an exchange comes before the first pass of the
    next slot, or after the last pass of the rank.
    """
    none = operations.stages - 1
    received = np.flatnonzero(operations.link != none)
    sent, link = operations.source[received], operations.link[received]
    key = np.where(operations.final[sent], 8 * operations.tail[sent] + 4, 8 * operations.tail[sent] + 8)
    messages = np.full((8 * len(operations.rank) // 4, MESSAGES), none)  # by key // 4: before a slot, after a rank's last
    messages[2 * operations.head[received], (operations.head[received] < received).astype(int)] = link
    messages[key // 4, 2 + (operations.head[sent] < sent)] = link
    used = np.flatnonzero((messages != none).any(axis=1))
    kinds, kind = np.unique(messages[used], axis=0, return_inverse=True)
    spends = (4 * used, first_row + kind.reshape(-1), np.full(len(used), -1), np.full(len(used), none))
    ahead = operations.head[received] - 1
    waits = np.flatnonzero((ahead >= 0) & (operations.rank[ahead] == operations.rank[received]))
    return [spends, (key[waits] + 1, np.full(len(waits), zero), ahead[waits], link[waits])], kinds
