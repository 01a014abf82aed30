"""What the dims of a graph are called, from how they are used.

    batch            the outermost dim of what is fed, which no parameter has; all of that size are one     `batch_of`
    seq              a fed dim over which attention runs                            `sequence_of`
    heads, head_dim  of attention; channels, height, width, depth, window of convolutions; vocabulary, classes; features else

Batch and sequence are one atom each: the two sizes that a job sets. `names` gives the base name of every other atom; equal base
names within a layer are numbered there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shardwright.errors import UnsupportedError
from shardwright.models.traced.records import Traced
from shardwright.models.traced.relations import Relations

_PLACES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Names of atoms.

    Attributes:
        batch: the atom of the batch.
        seq: the atom of the sequence, or None where the graph has none.
        base: base name by atom.
    """

    batch: int
    seq: int | None
    base: dict[int, str]

    def of(self, atom: int) -> str:
        """The name of an atom, before equal ones in a layer are numbered."""
        if atom == self.batch:
            return "batch"
        return "seq" if atom == self.seq else self.base.get(atom, "features")


def named(graph: Traced, relations: Relations, where: str) -> Named:
    """The names of all atoms of a graph.

    Raises:
        UnsupportedError: no dim of what is fed is a batch.
    """
    batch = batch_of(graph, relations, where)
    return Named(batch=batch, seq=sequence_of(graph, relations, batch), base=_bases(graph, relations))


def batch_of(graph: Traced, relations: Relations, where: str) -> int:
    """The atom of the batch: first of the outermost dims of the fed tensors, in none of the parameters.

    Raises:
        UnsupportedError: there is none, or it is 1 and so cannot be told from a dim that is broadcast.
    """
    owned = {atom for name in graph.parameters for atom in relations.of(name)}
    firsts = [relations.at(name, 0)[:1] for name in graph.inputs if graph.tensors[name].shape]
    votes = Counter(atom for first in firsts for atom in first if atom not in owned)
    if not votes:
        said = "no dim of the inputs is a batch: " + (", ".join(_shown(graph, n) for n in graph.inputs[:4]) or "nothing is fed")
        hint = "export with a batch of 2 or more as the first dim of the inputs (a size of 1 cannot be told from broadcasting)"
        raise UnsupportedError(said, where=where, hint=hint)
    batch = max(votes.items(), key=lambda item: (item[1], -item[0]))[0]
    for first in firsts:
        relations.atoms.equate(first[:1], (batch,))
    return relations.atoms.expanded((batch,))[0]


def sequence_of(graph: Traced, relations: Relations, batch: int) -> int | None:
    """The atom of the sequence: fed, not the batch, and the length of the queries of attention."""
    fed = {atom for name in graph.inputs for atom in relations.of(name)} - {batch}
    cores = (node for node in graph.nodes if node.op == "attention")
    votes = Counter(atom for core in cores for atom in relations.at(core.inputs[0], -2)[:1] if atom in fed)
    return max(votes.items(), key=lambda item: (item[1], -item[0]))[0] if votes else None


def _bases(graph: Traced, relations: Relations) -> dict[int, str]:
    base: dict[int, str] = {}

    def call(atoms: Iterable[int], word: str) -> None:
        for atom in atoms:
            base.setdefault(atom, word)

    for node in sorted(graph.nodes, key=lambda n: _STRENGTH.get(n.op, 9)):
        if node.op == "attention":
            query = node.inputs[0]
            rank = len(graph.tensors[query].shape)
            call(relations.at(query, -1), "head_dim")
            call(relations.at(node.inputs[2], -1), "head_dim")
            call(relations.at(query, -2), "tokens")
            call(relations.at(node.inputs[1], -2), "tokens")
            call(relations.at(query, -3) if rank > 3 else (), "heads")
            call(relations.at(node.inputs[1], -3) if rank > 3 else (), "kv_heads")
        elif node.op == "conv":
            _call_conv(call, relations, node.inputs, node.outputs[0], len(graph.tensors[node.outputs[0]].shape) - 2)
        elif node.op == "embedding" and node.inputs[0] in graph.parameters:
            call(relations.at(node.inputs[0], 0), "vocabulary")
        elif node.op == "loss" and graph.tensors[node.inputs[0]].shape:
            call(relations.at(node.inputs[0], int(node.attributes.get("dim", -1))), "classes")
    return base


def _call_conv(call: object, relations: Relations, inputs: tuple[str, ...], output: str, places: int) -> None:
    if not callable(call):
        return
    words = _PLACES.get(places, tuple(f"place_{i}" for i in range(places)))
    call(relations.at(inputs[0], 1), "channels")
    call(relations.at(output, 1), "channels")
    for index, word in enumerate(words):
        call(relations.at(inputs[1], 2 + index), "window")
        call(relations.at(inputs[0], 2 + index), word)
        call(relations.at(output, 2 + index), word)


_STRENGTH = {"attention": 0, "conv": 1, "embedding": 2, "loss": 3}


def _shown(graph: Traced, name: str) -> str:
    return f"{name} {'x'.join(map(str, graph.tensors[name].shape)) or 'scalar'}"
