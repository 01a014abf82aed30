"""What a reader makes of a file: tensors, parameters and nodes of a small vocabulary.

A reader maps each operator of its format to one word of `OPERATIONS`; everything behind it knows these words alone. The tensors
a node reads stand in the order of the word's own arguments:

    pointwise, copy        operands that broadcast against each other
    linear                 x, weight, bias          attribute `layout`: "nk" (weight is out x in) or "kn"
    matmul                 a, b, addend             over the last dims; attributes `transpose_a`, `transpose_b`
    conv                   x, weight, bias          attributes `groups`, `transposed`
    norm                   x, weight, bias, ...     attribute `over`: "last" (trailing dims) or "channel" (dim 1)
    embedding              table, indices           attribute `bag`: rows are summed
    attention              query, key, value, mask  [..., heads, length, size]; attribute `causal`
    reduce                 x                        attributes `dims`, `keep`
    softmax, pool, resize  x
    reshape, expand        x                        the result's shape is that of the output
    permute                x                        attribute `order`
    slice                  x                        every dim but one stays
    split, select          x                        attribute `dim`
    concat                 parts                    attribute `dim`
    loss                   logits, labels           attribute `dim`: of the classes
    window                 x                        dims of the same size stay: padding, sorting, cumulative sums
    opaque                 any                      declared by the user, or one of whose result only the batch is known
    constant                                        made of nothing that is trained or fed

`Traced` is validated by `check_order`: a node reads only what stands before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.errors import DamagedFileError, UnsupportedError

VIEWS = frozenset(("reshape", "permute", "expand", "slice", "split", "select"))
OPERATIONS = VIEWS | {
    "pointwise",
    "copy",
    "linear",
    "matmul",
    "conv",
    "norm",
    "embedding",
    "attention",
    "reduce",
    "softmax",
    "pool",
    "resize",
    "concat",
    "loss",
    "window",
    "opaque",
    "constant",
}
DECLARABLE = ("elementwise", "opaque")

MAX_NODES = 200_000
MAX_RANK = 16
MAX_SIZE = 1 << 40
MAX_ELEMENTS = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTensor:
    """A tensor of known shape.

    Attributes:
        name: unique in the graph.
        shape: sizes.
        width: bytes an element in the file.
        floating: whether it holds real numbers (its bytes are then those of the job's precision).
    """

    name: str
    shape: tuple[int, ...]
    width: float = 4.0
    floating: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedNode:
    """One operator.

    Attributes:
        name: as in the file, for messages.
        op: a word of `OPERATIONS`.
        kind: the file's own word, shown to people.
        inputs, outputs: names of tensors.
        attributes: as the word needs them; `saves`: what the backward pass keeps (none, inputs, output, mask, index).
        module: path of the module it stands in, if the file tells.
    """

    name: str
    op: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A graph as read.

    Attributes:
        name: of the model.
        source: format and version, for people.
        tensors: by name.
        nodes: in an order in which each reads only what stands before it.
        inputs: tensors that are fed.
        parameters: tensors that are trained.
        outputs: what the graph gives.
        dynamic: names and places of dims that a user may bind.
    """

    name: str
    source: str
    tensors: Mapping[str, TracedTensor]
    nodes: tuple[TracedNode, ...]
    inputs: tuple[str, ...]
    parameters: frozenset[str]
    outputs: tuple[str, ...]
    dynamic: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a user adds to a file.

    Attributes:
        dims: sizes of dynamic dims by name.
        declared: unknown operators by name: elementwise or opaque.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)


def unknown_operator(kind: str, node: str, where: str) -> UnsupportedError:
    """The error for an operator without a rule."""
    hint = f"declare it: --declare {kind}=elementwise (or opaque)"
    return UnsupportedError(f"node {node}: the operator {kind} is not known", where=where, hint=hint)


def checked_shape(shape: tuple[int, ...], name: str, where: str) -> tuple[int, ...]:
    """The shape, if such a tensor can be.

    Raises:
        DamagedFileError: more dims, or a size, than there can be.
    """
    elements = 1
    for size in shape:
        elements *= max(size, 1)
        if size < 0 or size > MAX_SIZE or elements > MAX_ELEMENTS:
            said = "x".join(map(str, shape[:MAX_RANK]))
            raise DamagedFileError(f"tensor {name}: no tensor has the shape {said}", where=where, hint="export the model again")
    if len(shape) > MAX_RANK:
        raise DamagedFileError(f"tensor {name} has {len(shape)} dims", where=where, hint=f"at most {MAX_RANK} are read")
    return shape


def check_order(graph: Traced, where: str) -> Traced:
    """The graph, if each node reads only what stands before it.

    Raises:
        DamagedFileError: a cycle, a tensor that nothing makes, or one made twice.
        UnsupportedError: more nodes than are read.
    """
    if len(graph.nodes) > MAX_NODES:
        raise UnsupportedError(f"{len(graph.nodes)} nodes", where=where, hint=f"at most {MAX_NODES:,} are read")
    made = {name for node in graph.nodes for name in node.outputs}
    known = set(graph.tensors) - made
    for node in graph.nodes:
        for name in node.inputs:
            if name not in known:
                raise _unordered(node, name, made, where)
        for name in node.outputs:
            if name in known:
                said = f"node {node.name} makes the tensor {name}, which is made already"
                raise DamagedFileError(said, where=where, hint="export the model again")
        known.update(node.outputs)
    return graph


def _unordered(node: TracedNode, name: str, made: set[str], where: str) -> DamagedFileError:
    if name in made:
        said = f"node {node.name} reads {name}, which is made only after it: the graph has a cycle or is out of order"
    else:
        said = f"node {node.name} reads the tensor {name}, which nothing makes"
    return DamagedFileError(said, where=where, hint="export the model again")
