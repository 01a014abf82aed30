"""Which dims are the same: dims as products of atoms, atoms as classes with sizes.

A dim of size n is a tuple of atoms whose sizes multiply to n (none for 1). Two dims that must be equal are aligned from the
left:

    equal sizes              the atoms become one class                              `Atoms.equate`
    one divides the other    the larger is split into the smaller and a rest, wherever it occurs (`Atoms.split`)

so that a projection's output of h = a d columns, viewed as a heads of size d, is from then on the two atoms a and d in the
weight too. `Atoms.regroup` gives the dims of a reshaped tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

Dim = tuple[int, ...]


class Atoms:
    """Union of equal atoms, and how split ones are made up."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._parts: dict[int, Dim] = {}

    def new(self, size: int) -> Dim:
        """A dim of its own; of size 1 it has no atom."""
        if size == 1:
            return ()
        self._parent.append(len(self._parent))
        self._size.append(size)
        return (len(self._parent) - 1,)

    def size(self, atom: int) -> int:
        """Size of an atom."""
        return self._size[atom]

    def expanded(self, dim: Sequence[int]) -> Dim:
        """The atoms of a dim as of now: classes by their least member, split ones by their parts."""
        made: list[int] = []
        stack = list(reversed(dim))
        while stack:
            root = self._root(stack.pop())
            parts = self._parts.get(root)
            if parts is None:
                made.append(root)
            else:
                stack.extend(reversed(parts))
        return tuple(made)

    def equate(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Makes two dims one; False, and nothing done, where their atoms cannot be aligned."""
        left, right = list(self.expanded(a)), list(self.expanded(b))
        if not _alignable([self._size[x] for x in left], [self._size[x] for x in right]):
            return False
        while left and right:
            x, y = self._root(left.pop(0)), self._root(right.pop(0))
            if x in self._parts or y in self._parts:
                left, right = [*self.expanded((x,)), *left], [*self.expanded((y,)), *right]
            elif self._size[x] == self._size[y]:
                self._join(x, y)
            elif self._size[x] < self._size[y]:
                right.insert(0, self.split(y, self._size[x])[1])
                self._join(self._parts[y][0], x)
            else:
                left.insert(0, self.split(x, self._size[y])[1])
                self._join(self._parts[x][0], y)
        return True

    def split(self, atom: int, outer: int) -> Dim:
        """Splits an atom into parts of `outer` and size / outer; both must be above 1."""
        parts = (*self.new(outer), *self.new(self._size[atom] // outer))
        self._parts[atom] = parts
        return parts

    def regroup(self, dims: Sequence[Dim], shape: Sequence[int]) -> tuple[Dim, ...]:
        """The dims of a tensor viewed in another shape.

        Atoms are dealt out from the left; where a size takes a part of an atom it is split. From the first size that cannot be
        made of what is left the dims are new, except that those counted from the right are tried in the same way.
        """
        flat = list(self.expanded(tuple(chain.from_iterable(dims))))
        front, flat = self._dealt(flat, list(shape))
        rest = list(shape)[len(front) :]
        if not rest:
            return tuple(front)
        back: list[Dim] = []
        while rest and flat and self._size[flat[-1]] == rest[-1]:
            back.insert(0, (flat.pop(),))
            rest.pop()
        return (*front, *(self.new(size) for size in rest), *back)

    def _dealt(self, flat: list[int], shape: list[int]) -> tuple[list[Dim], list[int]]:
        made: list[Dim] = []
        for position, size in enumerate(shape):
            taken, left, wanted = [], list(flat), size
            while wanted > 1 and left:
                atom = left.pop(0)
                each = self._size[atom]
                if wanted % each == 0:
                    taken.append(atom)
                    wanted //= each
                elif each % wanted == 0 and self._fits(each // wanted, left, shape[position + 1 :]):
                    outer, inner = self.split(atom, wanted)
                    taken.append(outer)
                    left.insert(0, inner)
                    wanted = 1
                else:
                    break
            if wanted > 1:
                return made, flat
            made.append(tuple(taken))
            flat = left
        return made, flat

    def _fits(self, rest: int, left: list[int], shape: list[int]) -> bool:
        """Whether what is left of a split atom can begin the next size."""
        following = next((size for size in shape if size > 1), None)
        return following is not None and (following % rest == 0 or rest % following == 0)

    def _join(self, a: int, b: int) -> None:
        x, y = self._root(a), self._root(b)
        if x != y:
            low, high = sorted((x, y))
            self._parent[high] = low

    def _root(self, atom: int) -> int:
        while self._parent[atom] != atom:
            self._parent[atom] = self._parent[self._parent[atom]]
            atom = self._parent[atom]
        return atom


def _alignable(left: list[int], right: list[int]) -> bool:
    """Whether products of sizes can be aligned from the left by dividing the larger."""
    left, right = list(left), list(right)
    while left and right:
        x, y = left.pop(0), right.pop(0)
        if x < y and y % x == 0:
            right.insert(0, y // x)
        elif y < x and x % y == 0:
            left.insert(0, x // y)
        elif x != y:
            return False
    return not left and not right
