"""From layers to a program: sections of operators, repeated ones folded, and the streams between them.

A *section* is a layer with a weight (how many equal layers it stands for). Between sections runs the stream: what a section's
last operator writes is what the next section's first operators read, so many times (`Junction`). A repeated layer is one
section that feeds itself: the cyclic boundary makes its answer one that can be repeated.

    folded(layer, n)        one section of weight n, n times to itself
    folded_model(graph)     embedding, distinct layers, head, with as many junctions as the pattern has
    unfolded(layer, n)      n sections of weight one, the last feeding the first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwright.errors import InvalidValueError
from shardwright.models.graph import LayerGraph, ModelGraph, TensorSpec
from shardwright.planner.search.operators.amounts import Pricing
from shardwright.planner.search.operators.context import Context
from shardwright.planner.search.operators.edges import EdgeTable, Port, edge_table
from shardwright.planner.search.operators.nodes import NodeTable, node_table
from shardwright.planner.search.operators.parts import apart
from shardwright.planner.search.operators.program import Node, Program, Reader, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A layer and how many equal ones it stands for."""

    layer: LayerGraph
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Junction:
    """The stream from one section to another, so many times."""

    source: int
    target: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Sections with their tables.

    Attributes:
        sections: layers, their operators apart.
        tables: of all operators, in the order of sections and operators.
        section: of each table.
        edges: tables of tensors.
        ports: writer and readers of each of them.
        weights: of each of them.
    """

    sections: tuple[Section, ...]
    tables: tuple[NodeTable, ...]
    section: tuple[int, ...]
    edges: tuple[EdgeTable, ...]
    ports: tuple[tuple[Port, tuple[Port, ...]], ...]
    weights: tuple[float, ...]

    def program(self, pricing: Pricing) -> Program:
        """The integer program."""
        nodes = tuple(
            Node(name=table.name, costs=table.costs, weight=self.sections[at].weight, section=at)
            for table, at in zip(self.tables, self.section, strict=True)
        )
        return Program(nodes=nodes, tensors=tuple(self._tensor(at) for at in range(len(self.edges))), pricing=pricing)

    def _tensor(self, at: int) -> Tensor:
        edge, (writer, readers) = self.edges[at], self.ports[at]
        made = tuple(Reader(node=r.node, layout=layout) for r, layout in zip(readers, edge.reads, strict=True))
        return Tensor(
            name=edge.tensor.name,
            writer=writer.node,
            written=edge.writes,
            readers=made,
            costs=edge.costs,
            weight=self.weights[at],
        )


def folded(layer: LayerGraph, count: float = 1.0) -> tuple[list[Section], list[Junction]]:
    """One layer that stands for many."""
    return [Section(layer=layer, weight=count)], [Junction(source=0, target=0, weight=count)]


def unfolded(layer: LayerGraph, count: int) -> tuple[list[Section], list[Junction]]:
    """Equal layers, each by itself, the last feeding the first."""
    sections = [Section(layer=layer) for _ in range(count)]
    return sections, [Junction(source=at, target=(at + 1) % count) for at in range(count)]


def folded_model(graph: ModelGraph) -> tuple[list[Section], list[Junction]]:
    """Embedding, the distinct layers, and the head; without the blocks that predict further tokens."""
    counts = graph.kind_counts
    kinds = [Section(layer=kind, weight=float(n)) for kind, n in zip(graph.layer_kinds, counts, strict=True)]
    sections = [Section(layer=graph.embedding), *kinds, Section(layer=graph.head)]
    order = [0, *(1 + kind for kind in graph.pattern), len(sections) - 1]
    full = [at for at, section in enumerate(sections) if section.layer.operators]
    steps = Counter(pairwise(full.index(at) for at in order if at in full))
    return [sections[at] for at in full], [Junction(source=a, target=b, weight=float(n)) for (a, b), n in sorted(steps.items())]


def assemble(sections: Sequence[Section], junctions: Sequence[Junction], context: Context) -> Assembly:
    """All tables of sections; those of equal layers are computed once."""
    layers = {id(s.layer): apart(s.layer) for s in sections}
    parted = [Section(layer=layers[id(s.layer)], weight=s.weight) for s in sections]
    known = {id(layer): _tables(layer, context) for layer in layers.values()}
    tables: list[NodeTable] = []
    section: list[int] = []
    first: list[int] = []
    for at, part in enumerate(parted):
        first.append(len(tables))
        tables += known[id(part.layer)]
        section += [at] * len(part.layer.operators)
    made = _Edges(context=context, tables=tables, edges=[], ports=[], weights=[], known={})
    for at, part in enumerate(parted):
        for writer, readers in _inside(part.layer):
            made.add(part, _moved(writer, first[at]), [_moved(r, first[at]) for r in readers], part.weight)
    for junction in junctions:
        source, target = parted[junction.source], parted[junction.target]
        for writer, readers in _streams(source.layer, target.layer, context):
            moved = [_moved(r, first[junction.target]) for r in readers]
            made.add(source, _moved(writer, first[junction.source]), moved, junction.weight)
    return Assembly(
        sections=tuple(parted),
        tables=tuple(tables),
        section=tuple(section),
        edges=tuple(made.edges),
        ports=tuple(made.ports),
        weights=tuple(made.weights),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
    context: Context
    tables: list[NodeTable]
    edges: list[EdgeTable]
    ports: list[tuple[Port, tuple[Port, ...]]]
    weights: list[float]
    known: dict[tuple[object, ...], EdgeTable]

    def add(self, section: Section, writer: Port, readers: list[Port], weight: float) -> None:
        """A tensor that somebody reads."""
        if not readers:
            return
        key = (id(self.tables[writer.node]), writer.place, *((id(self.tables[r.node]), r.place) for r in readers))
        if key not in self.known:
            layer = section.layer
            whole = layer.sizes(self.context.batch, self.context.seq_len)
            tensor = self.tables[writer.node].operator.outputs[writer.place]
            leaves = writer.place == 0 and tensor.name == layer.operators[-1].outputs[0].name
            dropped = tensor.name in self.context.gone(layer) and not (self.context.recompute == "full" and leaves)
            self.known[key] = edge_table(self.tables, writer, readers, whole, self.context, dropped=dropped)
        self.edges.append(self.known[key])
        self.ports.append((writer, tuple(readers)))
        self.weights.append(weight)


def _tables(layer: LayerGraph, context: Context) -> list[NodeTable]:
    again, gone = context.again(layer), context.gone(layer)
    return [node_table(o, layer, context, again=again(o), gone=gone) for o in layer.operators]


def _inside(layer: LayerGraph) -> list[tuple[Port, list[Port]]]:
    """Tensors that a layer both writes and reads."""
    found: dict[str, tuple[Port, list[Port]]] = {}
    for node, operator in enumerate(layer.operators):
        for place, tensor in enumerate(operator.inputs):
            if tensor.name in found:
                found[tensor.name][1].append(Port(node=node, place=place))
        for place, tensor in enumerate(operator.outputs):
            found[tensor.name] = Port(node=node, place=place), []
    return list(found.values())


def _streams(source: LayerGraph, target: LayerGraph, context: Context) -> list[tuple[Port, list[Port]]]:
    """What one layer hands to the next: the stream, or in layers read from a graph what is unread and of a border's shape."""
    if target.border is None:
        writer = _leaving(source)
        return [(writer, _entering(target, source.operators[writer.node].outputs[writer.place]))]
    sizes, wanted = (unit.sizes(context.batch, context.seq_len) for unit in (source, target))
    read = {t.name for o in source.operators for t in o.inputs}
    offers = [
        (Port(node=node, place=place), tuple(sizes[d] for d in tensor.dims))
        for node, operator in reversed(list(enumerate(source.operators)))
        for place, tensor in enumerate(operator.outputs)
        if tensor.name not in read
    ]
    found = []
    for tensor in target.border:
        shape = tuple(wanted[d] for d in tensor.dims)
        match = next((offer for offer in offers if offer[1] == shape), None)
        if match is not None:
            offers.remove(match)
            found.append((match[0], _readers(target, tensor.name)))
    return found


def _readers(layer: LayerGraph, name: str) -> list[Port]:
    return [
        Port(node=node, place=place)
        for node, operator in enumerate(layer.operators)
        for place, tensor in enumerate(operator.inputs)
        if tensor.name == name
    ]


def _leaving(layer: LayerGraph) -> Port:
    """The first output of the last operator."""
    return Port(node=len(layer.operators) - 1, place=0)


def _entering(layer: LayerGraph, stream: TensorSpec) -> list[Port]:
    """Readers of the first tensor that a layer reads and does not write and that has the dims of the stream.

    Raises:
        InvalidValueError: there is none.
    """
    made = {t.name for o in layer.operators for t in o.outputs}
    names = [t.name for o in layer.operators for t in o.inputs if t.name not in made and t.dims == stream.dims]
    if not names:
        message = f"{layer.kind} reads nothing like {stream.name} ({', '.join(stream.dims)})"
        raise InvalidValueError(message, hint="the last operator of a layer must write what the next layer reads")
    return _readers(layer, names[0])


def _moved(port: Port, by: int) -> Port:
    return Port(node=port.node + by, place=port.place)
