"""From a graph as read to a `ModelGraph`: layers with named dims, equal ones folded.

    fused                       elementwise operators that run as one
    relate, named, drafts       dims, their names, operators
    runs, divide                which operators make a layer
    _Unit                       a layer with names of its own: equal layers become equal records     (folded by `_fold`)

Names within a layer are made from its operators in their order, ``linear``, ``linear_2``; what comes from other layers is
``in``, ``in_2``. A parameter that several layers read belongs to the first; to the others it is a tensor they are given. One
that embedding and head share keeps one name in both, as tied embeddings do; other names of the two differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwright.errors import UnsupportedError
from shardwright.models.graph import (
    AttentionShape,
    GemmShape,
    LayerGraph,
    ModelGraph,
    Normalised,
    Operator,
    OperatorKind,
    TensorSpec,
)
from shardwright.models.spec import MAX_LAYERS, ModelSpec
from shardwright.models.traced.clustering import Division, cut_bytes, divide
from shardwright.models.traced.fusing import fused
from shardwright.models.traced.naming import Named, named
from shardwright.models.traced.operators import Atoms, Core, Draft, Part, drafts
from shardwright.models.traced.origin import Crossing, Origin
from shardwright.models.traced.records import Traced
from shardwright.models.traced.relations import Relations, relate
from shardwright.models.traced.repeats import runs, signature

ACTIVATION_BYTES = 2.0
_PARAMETERS = ("weight", "bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A graph with dims, names and operators."""

    graph: Traced
    relations: Relations
    named: Named
    drafts: tuple[Draft, ...]
    owners: dict[str, int]
    tied: frozenset[str]

    def size(self, atoms: Iterable[int]) -> int:
        return math.prod(self.relations.atoms.size(a) for a in atoms)


def model_graph(graph: Traced, where: str) -> ModelGraph:
    """The model of a graph.

    Args:
        graph: as a reader made it.
        where: the file, for messages.

    Raises:
        UnsupportedError: no batch, nothing to train, or more layers than are modelled.
    """
    graph = fused(graph)
    relations = relate(graph)
    names = named(graph, relations, where)
    made = drafts(graph, relations)
    if not any(draft.parameters for draft in made):
        raise UnsupportedError("the graph has no parameters to train", where=where, hint="export a model with its parameters")
    sizes = {p.name: _bytes(p, relations) for d in made for p in (*d.inputs, *d.outputs)}
    cuts = cut_bytes(made, sizes)
    flops = [draft.flops for draft in made]
    found = runs([signature(d, relations) for d in made], flops, cuts)
    division = divide(flops, cuts, found)
    if len(division.layers) > MAX_LAYERS:
        raise UnsupportedError(f"{len(division.layers)} layers", where=where, hint=f"at most {MAX_LAYERS:,} are modelled")
    spans = (division.embedding, *division.layers, division.head)
    owners, tied = _owners(made, spans)
    read = _Read(graph=graph, relations=relations, named=names, drafts=made, owners=owners, tied=tied)
    return _assembled(read, division, spans)


def _assembled(read: _Read, division: Division, spans: Sequence[tuple[int, int]]) -> ModelGraph:
    units = [_Unit(read, index, span).layer() for index, span in enumerate(spans)]
    kinds, pattern = _fold(units[1:-1])
    origin = Origin(
        source=read.graph.source,
        batch=read.relations.atoms.size(read.named.batch),
        seq=None if read.named.seq is None else read.relations.atoms.size(read.named.seq),
        crossings=tuple(_crossings(read, place) for place in (*(low for low, _ in division.layers), division.layers[-1][1])),
        modules=tuple(_module(read.drafts[low:high]) for low, high in division.layers),
        operators=len(read.drafts),
    )
    return ModelGraph(
        name=read.graph.name,
        spec=bare_spec(read.graph.name, len(pattern), read.graph.source),
        embedding=replace(units[0], kind="embedding"),
        layer_kinds=kinds,
        pattern=pattern,
        head=replace(units[-1], kind="head"),
        tied_embeddings=bool(read.tied),
        origin=origin,
    )


def bare_spec(name: str, layers: int, source: str) -> ModelSpec:
    """What an architecture says of a model that was read from a graph: its name and how many layers it has."""
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        vocab=1,
        positions="none",
        mixers=("none",),
        mlps=("none",),
        source=source,
    )


