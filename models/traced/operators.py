"""From nodes to operators: kind, products, what is read, written and kept; dims still as atoms.

    linear, matmul     2 m n k                                              `_product`
    conv               2 (b s_out) n (c / g) w, as the product it is         `_conv`    (transposed: over s_in, n w columns)
    attention          2 rows heads s t (d_qk + d_v)                        `_attention`
    everything else    bytes, no FLOPs (as torch.utils.flop_counter counts)

with g groups and w the elements of a kernel window. Reshapes and permutations are no operators: what they give is the tensor
they read. What is made of constants alone (masks, positions, shapes) is left out; what is made of parameters alone is not
kept for the backward pass, the parameters are there anyway.

`drafts` gives the operators of a graph, `Draft.flops` their FLOPs at the sizes of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwright.models.operators import OperatorKind
from shardwright.models.traced.records import Traced, TracedNode
from shardwright.models.traced.relations import Relations, node_named

Atoms = tuple[int, ...]
FP32, MASK, INDEX, MOMENTS = 4.0, 1.0, 8.0, 8.0
"""Bytes an element: statistics in fp32, a mask of dropout, indices of a maximum, mean and deviation of a norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor that an operator reads, writes or keeps.

    Attributes:
        name: of the tensor; of one that only the backward pass knows ends in a word like ``#mask``.
        dims: its atoms, outermost first.
        width: bytes an element; None is the job's activation (or parameter) type.
    """

    name: str
    dims: Atoms
    width: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Rows, columns, depth and groups of a product, as atoms (see `models.operators.GemmShape`)."""

    m: Atoms
    n: Atoms
    k: Atoms
    groups: Atoms = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """An attention core: independent rows, heads, lengths of queries and keys, sizes of heads, as atoms."""

    rows: Atoms
    heads: Atoms
    kv_heads: Atoms
    queries: Atoms
    keys: Atoms
    qk: Atoms
    v: Atoms
    causal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One operator whose dims have no names yet.

    Attributes:
        label: short word for its name.
        kind: what decides its cost.
        node: name in the file.
        module: path of its module, where the file tells.
        inputs, outputs, parameters, saved: tensors.
        product, core: its shape, for products and attention.
        flops: of the forward pass, at the sizes of the file, attention in full.
        whole: dims that are mixed: places of a window, sizes of heads.
        over: dims that are normalised over.
        statistics: reductions forward and backward by which ranks can share those.
        summed: dims that are added up.
    """

    label: str
    kind: OperatorKind
    node: str
    module: str
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]
    parameters: tuple[Part, ...] = ()
    saved: tuple[Part, ...] = ()
    product: Product | None = None
    core: Core | None = None
    flops: int = 0
    whole: Atoms = ()
    over: Atoms = ()
    statistics: tuple[int, int] = (1, 1)
    summed: Atoms = ()


def drafts(graph: Traced, relations: Relations) -> tuple[Draft, ...]:
    """The operators of a graph in its order."""
    walk = _Walk(graph, relations)
    made: list[Draft] = []
    for node in graph.nodes:
        with node_named(node):
            draft = walk.draft(node)
            made += [draft] if draft is not None else []
    return tuple(made)


class _Walk:
    """What is known of tensors on the way: aliases, and what depends on data or on parameters."""

    def __init__(self, graph: Traced, relations: Relations) -> None:
        self._graph = graph
        self._relations = relations
        self._root: dict[str, str] = {}
        self._read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
        self.fed = set(graph.inputs)
        self.trained = set(graph.parameters)

    def draft(self, node: TracedNode) -> Draft | None:
        """The operator of a node; None for views, and for what is made of constants."""
        fed = node.op != "constant" and any(name in self.fed for name in node.inputs)
        trained = node.op != "constant" and any(name in self.trained for name in node.inputs)
        if not (fed or trained):
            return None
        self.fed.update(node.outputs if fed else ())
        self.trained.update(node.outputs if trained else ())
        if node.op in {"reshape", "permute"}:
            self._root[node.outputs[0]] = self.root(node.inputs[0])
            return None
        return _SHAPES.get(node.op, _plain)(self, node)

    def root(self, name: str) -> str:
        """The tensor that a view shows."""
        return self._root.get(name, name)

    def size(self, atoms: Atoms) -> int:
        """Product of sizes."""
        return math.prod(self._relations.atoms.size(a) for a in atoms)

    def dims(self, name: str) -> tuple[Atoms, ...]:
        """Atoms of a tensor by dim."""
        count = len(self._graph.tensors[name].shape)
        return tuple(self._relations.at(name, index) for index in range(count))

    def part(self, name: str) -> Part:
        """A tensor as an operator reads it: its root's name, the dims it is seen with."""
        tensor = self._graph.tensors[name]
        return Part(name=self.root(name), dims=self._relations.of(name), width=None if tensor.floating else tensor.width)

    def kept(self, names: tuple[str, ...] | list[str]) -> tuple[Part, ...]:
        """Tensors the backward pass keeps: roots of those that depend on data."""
        roots = [self.root(name) for name in names if name in self.fed]
        return tuple(self.part(name) for name in dict.fromkeys(roots))

    def beside(self, node: TracedNode, word: str, dims: Atoms, width: float) -> Part:
        """A tensor that only the backward pass knows."""
        return Part(name=f"{node.outputs[0]}#{word}", dims=dims, width=width)

    def made(self, node: TracedNode, kind: OperatorKind, saved: tuple[Part, ...], **shape: object) -> Draft:
        """A draft with what the node reads, split into parameters and tensors that are made."""
        roots = {name: self.root(name) for name in node.inputs}
        owned = dict.fromkeys(root for root in roots.values() if root in self._graph.parameters)
        read = [n for n, root in roots.items() if root not in owned and (n in self.fed or n in self.trained)]
        return Draft(
            label=_label(node),
            kind=kind,
            node=node.name,
            module=node.module,
            inputs=tuple(self.part(name) for name in read),
            outputs=tuple(self.part(n) for i, n in enumerate(node.outputs) if i == 0 or n in self._read),
            parameters=tuple(Part(name=name, dims=self._relations.of(name)) for name in owned),
            saved=saved,
            **shape,  # type: ignore[arg-type]
        )


