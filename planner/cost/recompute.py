"""What selective recomputing runs again and what need not be kept because of it.

A module of a framework is run again either whole or for its output alone:

    whole     mlp, moe, shared_experts, attn     keeps what comes from outside, drops all that only its operators keep
    output    layernorm, mlp_act, moe_act,       drops what its operators can make again from what others keep
              mla_up_proj, core_attn             (`Operator.recompute_drops`)

`mlp` holds `mlp_act`; `moe` holds `moe_act` and `shared_experts`; `attn` holds `core_attn` and `mla_up_proj`. Where a stack
runs a norm within the product that reads it (`norms_in_products`), such a norm belongs to the product's module: recomputing
`layernorm` leaves it alone, recomputing `mlp` drops it too. Names and contents of modules are those of Megatron-Core
(`TransformerConfig.recompute_modules`), and `mlp_act` and `attn`, which other frameworks know.

Full recomputing runs a layer again from its input, to its end or, where the stack stops early (`recompute_stops_early`), to the
last tensor that the backward pass keeps: the product that makes a layer's output is not needed (`left_out`).

A stack that recomputes operator by operator names `every_second_product` in place of modules (`products`).

`shares` gives the operators that run again and how much of each, `repeated` lists them, `dropped` the names that are not kept,
`read_again` what they read, and `modules_of` what a model has of the modules.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.models.graph import LayerGraph, ModelGraph, Operator, OperatorKind, TensorSpec
from shardwright.planner.cost.products import EVERY_SECOND_PRODUCT, dropped_names, held_outputs, shares_again
from shardwright.planner.stacks import StackProfile

WHOLE: Mapping[str, tuple[str, ...]] = {
    "mlp": ("mlp", "mlp_act"),
    "moe": ("moe", "moe_act", "shared_experts"),
    "shared_experts": ("shared_experts",),
    "attn": ("attn", "core_attn", "mla_up_proj"),
}
"""Modules that are run again as a whole, and the modules of the operators they hold."""


def module_of(operator: Operator, unit: LayerGraph, stack: StackProfile) -> str:
    """The recompute module an operator belongs to in a stack."""
    if not stack.norms_in_products or operator.module != "layernorm":
        return operator.module
    readers = [o for o in unit.operators if operator.outputs[0] in o.inputs]
    fused = len(readers) == 1 and readers[0].kind is OperatorKind.GEMM
    return readers[0].module if fused else operator.module


def repeated(unit: LayerGraph, stack: StackProfile) -> tuple[Operator, ...]:
    """Operators of a layer that selective recomputing runs again."""
    again = shares(unit, stack)
    return tuple(o for o in unit.operators if o.name in again)


def shares(unit: LayerGraph, stack: StackProfile) -> dict[str, float]:
    """Share of the forward time of each operator that selective recomputing runs again, by name."""
    if by_operator(stack):
        return shares_again(unit)
    covered = {part for name in stack.selective_modules for part in WHOLE.get(name, (name,))}
    return {o.name: 1.0 for o in unit.operators if module_of(o, unit, stack) in covered}


def by_operator(stack: StackProfile) -> bool:
    """Whether a stack recomputes operator by operator rather than by module."""
    return EVERY_SECOND_PRODUCT in stack.selective_modules


def dropped(unit: LayerGraph, stack: StackProfile) -> frozenset[str]:
    """Names of the tensors of a layer that selective recomputing does not keep."""
    if by_operator(stack):
        return dropped_names(unit)
    again = {o.name for o in repeated(unit, stack)}
    names = {name for o in unit.operators if o.name in again for name in o.recompute_drops}
    for module in stack.selective_modules:
        names |= _inside(unit, stack, WHOLE.get(module, ()))
    return frozenset(names)


def read_again(unit: LayerGraph, stack: StackProfile) -> tuple[TensorSpec, ...]:
    """Tensors that operators run again read and that none of them makes again: they are kept whoever else keeps them."""
    if by_operator(stack):
        return held_outputs(unit, compiled=stack.fused_gate)
    again = repeated(unit, stack)
    made = {t.name for o in again for t in o.outputs}
    return tuple({t.name: t for o in again for t in o.inputs if t.name not in made}.values())


def left_out(unit: LayerGraph, stack: StackProfile) -> frozenset[str]:
    """Operators of a layer that full recomputing spares: the last one that keeps what it reads, and all behind it."""
    if not stack.recompute_stops_early:
        return frozenset()
    keeping = [index for index, o in enumerate(unit.operators) if o.saved]
    if not keeping:
        return frozenset(o.name for o in unit.operators)
    last = unit.operators[keeping[-1]]
    makes_it = {t.name for t in last.saved} & {t.name for t in last.outputs}
    return frozenset(o.name for o in unit.operators[keeping[-1] + bool(makes_it) :])


def modules_of(graph: ModelGraph, stack: StackProfile) -> tuple[str, ...]:
    """The selective modules of a stack that the layers of a model have."""
    units = (*graph.layer_kinds, *((graph.mtp,) if graph.mtp is not None else ()))
    present = {module_of(o, unit, stack) for unit in units for o in unit.operators} | {EVERY_SECOND_PRODUCT}
    return tuple(name for name in stack.selective_modules if present.intersection(WHOLE.get(name, (name,))))


def _inside(unit: LayerGraph, stack: StackProfile, modules: tuple[str, ...]) -> set[str]:
    """Kept tensors that only operators of these modules make and keep."""
    within = [o for o in unit.operators if module_of(o, unit, stack) in modules]
    others = [o for o in unit.operators if module_of(o, unit, stack) not in modules]
    made = {t.name for o in within for t in o.outputs}
    given = {t.name for o in within for t in o.inputs} - made
    return {t.name for o in within for t in o.saved} - {t.name for o in others for t in o.saved} - given