def _fold(layers: Sequence[LayerGraph]) -> tuple[tuple[LayerGraph, ...], tuple[int, ...]]:
    """Distinct layers in the order they first come, and the kind of each layer."""
    kinds: dict[object, int] = {}
    distinct: list[LayerGraph] = []
    pattern: list[int] = []
    for layer in layers:
        key = (layer.operators, tuple(sorted(layer.dims.items())), layer.border)
        if key not in kinds:
            kinds[key] = len(kinds)
            distinct.append(replace(layer, kind=f"layer-{len(kinds)}"))
        pattern.append(kinds[key])
    return tuple(distinct), tuple(pattern)


def _owners(made: Sequence[Draft], spans: Sequence[tuple[int, int]]) -> tuple[dict[str, int], frozenset[str]]:
    """The unit each parameter belongs to, and the parameters that the embedding and the head share."""
    users: dict[str, list[int]] = {}
    for index, (low, high) in enumerate(spans):
        for draft in made[low:high]:
            for part in draft.parameters:
                found = users.setdefault(part.name, [])
                if index not in found:
                    found.append(index)
    last = len(spans) - 1
    tied = frozenset(name for name, found in users.items() if found == [0, last])
    return {name: found[0] for name, found in users.items()}, tied


def _crossings(read: _Read, place: int) -> tuple[Crossing, ...]:
    """What passes over a position of the operators, equal tensors apart."""
    before = {part.name: part for draft in read.drafts[:place] for part in draft.outputs}
    behind = dict.fromkeys(part.name for draft in read.drafts[place:] for part in draft.inputs)
    made: list[Crossing] = []
    for name in behind:
        if name in before:
            dims = read.relations.atoms.expanded(before[name].dims)
            free = Counter(a for a in dims if a in {read.named.batch, read.named.seq})
            fixed = read.size(a for a in dims if a not in free)
            seq = 0 if read.named.seq is None else free[read.named.seq]
            made.append(Crossing(elements=fixed, batch=free[read.named.batch], seq=seq, width=before[name].width))
    return tuple(made)


def _module(made: Sequence[Draft]) -> str:
    """The longest module path that all operators of a layer stand in."""
    paths = [draft.module.split(".") for draft in made if draft.module]
    if not paths:
        return ""
    shared = next((i for i, words in enumerate(zip(*paths, strict=False)) if len(set(words)) > 1), min(map(len, paths)))
    return ".".join(paths[0][:shared])


def _bytes(part: Part, relations: Relations) -> float:
    width = ACTIVATION_BYTES if part.width is None else part.width
    return width * math.prod(relations.atoms.size(a) for a in part.dims)


