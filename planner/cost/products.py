"""Selective recomputing operator by operator: every second matrix product of a layer is run again.

    kept    what a layer reads of others, outputs and statistics of attention cores, outputs of the 1st, 3rd, 5th ... product
    again   all else; of an operator that stands for several products (query, key and value; gate and up) the share that the
            widths of its even outputs have; what makes nothing that the backward pass reads does not

Products are counted in the order of the forward pass. Routers and products over experts are always run again and not counted.
A kept output is there for operators that run again and read it; without a compiler also where nothing does.
Source: pytorch/torchtitan, distributed/activation_checkpoint.py (`selective_ac_option = "op"`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwright.models.graph import LayerGraph, Operator, OperatorKind, TensorSpec

EVERY_SECOND_PRODUCT = "every_second_product"
"""Stands among a stack's `selective_modules` for this way of recomputing."""

ONE_MATRIX = frozenset({"kv_down", "kv_up"})
"""Products of latent attention whose outputs are parts of one matrix."""

ROUTER = "router"


def kept_outputs(unit: LayerGraph) -> dict[str, TensorSpec]:
    """Outputs of products and of attention cores that are kept, by name."""
    kept: dict[str, TensorSpec] = {}
    count = 0
    for operator in unit.operators:
        if operator.attention is not None:
            kept |= {t.name: t for t in operator.outputs}
        if not _counts(operator):
            continue
        for group in _matrices(operator):
            count += 1
            if count % 2:
                kept |= {t.name: t for t in group}
    return kept


def shares_again(unit: LayerGraph) -> dict[str, float]:
    """Share of the forward time of each operator that runs again, by name; operators that do not are left out."""
    kept, wanted = kept_outputs(unit), {t.name for o in unit.operators for t in o.saved}
    found: dict[str, float] = {}
    for operator in reversed(unit.operators):
        makes = {t.name for t in (*operator.outputs, *operator.saved)} - {t.name for t in operator.inputs}
        share = _share(operator, unit.dims, frozenset(kept))
        if operator.attention is None and share > 0 and not wanted.isdisjoint(makes - set(kept)):
            found[operator.name] = share
            wanted |= {t.name for t in operator.inputs}
    return dict(reversed(found.items()))


def dropped_names(unit: LayerGraph) -> frozenset[str]:
    """Tensors kept without recomputing that are made again."""
    made = {t.name for o in unit.operators for t in o.outputs}
    cores = {t.name for o in unit.operators if o.attention is not None for t in o.saved if t.name not in made}
    within = {t.name for o in unit.operators for t in (*o.outputs, *o.saved) if t.name in made or t not in o.inputs}
    return frozenset(within - cores - set(kept_outputs(unit)))


def held_outputs(unit: LayerGraph, *, compiled: bool) -> tuple[TensorSpec, ...]:
    """Kept outputs that an operator which runs again reads; without a compiler all of them."""
    again = shares_again(unit)
    read = {t.name for o in unit.operators if o.name in again for t in o.inputs}
    return tuple(t for name, t in kept_outputs(unit).items() if name in read or not compiled)


def _counts(operator: Operator) -> bool:
    return operator.kind is OperatorKind.GEMM and operator.name != ROUTER


def _matrices(operator: Operator) -> list[tuple[TensorSpec, ...]]:
    """Outputs of an operator, one matrix each."""
    return [operator.outputs] if operator.name in ONE_MATRIX else [(t,) for t in operator.outputs]


def _share(operator: Operator, sizes: Mapping[str, int], kept: frozenset[str]) -> float:
    """Of the widths of its outputs, those that are made again; what is no counted product runs again as a whole."""
    if not _counts(operator):
        return 1.0
    widths = {t.name: math.prod(sizes.get(d, 1) for d in t.dims) for t in operator.outputs}
    return sum(width for name, width in widths.items() if name not in kept) / max(sum(widths.values()), 1)