def _plain(w: _Walk, node: TracedNode) -> Draft:
    """Operators that move bytes."""
    if node.op in {"slice", "split", "select", "expand"}:
        return w.made(node, OperatorKind.VIEW, ())
    saves = node.attributes.get("saves", "none")
    out = w.part(node.outputs[0]).dims
    saved: tuple[Part, ...] = ()
    if saves == "inputs":
        saved = w.kept(list(node.inputs)) if not _is_scaling(node) or _operands(w, node) > 1 else ()
    elif saves == "output":
        saved = w.kept([node.outputs[0]])
    elif saves == "listed":
        masks = (w.beside(node, "mask", out, MASK),) if node.attributes["masked"] else ()
        saved = (*w.kept(node.attributes["kept"]), *masks)
    elif saves in {"mask", "index"}:
        saved = (w.beside(node, saves, out, MASK if saves == "mask" else INDEX),)
    if node.op == "pool":
        saved = (*w.kept([node.inputs[0]]), *saved)
    added = node.op == "reduce" and not _ADDS.isdisjoint(node.kind.lower().split("."))
    scalar = node.op == "opaque" and not w.dims(node.outputs[0])  # a loss: of the batch a sum or a mean
    summed = _gone(w, node, ()) if added else _flat(w.dims(node.inputs[0])[:1]) if scalar else ()
    return w.made(node, OperatorKind.ELEMENTWISE, saved, whole=_places(w, node), summed=summed)


_ADDS = frozenset(("sum", "nansum", "mean", "reducesum", "reducesumsquare", "reducemean"))


def _gone(w: _Walk, node: TracedNode, over: Atoms) -> Atoms:
    """Dims that are read and not written, others apart."""
    written = _flat(w.dims(node.outputs[0]))
    return tuple(atom for atom in _flat(w.dims(node.inputs[0])) if atom not in (*written, *over))


def _places(w: _Walk, node: TracedNode) -> Atoms:
    """Dims in which an operator reads beside its own place: of windows and pictures; all but the batch of what is not known."""
    first = {"pool": 2, "resize": 2, "window": 1, "opaque": 1}.get(node.op)
    if first is None:
        return ()
    return tuple(atom for name in (node.inputs[0], node.outputs[0]) for atom in _flat(w.dims(name)[first:]))


def _is_scaling(node: TracedNode) -> bool:
    return node.kind.lower().split(".")[-1] in {"mul", "mul_", "div", "div_", "true_divide"}


def _operands(w: _Walk, node: TracedNode) -> int:
    """Operands of a product that need the other one for their gradient."""
    return sum(1 for name in node.inputs if name in w.fed or name in w.trained)


def _product(w: _Walk, node: TracedNode) -> Draft:
    a, b = node.inputs[:2]
    x, y = w.dims(a), w.dims(b)
    rows: Atoms = ()
    groups: Atoms = ()
    wide: Atoms = ()
    if node.op == "linear":
        columns, depth = y if node.attributes.get("layout", "nk") == "nk" else y[::-1]
        lead = _flat(x[:-1])
    else:
        rows, depth = _ends(x, node.attributes.get("transpose_a", False), first=True)
        columns, _ = _ends(y, node.attributes.get("transpose_b", False), first=False)
        lead, other = _flat(x[:-2]), _flat(y[:-2])
        groups = tuple(atom for atom in lead if atom in other)
        wide = tuple(atom for atom in other if atom not in lead)
    shape = Product(m=(*lead, *rows), n=(*wide, *columns), k=depth, groups=groups)
    flops = 2 * w.size(shape.m) * w.size(shape.n) * w.size(shape.k)
    return w.made(node, OperatorKind.GEMM, w.kept([a, b]), product=shape, flops=flops)