class _Unit:
    """A layer while its dims, tensors and operators are named."""

    def __init__(self, read: _Read, index: int, span: tuple[int, int]) -> None:
        self._read = read
        self._index = index
        self._drafts = read.drafts[span[0] : span[1]]
        self._prefix = "head." if span[1] == len(read.drafts) else ""
        self._made = {part.name for draft in self._drafts for part in draft.outputs}
        self._dims: dict[str, int] = {}
        self._atoms: dict[int, str] = {}
        self._tensors: dict[str, str] = {}
        self._used: Counter[str] = Counter()
        self._border: dict[str, TensorSpec] = {}

    def layer(self) -> LayerGraph:
        """The layer."""
        operators = tuple(self._operator(draft) for draft in self._drafts)
        return LayerGraph(kind="layer", dims=self._dims, operators=operators, border=tuple(self._border.values()))

    def _operator(self, draft: Draft) -> Operator:
        name = self._unused(draft.label)
        owned = [p for p in draft.parameters if self._read.owners[p.name] == self._index or p.name in self._read.tied]
        given = [p for p in draft.parameters if p not in owned and draft.kind is not OperatorKind.EMBEDDING]
        inputs = tuple(self._spec(part) for part in (*draft.inputs, *given))
        outputs = tuple(self._output(part, name, j, len(draft.outputs)) for j, part in enumerate(draft.outputs))
        return Operator(
            name=name,
            kind=draft.kind,
            module=name,
            inputs=inputs,
            outputs=outputs,
            parameters=tuple(self._parameter(part, name, draft, j) for j, part in enumerate(owned)),
            saved=tuple(self._kept(part, name) for part in draft.saved),
            gemm=self._gemm(draft),
            attention=None if draft.core is None else self._attention(draft.core),
            quantizable=False,
            whole=self._names(draft.whole),
            read_whole=self._keys(draft, inputs),
            normalised=self._over(draft),
            summed=self._names(draft.summed),
        )

    def _over(self, draft: Draft) -> Normalised | None:
        if not draft.over:
            return None
        return Normalised(dims=self._names(draft.over), forward=draft.statistics[0], backward=draft.statistics[1])

    def _keys(self, draft: Draft, inputs: tuple[TensorSpec, ...]) -> tuple[tuple[str, str], ...]:
        """Keys and values are read at all positions, whichever queries they serve."""
        if draft.core is None:
            return ()
        return tuple((tensor.name, dim) for tensor in inputs[1:3] for dim in self._names(draft.core.keys))

    def _unused(self, word: str) -> str:
        self._used[word] += 1
        return word if self._used[word] == 1 else f"{word}_{self._used[word]}"

    def _name(self, atom: int) -> str:
        found = self._atoms.get(atom)
        if found is None:
            base = self._read.named.of(atom)
            found = self._atoms[atom] = base if base in {"batch", "seq"} else self._unused(base)
            if base not in {"batch", "seq"}:
                self._dims[found] = self._read.relations.atoms.size(atom)
        return found

    def _names(self, atoms: Atoms) -> tuple[str, ...]:
        return tuple(self._name(atom) for atom in self._read.relations.atoms.expanded(atoms))

    def _spec(self, part: Part) -> TensorSpec:
        """A tensor that is read: of this layer, or from outside."""
        known = self._tensors.get(part.name)
        name = known if known is not None else self._unused("in")
        self._tensors[part.name] = name
        spec = TensorSpec(name=name, dims=self._names(part.dims), bytes_per_element=part.width)
        if part.name not in self._made and part.name not in self._read.graph.inputs:
            self._border.setdefault(part.name, spec)
        return spec

    def _output(self, part: Part, operator: str, index: int, count: int) -> TensorSpec:
        name = operator if count == 1 else f"{operator}.{index + 1}"
        self._tensors[part.name] = name
        return TensorSpec(name=name, dims=self._names(part.dims), bytes_per_element=part.width)

    def _kept(self, part: Part, operator: str) -> TensorSpec:
        _, mark, word = part.name.partition("#")
        if mark:
            return TensorSpec(name=f"{operator}.{word}", dims=self._names(part.dims), bytes_per_element=part.width)
        return self._spec(part)

    def _parameter(self, part: Part, operator: str, draft: Draft, index: int) -> TensorSpec:
        known = self._tensors.get(part.name)
        if known is None:
            word = _PARAMETERS[index] if index < len(_PARAMETERS) else f"p{index}"
            known = self._tensors[part.name] = self._tied(part.name) or f"{self._prefix}{operator}.{word}"
        return TensorSpec(name=known, dims=tuple(self._fixed(name) for name in self._names(part.dims)))

    def _tied(self, name: str) -> str:
        """The name of a parameter that embedding and head share, empty for others."""
        return f"tied.{sorted(self._read.tied).index(name)}" if name in self._read.tied else ""

    def _fixed(self, name: str) -> str:
        """The dim of a parameter: a table with a row for each place of the sequence has rows of its own."""
        if name != "seq" or self._read.named.seq is None:
            return name
        self._dims["positions"] = self._read.relations.atoms.size(self._read.named.seq)
        return "positions"

    def _gemm(self, draft: Draft) -> GemmShape | None:
        shape = draft.product
        if shape is None:
            return None
        return GemmShape(
            m=self._names(shape.m), n=(self._names(shape.n),), k=self._names(shape.k), groups=self._names(shape.groups)
        )

    def _attention(self, core: Core) -> AttentionShape:
        return AttentionShape(
            rows=self._names(core.rows),
            heads=self._one(core.heads, "heads"),
            kv_heads=self._one(core.kv_heads, "kv_heads"),
            queries=self._one(core.queries, "tokens"),
            keys=self._one(core.keys, "tokens"),
            qk_dim=self._one(core.qk, "head_dim"),
            v_dim=self._one(core.v, "head_dim"),
            causal=core.causal,
        )

    def _one(self, atoms: Atoms, word: str) -> str:
        """One name for a dim of none or several atoms: a dim of the layer of its own."""
        names = self._names(atoms)
        if len(names) == 1:
            return names[0]
        joined = "+".join(names) or f"one_{word}"
        self._dims[joined] = self._read.size(self._read.relations.atoms.expanded(atoms))
        return joined
