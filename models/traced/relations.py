"""Dims of every tensor of a graph, the same where the operators say so.

`relate` walks the nodes once. Each word of `records.OPERATIONS` has one rule here that makes the dims of what the node writes
and equates dims of what it reads:

    pointwise     operands aligned at the right, dims of size 1 broadcast
    linear        x [.., k], weight [n, k]            -> [.., n]
    matmul        a [.., m, k], b [.., k, n]          -> [.., m, n]
    conv          x [b, c, ..], weight [n, c / g, ..] -> [b, n, ..]     c = g (c / g), n = g (n / g)
    attention     q [.., s, e], k [.., t, e], v [.., t, f] -> [.., s, f]
    split         an even split divides the dim into (parts, size), so that all parts have one dim

What no rule can say is a new dim; nothing is ever guessed to be equal because sizes are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shardwright.errors import DamagedFileError
from shardwright.models.traced.atoms import Atoms, Dim
from shardwright.models.traced.records import Traced, TracedNode

Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """Dims of the tensors of a graph, as atoms.

    Attributes:
        atoms: classes of equal dims.
        dims: of each tensor, outermost first.
    """

    atoms: Atoms
    dims: dict[str, Dims]

    def of(self, name: str) -> tuple[int, ...]:
        """All atoms of a tensor, outermost first."""
        return tuple(atom for dim in self.dims[name] for atom in self.atoms.expanded(dim))

    def at(self, name: str, index: int) -> Dim:
        """The atoms of one dim of a tensor."""
        return self.atoms.expanded(self.dims[name][index])


def relate(graph: Traced) -> Relations:
    """The dims of all tensors of a graph."""
    atoms = Atoms()
    made = {name for node in graph.nodes for name in node.outputs}
    dims = {name: tuple(map(atoms.new, t.shape)) for name, t in graph.tensors.items() if name not in made}
    found = _Walk(graph, Relations(atoms=atoms, dims=dims))
    for node in graph.nodes:
        with node_named(node):
            _RULES.get(node.op, _free)(found, node)
    return found.relations


@contextmanager
def node_named(node: TracedNode) -> Iterator[None]:
    """Names the node whose operands its rule cannot take.

    Raises:
        DamagedFileError: a rule failed within.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        said = f"node {node.name}: {node.kind} has operands that it cannot have ({type(error).__name__})"
        raise DamagedFileError(said, where="MODEL", hint="export the model again") from error


