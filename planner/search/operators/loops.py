"""The ways to divide an operator over one mesh axis, from its dims alone.

An operator is a nest of loops over the dims of its tensors. Dividing the loop over a dim d among ranks means

    a tensor with d          each rank has its part                                   S(d)
    an input without d       each rank reads it whole; its gradient comes as summands B
    an output without d      where a product sums over d, or a table is looked up     P
                             in it: each rank makes a summand
                             where d is normalised over: statistics are reduced       R
                             else every rank makes the same                           R
    a parameter without d    held whole; its gradient comes as summands               B

A dim that is read and not written, and for none of these reasons, is not divided. No rule knows the name of an operator. What
the dims cannot say, the operator states: dims that ranks must hold whole (`Operator.whole`), inputs read whole (`read_whole`:
the keys of other positions), dims whose statistics can be reduced (`normalised`), and dims that are divided with another
(key-value heads with the query heads they serve).

`loops_of` lists the loops; `Loop` holds the codes (`layouts`) of all tensors under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwright.models.dims import MADE_OF
from shardwright.models.graph import Operator, TensorSpec
from shardwright.planner.search.operators.layouts import BROADCAST, PARTIAL, WHOLE, code_in

WASTE = 1.01
"""A dim may be divided unevenly where padding all parts to the largest adds at most a hundredth (vocabularies)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One dim of an operator's iteration space.

    Attributes:
        dim: its name.
        size: of the dim, not divided.
        inputs, outputs, parameters: code of each tensor on an axis that divides the loop.
        summed: whether outputs are left as summands.
        reductions: reductions of statistics forward and backward.
        companion: a dim that is divided along where its size allows, else its tensors are read whole; "" for none.
        companion_size: its size.
    """

    dim: str
    size: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[int, ...]
    summed: bool = False
    reductions: tuple[int, int] = (0, 0)
    companion: str = ""
    companion_size: int = 1


def loops_of(operator: Operator, sizes: Mapping[str, int]) -> tuple[Loop, ...]:
    """All loops of an operator that may be divided, in the order in which its tensors name the dims.

    Args:
        operator: the operator.
        sizes: size of every dim, nothing divided.
    """
    companions = _companions(operator)
    fixed = {*operator.whole, *companions.values(), *_mixed(operator)}
    found = []
    for dim in _dims(operator):
        if dim in fixed or sizes[dim] <= 1:
            continue
        twice = dim in _summed(operator) and any(dim in t.dims for t in operator.outputs)
        for last in (False, True) if twice else (None,):
            found.append(_loop(operator, dim, sizes, companions.get(dim, ""), last))
    return tuple(found)


def _mixed(operator: Operator) -> set[str]:
    """Dims that are read and not written, and neither summed over nor normalised: nobody knows how parts would be joined."""
    written = {part for t in operator.outputs for dim in t.dims for part in (dim, *MADE_OF.get(dim, ()))}
    summed = operator.gemm.k if operator.gemm is not None else tuple(d for p in operator.parameters for d in p.dims)
    over = operator.normalised.dims if operator.normalised is not None else ()
    return {dim for dim in _dims(operator) if dim not in {*written, *summed, *over, *operator.summed}}


def divides(size: int, parts: int) -> bool:
    """Whether a dim may be divided in so many parts."""
    return -(-size // parts) * parts <= WASTE * size


def _dims(operator: Operator) -> Iterable[str]:
    """Dims that something is read in; those of rows as the dims that divide them."""
    read = [dim for tensor in (*operator.inputs, *operator.parameters) for dim in tensor.dims]
    return dict.fromkeys(part for dim in read for part in MADE_OF.get(dim, (dim,)))


def _summed(operator: Operator) -> tuple[str, ...]:
    return operator.gemm.k if operator.gemm is not None else ()


def _companions(operator: Operator) -> dict[str, str]:
    """Dim → the dim that is divided with it."""
    if operator.attention is not None and operator.attention.kv_heads != operator.attention.heads:
        return {operator.attention.heads: operator.attention.kv_heads}
    if operator.scan is not None and any(operator.scan.groups in t.dims for t in operator.inputs):
        return {operator.scan.heads: operator.scan.groups}
    return {}


def _loop(operator: Operator, dim: str, sizes: Mapping[str, int], companion: str, last: bool | None) -> Loop:
    """The loop over a dim; of a product that sums over a dim and writes one of the same name, `last` is the one written."""
    inputs = tuple(_input_code(operator, tensor, dim, last) for tensor in operator.inputs)
    written = [None if last is False else code_in(t.dims, dim) for t in operator.outputs]
    if companion:
        inputs = tuple(
            code_in(tensor.dims, companion) if code == BROADCAST and companion in tensor.dims else code  # type: ignore[misc]
            for tensor, code in zip(operator.inputs, inputs, strict=True)
        )
    normalised = operator.normalised if operator.normalised is not None and dim in operator.normalised.dims else None
    summed = normalised is None and all(code is None for code in written)
    absent = PARTIAL if summed else WHOLE
    parameters = (code_in(p.dims, dim, last=bool(last)) for p in operator.parameters)
    return Loop(
        dim=dim,
        size=sizes[dim],
        inputs=inputs,
        outputs=tuple(absent if code is None else code for code in written),
        parameters=tuple(BROADCAST if code is None else code for code in parameters),
        summed=summed,
        reductions=(normalised.forward, normalised.backward) if normalised else (0, 0),
        companion=companion,
        companion_size=sizes[companion] if companion else 1,
    )


def _input_code(operator: Operator, tensor: TensorSpec, dim: str, last: bool | None) -> int:
    code = None if last or (tensor.name, dim) in operator.read_whole else code_in(tensor.dims, dim)
    return BROADCAST if code is None else code