def _ends(dims: tuple[Atoms, ...], turned: bool, *, first: bool) -> tuple[Atoms, Atoms]:
    """Rows and depth of the first operand, columns and depth of the second."""
    if len(dims) == 1:
        return (), dims[0]
    outer, inner = (dims[-1], dims[-2]) if turned else (dims[-2], dims[-1])
    return (outer, inner) if first else (inner, outer)


def _conv(w: _Walk, node: TracedNode) -> Draft:
    x, weight, out = (w.dims(name) for name in (*node.inputs[:2], node.outputs[0]))
    groups, transposed = int(node.attributes.get("groups", 1)), bool(node.attributes.get("transposed"))
    window = _flat(weight[2:])
    first, second = weight[0], weight[1]
    split = first[:1] if groups > 1 and first and w.size(first[:1]) == groups else ()
    per = first[len(split) :]
    if transposed:
        places, columns, depth = _flat(x[2:]), (*second, *window), per
    else:
        places, columns, depth = _flat(out[2:]), per, (*second, *window)
    shape = Product(m=(*split, *x[0], *places), n=columns, k=depth, groups=split)
    flops = 2 * w.size(shape.m) * w.size(shape.n) * w.size(shape.k)
    places = (*_flat(x[2:]), *_flat(out[2:]), *_flat(weight[2:]))
    return w.made(node, OperatorKind.GEMM, w.kept(list(node.inputs[:2])), product=shape, flops=flops, whole=places)


def _norm(w: _Walk, node: TracedNode) -> Draft:
    x = w.dims(node.inputs[0])
    channel = node.attributes.get("over") == "channel"
    over = _flat(x[1:2]) if channel else _flat(x[:-1])
    saved = (*w.kept([node.inputs[0]]), w.beside(node, "moments", over, MOMENTS))
    if channel:  # statistics of pictures stay on a rank, as frameworks keep them unless told otherwise
        return w.made(node, OperatorKind.ELEMENTWISE, saved, whole=_flat(x[2:]))
    return w.made(node, OperatorKind.ELEMENTWISE, saved, over=_flat(x[-1:]))


def _embedding(w: _Walk, node: TracedNode) -> Draft:
    table = w.root(node.inputs[0]) in w.trained
    kind = OperatorKind.EMBEDDING if table else OperatorKind.ELEMENTWISE
    return w.made(node, kind, w.kept(list(node.inputs[1:])))


def _softmax(w: _Walk, node: TracedNode) -> Draft:
    over = w.dims(node.inputs[0])[int(node.attributes.get("dim", -1))]
    return w.made(node, OperatorKind.ELEMENTWISE, w.kept([node.outputs[0]]), over=over)


def _loss(w: _Walk, node: TracedNode) -> Draft:
    """Cross entropy keeps its log-softmax in fp32, and the labels."""
    probabilities = w.beside(node, "softmax", w.part(node.inputs[0]).dims, FP32)
    over = w.dims(node.inputs[0])[int(node.attributes.get("dim", -1))]
    saved = (probabilities, *w.kept(list(node.inputs[1:2])))
    return w.made(node, OperatorKind.LOSS, saved, over=over, statistics=(3, 0), summed=_gone(w, node, over))


def _attention(w: _Walk, node: TracedNode) -> Draft:
    q, k, v = (w.dims(name) for name in node.inputs[:3])
    lead, key_lead = q[:-2], k[:-2]
    heads = lead[-1] if len(lead) > 1 else ()
    kv_heads = key_lead[-1] if len(key_lead) > 1 else ()
    rows = _flat(lead[:-1]) if len(lead) > 1 else _flat(lead)
    if len(heads) > 1:  # several atoms: the outermost counts as heads, the others as rows of their own
        rows, heads = (*rows, *heads[1:]), heads[:1]
    core = Core(
        rows=rows,
        heads=heads,
        kv_heads=kv_heads[:1],
        queries=q[-2],
        keys=k[-2],
        qk=q[-1],
        v=v[-1],
        causal=bool(node.attributes.get("causal", False)),
    )
    pairs = w.size((*rows, *heads, *core.queries, *core.keys))
    statistics = w.beside(node, "stats", _flat(q[:-1]), FP32)
    saved = (*w.kept([*node.inputs[:3], node.outputs[0]]), statistics)
    flops = 2 * pairs * (w.size(core.qk) + w.size(core.v))
    return w.made(node, OperatorKind.ATTENTION, saved, core=core, flops=flops, whole=(*core.qk, *core.v))


def _flat(dims: tuple[Atoms, ...]) -> Atoms:
    return tuple(atom for dim in dims for atom in dim)


def _label(node: TracedNode) -> str:
    """A word for the operator: its own, without namespace and version."""
    word = (node.kind if "+" in node.kind else node.kind.rsplit(".", 1)[-1]).strip("_").lower()
    return {"scaled_dot_product_attention": "attention", "cross_entropy_loss": "cross_entropy"}.get(word, word) or node.op


_SHAPES: Mapping[str, Callable[[_Walk, TracedNode], Draft]] = {
    "linear": _product,
    "matmul": _product,
    "conv": _conv,
    "norm": _norm,
    "embedding": _embedding,
    "softmax": _softmax,
    "loss": _loss,
    "attention": _attention,
}
