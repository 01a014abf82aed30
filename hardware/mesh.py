"""Named axes over ranks, and the shape of a mesh axis's groups on a cluster.

`DeviceMesh` lays axes over ranks, outermost first: rank = Σ_a coordinate_a · stride_a with
stride_a = Π of the sizes of the axes inside a. The groups of an axis are the sets of ranks that differ only in it.

`format_ranks` writes ranks as ranges with strides (``0-3,8-11``, ``0-504:8``; both ends belong), `parse_ranks` reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware import checks
from shardwright.hardware.groups import ALONE, GroupShape, group_shape, pair_shape, some_within

__all__ = ["ALONE", "DeviceMesh", "GroupShape", "format_ranks", "group_shape", "pair_shape", "parse_ranks", "some_within"]

Ranks = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMesh:
    """Named axes over ranks 0 .. size-1.

    Attributes:
        axes: (name, size) pairs, outermost first.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise InvalidValueError(f"mesh axes {', '.join(names)} are not distinct", where="axes", hint="name each axis once")
        for name, size in self.axes:
            checks.whole(f"mesh axis {name}", size, 1, 2**40)

    @property
    def size(self) -> int:
        """Ranks of the mesh."""
        return math.prod(size for _, size in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, outermost first."""
        return tuple(size for _, size in self.axes)

    def axis_size(self, name: str) -> int:
        """Size of an axis.

        Raises:
            UnknownNameError: no such axis.
        """
        return self.axes[self._index(name)][1]

    def stride(self, name: str) -> int:
        """Distance in ranks between neighbours along an axis.

        Raises:
            UnknownNameError: no such axis.
        """
        return math.prod(size for _, size in self.axes[self._index(name) + 1 :])

    def groups(self, name: str) -> Ranks:
        """The groups of an axis, by their lowest rank: int64 array [groups, size of the axis].

        Raises:
            UnknownNameError: no such axis.
        """
        size, stride = self.axis_size(name), self.stride(name)
        blocks = np.arange(self.size, dtype=np.int64).reshape(-1, size, stride)
        return blocks.transpose(0, 2, 1).reshape(-1, size)

    def ranks(self, **coordinates: int) -> Ranks:
        """The ranks with the given coordinates, ascending; axes not named run over all.

        Raises:
            UnknownNameError: no such axis.
            InvalidValueError: a coordinate outside its axis.
        """
        chosen: list[int | slice] = [slice(None)] * len(self.axes)
        for name, at in coordinates.items():
            index = self._index(name)
            chosen[index] = checks.whole(f"coordinate {name}", at, 0, self.axes[index][1] - 1)
        grid = np.arange(self.size, dtype=np.int64).reshape(self.shape)
        return np.atleast_1d(grid[tuple(chosen)]).reshape(-1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinate of a rank on every axis.

        Raises:
            InvalidValueError: no such rank.
        """
        left = checks.whole("rank", rank, 0, self.size - 1)
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            left, found[name] = divmod(left, size)
        return {name: found[name] for name, _ in self.axes}

    def _index(self, name: str) -> int:
        for index, (known, _) in enumerate(self.axes):
            if known == name:
                return index
        raise unknown_name("mesh axis", name, [known for known, _ in self.axes])


def format_ranks(ranks: Iterable[int] | Ranks) -> str:
    """Ranks as ranges with strides, ``"0-3,8-11"`` or ``"0-504:8"``; both ends belong. Order and repeats do not matter."""
    values = np.unique(np.fromiter(ranks, dtype=np.int64))
    steps = np.diff(values)
    ends = np.append(np.flatnonzero(np.diff(steps)), len(steps) - 1)  # last step of each run of equal steps
    parts: list[str] = []
    at = run = 0
    while at < len(values):
        while run < len(ends) and ends[run] < at:
            run += 1
        last = int(ends[run]) + 1 if at < len(steps) else at
        step = int(steps[at]) if last > at else 1
        if step > 1 and last - at < 2:
            last = at
        parts.append(_part(int(values[at]), int(values[last]), step))
        at = last + 1
    return ",".join(parts)


def parse_ranks(text: str) -> Ranks:
    """The ranks that `format_ranks` wrote, ascending.

    Raises:
        InvalidValueError: not of that form.
    """
    found: list[Ranks] = []
    for part in text.split(",") if text else []:
        match = _PART.fullmatch(part)
        if not match:
            raise InvalidValueError(f"{part!r} is no range of ranks", hint="write 5, 0-3 or 0-504:8")
        first, last, step = (int(g) if g else None for g in match.groups())
        found.append(np.arange(first or 0, (first or 0 if last is None else last) + 1, step or 1, dtype=np.int64))
    return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


_PART = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12})(?::([1-9][0-9]{0,11}))?)?")


def _part(first: int, last: int, step: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
