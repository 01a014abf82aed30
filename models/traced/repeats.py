"""Repeated stretches of a sequence of operators: runs of equal blocks.

`runs` looks for s[i] = s[i + p] over all periods p and takes the run that saves most,

    (blocks - 1) x FLOPs of its blocks,          the shorter period where two save the same,

then looks left and right of it. A run of p-periodic operators may begin anywhere within a block; its blocks begin where the
fewest bytes pass from one to the next. Two layers of one kind are found equal later, operator by operator: here only their
shapes are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.models.traced.operators import Draft
from shardwright.models.traced.relations import Relations

MAX_PERIOD = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Equal blocks one after the other: operators start + i period to start + (i + 1) period, i < count."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The first operator behind the run."""
        return self.start + self.period * self.count


def signature(draft: Draft, relations: Relations) -> Hashable:
    """What equal operators have in common: the word, and the sizes of all they read and write."""
    size = relations.atoms.size
    parts = (draft.inputs, draft.outputs, draft.parameters, draft.saved)
    shapes = tuple(tuple(tuple(map(size, part.dims)) for part in group) for group in parts)
    return draft.label, draft.kind, shapes, draft.flops


def runs(signatures: Sequence[Hashable], flops: Sequence[int], cuts: np.ndarray) -> list[Run]:
    """All runs, in order.

    Args:
        signatures: of the operators.
        flops: of the operators.
        cuts: bytes that pass from the operators before position i to those from i on, one more than there are operators.
    """
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(s, len(numbers)) for s in signatures], dtype=np.int64)
    work = np.concatenate(([0.0], np.cumsum(np.asarray(flops, dtype=np.float64))))
    found: list[Run] = []
    stack = [(0, len(codes))]
    while stack:
        low, high = stack.pop()
        best = _best(codes[low:high], work[low : high + 1], cuts[low : high + 1])
        if best is not None:
            run = Run(start=low + best.start, period=best.period, count=best.count)
            found.append(run)
            stack += [(low, run.start), (run.end, high)]
    return sorted(found, key=lambda run: run.start)


def _best(codes: np.ndarray, work: np.ndarray, cuts: np.ndarray) -> Run | None:
    """The run that saves most within a stretch."""
    best, saved = None, 0.0
    for period in range(1, min(len(codes) // 2, MAX_PERIOD) + 1):
        same = codes[:-period] == codes[period:]
        for start, length in _stretches(same, period):
            run = _placed(start, length + period, period, cuts)
            gain = (run.count - 1) * float(work[run.end] - work[run.start])
            if run.count > 1 and gain > saved * (1 + 1e-9):
                best, saved = run, gain
    return best


def _stretches(same: np.ndarray, least: int) -> list[tuple[int, int]]:
    """Start and length of the stretches of True that are long enough."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
    pairs = edges.reshape(-1, 2)
    return [(int(a), int(b - a)) for a, b in pairs[pairs[:, 1] - pairs[:, 0] >= least]]


def _placed(start: int, length: int, period: int, cuts: np.ndarray) -> Run:
    """The blocks of a periodic stretch: beginning where least passes over, then as many as there are, then early."""

    def cost(offset: int) -> tuple[float, int, int]:
        count = (length - offset) // period
        borders = [float(cuts[start + offset + i * period]) for i in range(count + 1)]
        return max(borders[1:-1] or borders), -count, offset

    offsets = range(min(period, length - 2 * period + 1))
    offset = min(offsets, key=cost)
    return Run(start=start + offset, period=period, count=(length - offset) // period)
