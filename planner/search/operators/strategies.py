"""All strategies of an operator on a mesh: for every axis one of its loops, or the same work on every rank of the axis.

    strategies = Π over axes of (loops + 1), less those that divide a dim into parts that are not even

A product of b·s rows, k summed and n written columns has (b, s, k, n, none) on every axis: 25 on a mesh of two.
`strategies_of` enumerates them with the layouts of all tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ConflictError
from shardwright.models.graph import Operator
from shardwright.planner.search.operators.layouts import BROADCAST, WHOLE, Codes
from shardwright.planner.search.operators.loops import Loop, divides, loops_of

NONE = -1

Allowed = Callable[[Operator, Loop | None, int], bool]
"""Whether an operator may divide a loop (None: nothing) over the axis of that index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """Strategies of one operator.

    Attributes:
        loops: what may be divided.
        chosen: index of the loop of each axis, `NONE` for the same work on every rank, [strategies, axes].
        inputs, outputs, parameters: codes of tensors, [strategies, tensors, axes].
        degrees: dim → ranks it is divided among, [strategies].
        ranks: of every axis.
    """

    ranks: tuple[int, ...]
    loops: tuple[Loop, ...]
    chosen: NDArray[np.int64]
    inputs: Codes
    outputs: Codes
    parameters: Codes
    degrees: Mapping[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.chosen)

    def words(self, row: int) -> tuple[str, ...]:
        """What each axis divides, ``-`` for nothing."""
        return tuple("-" if loop == NONE else self.loops[loop].dim for loop in self.chosen[row])


def strategies_of(operator: Operator, sizes: Mapping[str, int], mesh: tuple[int, ...], allowed: Allowed) -> Strategies:
    """All strategies.

    Args:
        operator: the operator.
        sizes: size of every dim, nothing divided.
        mesh: ranks of every axis.
        allowed: what the target can express.

    Raises:
        ConflictError: the target can express none.
    """
    loops = loops_of(operator, sizes)
    choices = [_choices(operator, loops, axis, ranks, allowed) for axis, ranks in enumerate(mesh)]
    rows = [row for row in product(*choices) if _even(row, loops, mesh)]
    if not rows:
        message = f"{operator.name} cannot be divided over the mesh in any way the framework can express"
        raise ConflictError(message, where="--mesh", hint="use smaller axes, other axis names, or --framework pytorch")
    chosen = np.array(rows, dtype=np.int64).reshape(len(rows), len(mesh))
    companions = [_companion_axes(row, loops, mesh) for row in rows]
    return Strategies(
        ranks=mesh,
        loops=loops,
        chosen=chosen,
        inputs=_codes(rows, companions, loops, "inputs", operator),
        outputs=_codes(rows, companions, loops, "outputs", operator),
        parameters=_codes(rows, companions, loops, "parameters", operator),
        degrees=_degrees(rows, companions, loops, mesh),
    )


def _choices(operator: Operator, loops: tuple[Loop, ...], axis: int, ranks: int, allowed: Allowed) -> list[int]:
    if ranks == 1:
        return [NONE]
    able = [i for i, loop in enumerate(loops) if divides(loop.size, ranks) and allowed(operator, loop, axis)]
    return [*([NONE] if allowed(operator, None, axis) else []), *able]


def _even(row: tuple[int, ...], loops: tuple[Loop, ...], mesh: tuple[int, ...]) -> bool:
    return all(divides(loops[i].size, _degree(row, i, mesh)) for i in set(row) if i != NONE)


def _degree(row: tuple[int, ...], loop: int, mesh: tuple[int, ...]) -> int:
    return int(np.prod([ranks for chosen, ranks in zip(row, mesh, strict=True) if chosen == loop], initial=1))


def _companion_axes(row: tuple[int, ...], loops: tuple[Loop, ...], mesh: tuple[int, ...]) -> frozenset[int]:
    """Axes that divide the companion of their loop too: outermost first, as long as its size allows."""
    done: dict[int, int] = {}
    found = set()
    for axis, loop in enumerate(row):
        if loop == NONE or not loops[loop].companion:
            continue
        degree = done.get(loop, 1) * mesh[axis]
        if loops[loop].companion_size % degree == 0:
            done[loop] = degree
            found.add(axis)
    return frozenset(found)


def _codes(
    rows: list[tuple[int, ...]], companions: list[frozenset[int]], loops: tuple[Loop, ...], what: str, operator: Operator
) -> Codes:
    tensors = getattr(operator, what)
    made = np.full((len(rows), len(tensors), len(rows[0])), WHOLE, dtype=np.int8)
    for at, row in enumerate(rows):
        for axis, index in enumerate(row):
            if index == NONE:
                continue
            loop = loops[index]
            codes = list(getattr(loop, what))
            if loop.companion and axis not in companions[at]:
                codes = [BROADCAST if _is_companion(t.dims, loop) else c for c, t in zip(codes, tensors, strict=True)]
            made[at, :, axis] = codes
    return made


def _is_companion(dims: tuple[str, ...], loop: Loop) -> bool:
    return loop.companion in dims and loop.dim not in dims


def _degrees(
    rows: list[tuple[int, ...]], companions: list[frozenset[int]], loops: tuple[Loop, ...], mesh: tuple[int, ...]
) -> dict[str, NDArray[np.float64]]:
    made: dict[str, NDArray[np.float64]] = {}
    for index, loop in enumerate(loops):
        degree = np.array([_degree(row, index, mesh) for row in rows], dtype=np.float64)
        made[loop.dim] = made.get(loop.dim, 1.0) * degree
        if loop.companion:
            parts = [
                float(np.prod([mesh[a] for a in axes if row[a] == index], initial=1))
                for row, axes in zip(rows, companions, strict=True)
            ]
            made[loop.companion] = np.array(parts)
    return made
