"""Where the kinds of layers of a model repeat: positions after which the same kinds follow are one *place*.

A model's layers are of kinds k_0 … k_{L−1}. With the smallest d + p such that k_i = k_{i+p} for all i >= d,

    place(i) = i                       i < d
               d + (i − d) mod p       else

and what n layers from position i hold depends on place(i) and n alone: a dense model has one place, one with three dense layers
before its routed ones four, one that alternates two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of a model.

    Attributes:
        before: layers before the repetition begins (d).
        period: layers after which kinds repeat (p).
        held: layers of each kind among the first n from each place, [places, longest + 1, kinds].
    """

    before: int
    period: int
    held: IntArray

    @property
    def count(self) -> int:
        """Places."""
        return self.before + self.period

    def of(self, position: IntArray) -> IntArray:
        """Place of each position."""
        return np.where(position < self.before, position, self.before + (position - self.before) % self.period)

    def after(self, place: IntArray, layers: IntArray) -> IntArray:
        """Place that some layers lead to."""
        return self.of(place + layers)


def places_of(pattern: Sequence[int], kinds: int, longest: int) -> Places:
    """The places of a pattern of layers.

    Args:
        pattern: kind of each layer.
        kinds: how many there are.
        longest: most layers of one chunk.
    """
    before, period = _repetition(tuple(pattern))
    reach = before + period + longest
    index = np.arange(reach)
    known = np.array(pattern, dtype=np.int64)
    kind = known[np.where(index < before, index, before + (index - before) % period)]
    prefix = np.concatenate((np.zeros((1, kinds), dtype=np.int64), np.cumsum(np.eye(kinds, dtype=np.int64)[kind], axis=0)))
    places = np.arange(before + period)[:, None]
    return Places(before=before, period=period, held=prefix[places + np.arange(longest + 1)] - prefix[places])


def _repetition(pattern: tuple[int, ...]) -> tuple[int, int]:
    """Layers before the repetition, and its period: the smallest sum, then the smallest period."""
    layers, found = len(pattern), (len(pattern), 1)
    for period in range(1, layers + 1):
        if period >= sum(found):
            break
        before = layers - period
        while before > 0 and pattern[before - 1] == pattern[before - 1 + period]:
            before -= 1
        found = min(found, (before, period), key=sum)
    return found
