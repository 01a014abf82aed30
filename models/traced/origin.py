"""Where the layers of a graph read from a file are from, and what passes between them.

bytes over a border = sum over its tensors of elements batch^b seq^s width          `Crossing.bytes`
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A tensor that passes from the layers before a border to those behind it.

    Attributes:
        elements: product of its fixed dims.
        batch: how often the batch is among its dims.
        seq: how often the sequence is.
        width: bytes an element; None is the job's activation type.
    """

    elements: int
    batch: int
    seq: int
    width: float | None = None

    def bytes(self, batch: float, seq: float, activation_bytes: float) -> float:
        """Bytes for `batch` samples of `seq` tokens."""
        each = activation_bytes if self.width is None else self.width
        return self.elements * batch**self.batch * seq**self.seq * each


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A graph file, as far as its model remembers it.

    Attributes:
        source: format and version.
        batch: samples of the graph in the file.
        seq: tokens a sample, None where no dim is a sequence.
        crossings: what passes over each border: before the first layer, between layers, behind the last (layers + 1).
        modules: module of the first operator of each layer, where the file tells.
        operators: of the whole graph.
    """

    source: str
    batch: int
    seq: int | None
    crossings: tuple[tuple[Crossing, ...], ...]
    modules: tuple[str, ...]
    operators: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of a plan should know."""
        return notes(len(self.modules), self.operators, self.source, self.seq)


def notes(layers: int, operators: int, source: str, seq: int | None) -> tuple[str, ...]:
    """What the reader of a plan for a graph should know: what its layers are, and what is not planned."""
    made_of = f"layers are {layers} clusters of the {operators} operators of a graph ({source})"
    planned = "planned are data and sharded data parallelism and pipelines; tensor, context and expert parallelism are not"
    said = f"{made_of}; {planned}"
    if seq is not None:
        return (said,)
    return said, "no dim of the graph is a sequence: tokens are samples times --seq-len (1 if left out)"
