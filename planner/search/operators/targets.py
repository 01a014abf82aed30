"""What a framework can express, as variants of what every operator may do.

    any, pytorch   everything: DTensor knows whole, divided and partial tensors on every axis of a mesh
    megatron       dp: batch.  cp: sequence.  tp: a dim of role tensor where an operator has one, else the sequence (sequence
                   parallelism) or nothing, all operators alike.  ep: experts, else batch.  Parameters replicated over dp and
                   cp, or with their states sharded, all alike
    torchtitan     as megatron; dp (dp_shard) holds parameters sharded, dp_replicate replicated

Roles of dims are those of `models.dims`. A choice that all operators must make alike is a *variant*: each is solved, and the
fastest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import UnsupportedError, unknown_name
from shardwright.models.dims import BATCH, ROLE_EXPERT, ROLE_EXPERT_TENSOR, ROLE_TENSOR, SEQ, role
from shardwright.models.graph import Operator
from shardwright.planner.search.operators.loops import Loop, loops_of
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.states import FULLY, LEVELS, REPLICATED, STATES

FREE = ("any", "pytorch")
AXES = {
    "megatron": ("dp", "cp", "tp", "ep"),
    "torchtitan": ("dp_replicate", "dp_shard", "dp", "cp", "tp", "ep"),
}
DATA_AXES = ("dp", "dp_replicate", "dp_shard")
KV_HEADS = "kv_heads"
"""Keys and values may be made on every rank, where there are fewer of them than ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way in which all operators must agree.

    Attributes:
        name: how it is called; empty where operators are free.
        axes: names and sizes of the mesh's axes.
        levels: levels of states that each axis allows.
        sequence_parallel: whether what tensor parallelism does not divide is divided by sequence; None: operators are free.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    levels: tuple[tuple[int, ...], ...]
    sequence_parallel: bool | None = None

    def allowed(self, operator: Operator, loop: Loop | None, axis: int) -> bool:
        """Whether an operator may divide a loop (None: nothing) over an axis."""
        if self.sequence_parallel is None:
            return True
        wanted = _wanted(operator, self.axes[axis][0], sequence_parallel=self.sequence_parallel)
        return (loop.dim if loop is not None else None) in wanted


def variants_of(framework: str, options: ShardOptions) -> tuple[Variant, ...]:
    """The variants of a framework on a mesh.

    Raises:
        UnsupportedError: a framework that divides no operators.
        UnknownNameError: an axis the framework does not have.
    """
    axes, given = options.mesh.axes, tuple(LEVELS[name] for name in options.levels)
    if framework in FREE:
        return (Variant(name="", axes=axes, levels=tuple(given for _ in axes)),)
    if framework not in AXES:
        known = ", ".join((*FREE, *AXES))
        raise UnsupportedError(f"{framework} does not divide operators", where="--framework", hint=f"known: {known}")
    for name, _ in axes:
        if name not in AXES[framework]:
            raise unknown_name(f"axis of {framework}", name, AXES[framework], where="--mesh")
    parallel = (True, False) if any(name == "tp" and size > 1 for name, size in axes) else (False,)
    kinds = {"megatron": (REPLICATED, STATES), "torchtitan": (FULLY,)}[framework]
    wanted = [level for level in kinds if level in given] or list(kinds[:1])
    return tuple(
        Variant(
            name=_named(sp, level, several=len(parallel) > 1),
            axes=axes,
            levels=tuple((_level(name, level),) for name, _ in axes),
            sequence_parallel=sp,
        )
        for sp in parallel
        for level in wanted
    )


def _named(sp: bool, level: int, *, several: bool) -> str:
    states = {REPLICATED: "parameters replicated", STATES: "states sharded", FULLY: "parameters sharded"}[level]
    return f"{'with' if sp else 'without'} sequence parallelism, {states}" if several else states


def _level(axis: str, level: int) -> int:
    """How an axis holds parameters it does not divide: tensor parallelism and dp_replicate replicate them."""
    return REPLICATED if axis in {"tp", "dp_replicate"} else level


def _wanted(operator: Operator, axis: str, *, sequence_parallel: bool) -> set[str | None]:
    """Dims that an operator divides over an axis, None for nothing."""
    dims = operator_dims(operator)
    if axis in DATA_AXES:
        return {BATCH} if BATCH in dims else {None}
    if axis == "cp":
        attends = {d for d in dims if role(d) == ROLE_TENSOR} if operator.attention is not None else set()
        return {SEQ, *attends} if SEQ in dims else {None}
    if axis == "ep":
        experts = {d for d in dims if role(d) == ROLE_EXPERT}
        return set(experts) or ({BATCH} if BATCH in dims else {None})
    divided = {d for d in dims if role(d) in {ROLE_TENSOR, ROLE_EXPERT_TENSOR, ROLE_EXPERT}}
    if divided:
        return {*divided, None} if KV_HEADS in divided else set(divided)
    return {SEQ if sequence_parallel and SEQ in dims else None}


def operator_dims(operator: Operator) -> frozenset[str]:
    """Dims that an operator's rules let it divide."""
    names = {d for t in (*operator.inputs, *operator.outputs, *operator.parameters) for d in t.dims}
    return frozenset(loop.dim for loop in loops_of(operator, _Any(names)))


class _Any(dict[str, int]):
    """Sizes of dims where only their names matter."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(dict.fromkeys(names, 2))

    def __missing__(self, name: str) -> int:
        return 2