class _Walk:
    """Rules' view of the graph: shapes, and dims so far."""

    def __init__(self, graph: Traced, relations: Relations) -> None:
        self.relations = relations
        self.atoms = relations.atoms
        self._graph = graph

    def dims(self, name: str) -> Dims:
        return self.relations.dims[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._graph.tensors[name].shape

    def size(self, dim: Dim) -> int:
        size = 1
        for atom in dim:
            size *= self.atoms.size(atom)
        return size

    def equate(self, a: Dim, b: Dim) -> None:
        if self.size(a) == self.size(b):
            self.atoms.equate(a, b)

    def give(self, name: str, dims: Sequence[Dim]) -> None:
        """The dims of a tensor; where a size says otherwise the dim is new."""
        shape = self.shape(name)
        if len(dims) != len(shape):
            self.relations.dims[name] = tuple(map(self.atoms.new, shape))
            return
        pairs = zip(dims, shape, strict=True)
        self.relations.dims[name] = tuple(d if self.size(d) == size else self.atoms.new(size) for d, size in pairs)

    def broadcast(self, parts: Sequence[Dims], shape: Sequence[int]) -> Dims:
        """Dims of operands aligned at the right, equated where neither is broadcast."""
        made: list[Dim] = []
        for back in range(1, len(shape) + 1):
            size = shape[-back]
            same = [part[-back] for part in parts if len(part) >= back and self.size(part[-back]) == size]
            for other in same[1:]:
                self.equate(same[0], other)
            made.insert(0, same[0] if same else self.atoms.new(size))
        return tuple(made)


def _free(w: _Walk, node: TracedNode) -> None:
    for name in node.outputs:
        w.give(name, tuple(map(w.atoms.new, w.shape(name))))


def _pointwise(w: _Walk, node: TracedNode) -> None:
    for name in node.outputs:
        w.give(name, w.broadcast([w.dims(i) for i in node.inputs], w.shape(name)))


def _same(w: _Walk, node: TracedNode) -> None:
    """Dims of the first operand, position by position, where sizes agree."""
    for name in node.outputs:
        source = w.dims(node.inputs[0])
        w.give(name, source if len(source) == len(w.shape(name)) else tuple(map(w.atoms.new, w.shape(name))))


def _first(w: _Walk, node: TracedNode) -> None:
    """An operator nobody knows: only the outermost dim, the batch, is taken for that of the first operand."""
    for name in node.outputs:
        shape = w.shape(name)
        rest = tuple(map(w.atoms.new, shape[1:]))
        first = next((w.dims(i)[0] for i in node.inputs if w.dims(i) and shape and w.shape(i)[0] == shape[0]), None)
        w.give(name, (*(() if not shape else (first if first is not None else w.atoms.new(shape[0]),)), *rest))


def _linear(w: _Walk, node: TracedNode) -> None:
    x, weight = w.dims(node.inputs[0]), w.dims(node.inputs[1])
    columns, depth = weight if node.attributes.get("layout", "nk") == "nk" else weight[::-1]
    w.equate(x[-1], depth)
    w.give(node.outputs[0], (*x[:-1], columns))
    if len(node.inputs) > 2:
        w.broadcast([w.dims(node.outputs[0]), w.dims(node.inputs[2])], w.shape(node.outputs[0]))


def _matmul(w: _Walk, node: TracedNode) -> None:
    a, b = w.dims(node.inputs[0]), w.dims(node.inputs[1])
    rows, depth = _turned(a, node.attributes.get("transpose_a", False), vector=((), a[0]) if len(a) == 1 else None)
    other, columns = _turned(b, node.attributes.get("transpose_b", False), vector=(b[0], ()) if len(b) == 1 else None)
    w.equate(depth, other)
    shape = w.shape(node.outputs[0])
    ends = (*((rows,) if len(a) > 1 else ()), *((columns,) if len(b) > 1 else ()))
    lead = w.broadcast([a[:-2], b[:-2]], shape[: len(shape) - len(ends)])
    w.give(node.outputs[0], (*lead, *ends))
    if len(node.inputs) > 2:
        w.broadcast([w.dims(node.outputs[0]), w.dims(node.inputs[2])], shape)


def _turned(dims: Dims, transposed: bool, vector: tuple[Dim, Dim] | None) -> tuple[Dim, Dim]:
    if vector is not None:
        return vector
    return (dims[-1], dims[-2]) if transposed else (dims[-2], dims[-1])


def _conv(w: _Walk, node: TracedNode) -> None:
    x, weight = w.dims(node.inputs[0]), w.dims(node.inputs[1])
    groups, shape = int(node.attributes.get("groups", 1)), w.shape(node.outputs[0])
    group = w.atoms.new(groups)
    first, second = weight[0], weight[1]
    if node.attributes.get("transposed"):
        w.equate(x[1], first)
        channels = (*group, *second)
        w.equate(first, (*group, *w.atoms.new(max(w.size(first) // groups, 1))))
    else:
        w.equate(x[1], (*group, *second))
        channels = first
        w.equate(first, (*group, *w.atoms.new(max(w.size(first) // groups, 1))))
    w.give(node.outputs[0], (x[0], channels, *_windows(w, x[2:], shape[2:])))
    if len(node.inputs) > 2 and w.dims(node.inputs[2]):
        w.equate(w.dims(node.inputs[2])[0], channels)


def _windows(w: _Walk, dims: Sequence[Dim], shape: Sequence[int]) -> list[Dim]:
    """Dims that a window moves over: as they were where the size stays."""
    return [d if w.size(d) == size else w.atoms.new(size) for d, size in zip(dims, shape, strict=True)]


def _norm(w: _Walk, node: TracedNode) -> None:
    x = w.dims(node.inputs[0])
    for name in node.inputs[1:]:
        given = w.dims(name)
        if node.attributes.get("over") == "channel":
            if len(given) == 1 and len(x) > 1:
                w.equate(given[0], x[1])
        else:
            w.broadcast([x, given], w.shape(node.inputs[0]))
    w.give(node.outputs[0], x)
    for name in node.outputs[1:]:
        w.give(
            name, w.broadcast([x], w.shape(name)) if len(w.shape(name)) == len(x) else tuple(map(w.atoms.new, w.shape(name)))
        )


def _embedding(w: _Walk, node: TracedNode) -> None:
    table, indices = w.dims(node.inputs[0]), w.dims(node.inputs[1])
    shape = w.shape(node.outputs[0])
    if node.attributes.get("bag"):
        lead = [d for i in node.inputs[1:] for d in w.dims(i)[:1] if w.size(d) == shape[0]]
        w.give(node.outputs[0], (lead[0] if lead else w.atoms.new(shape[0]), table[1]))
        for name in node.outputs[1:]:
            w.give(name, tuple(map(w.atoms.new, w.shape(name))))
        return
    axis = int(node.attributes.get("dim", 0))
    w.give(node.outputs[0], (*table[:axis], *indices, *table[axis + 1 :]))


def _attention(w: _Walk, node: TracedNode) -> None:
    q, k, v = (w.dims(name) for name in node.inputs[:3])
    w.equate(q[-1], k[-1])
    w.equate(k[-2], v[-2])
    for a, b, c in zip(q[:-2], k[:-2], v[:-2], strict=False):
        w.equate(b, c)
        w.equate(a, b)
    if len(node.inputs) > 3:
        mask = w.dims(node.inputs[3])
        w.broadcast([(*q[:-1], k[-2]), mask], (*w.shape(node.inputs[0])[:-1], w.shape(node.inputs[1])[-2]))
    w.give(node.outputs[0], (*q[:-1], v[-1]))
    for name in node.outputs[1:]:
        w.give(name, q[:-1] if len(w.shape(name)) == len(q) - 1 else tuple(map(w.atoms.new, w.shape(name))))


def _reduce(w: _Walk, node: TracedNode) -> None:
    x = w.dims(node.inputs[0])
    axes = node.attributes.get("dims")
    gone = set(range(len(x))) if axes is None else {a % len(x) for a in axes} if x else set()
    keep = bool(node.attributes.get("keep", False))
    left = tuple(() if i in gone else d for i, d in enumerate(x) if keep or i not in gone)
    for name in node.outputs:
        w.give(name, left)


def _pool(w: _Walk, node: TracedNode) -> None:
    x = w.dims(node.inputs[0])
    for name in node.outputs:
        shape = w.shape(name)
        w.give(name, (*x[:2], *_windows(w, x[2:], shape[2:])) if len(shape) == len(x) else ())


def _reshape(w: _Walk, node: TracedNode) -> None:
    w.give(node.outputs[0], w.atoms.regroup(w.dims(node.inputs[0]), w.shape(node.outputs[0])))


def _permute(w: _Walk, node: TracedNode) -> None:
    x = w.dims(node.inputs[0])
    w.give(node.outputs[0], tuple(x[i] for i in node.attributes["order"]))


def _expand(w: _Walk, node: TracedNode) -> None:
    for source, name in zip(node.inputs, node.outputs, strict=False):
        w.give(name, w.broadcast([w.dims(source)], w.shape(name)))


def _slice(w: _Walk, node: TracedNode) -> None:
    _same(w, node)


def _select(w: _Walk, node: TracedNode) -> None:
    x, axis = w.dims(node.inputs[0]), int(node.attributes["dim"])
    for name in node.outputs:
        w.give(name, (*x[:axis], *x[axis + 1 :]))


def _split(w: _Walk, node: TracedNode) -> None:
    x, axis = w.dims(node.inputs[0]), int(node.attributes["dim"])
    sizes = {w.shape(name)[axis] for name in node.outputs}
    whole = w.size(x[axis])
    part = None
    if len(sizes) == 1:
        size = next(iter(sizes))
        if size and whole % size == 0 and whole > size:
            part = w.atoms.regroup((x[axis],), (whole // size, size))[1]
    for name in node.outputs:
        own = part if part is not None else w.atoms.new(w.shape(name)[axis])
        w.give(name, (*x[:axis], own, *x[axis + 1 :]))


def _concat(w: _Walk, node: TracedNode) -> None:
    axis, parts = int(node.attributes["dim"]), [w.dims(name) for name in node.inputs if w.shape(name) != (0,)]
    for other in parts[1:]:
        for index, (a, b) in enumerate(zip(parts[0], other, strict=False)):
            if index != axis:
                w.equate(a, b)
    shape = w.shape(node.outputs[0])
    source = parts[0] if parts and len(parts[0]) == len(shape) else tuple(map(w.atoms.new, shape))
    own = source[axis] if len(parts) == 1 else w.atoms.new(shape[axis])
    w.give(node.outputs[0], (*source[:axis], own, *source[axis + 1 :]))


def _loss(w: _Walk, node: TracedNode) -> None:
    logits, labels = w.dims(node.inputs[0]), w.dims(node.inputs[1])
    axis = node.attributes.get("dim")
    rows = logits if axis is None else (*logits[: axis % len(logits)], *logits[axis % len(logits) + 1 :])
    if len(labels) == len(rows):
        for a, b in zip(rows, labels, strict=True):
            w.equate(a, b)
    for name in node.outputs:
        w.give(name, rows if len(w.shape(name)) == len(rows) else tuple(map(w.atoms.new, w.shape(name))))


_RULES: Mapping[str, Callable[[_Walk, TracedNode], None]] = {
    "pointwise": _pointwise,
    "copy": _pointwise,
    "softmax": _same,
    "window": _same,
    "slice": _slice,
    "linear": _linear,
    "matmul": _matmul,
    "conv": _conv,
    "norm": _norm,
    "embedding": _embedding,
    "attention": _attention,
    "reduce": _reduce,
    "pool": _pool,
    "resize": _pool,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "select": _select,
    "split": _split,
    "concat": _concat,
    "loss": _loss,
    "opaque": _first,
}
