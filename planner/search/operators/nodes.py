"""The table of one operator: what each of its choices (strategy, and how its parameters are held) costs.

    forward, backward   `planner.cost.compute.operator_times` with the sizes of a rank; statistics of normalised dims are
                        reduced over the axes that divide them, one fp32 number a row
    states              `states.held`
    saved               what the operator keeps beside its inputs (those are kept in the layout they are read in: `edges`)
    transient           inputs and outputs with their gradients, and parameters gathered for this and the next operator

Among choices of one strategy those that another beats in every column are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware.kernels import memory_bound_s
from shardwright.models.graph import LayerGraph, Operator
from shardwright.planner.cost.activations import operator_saves
from shardwright.planner.cost.compute import operator_times
from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.context import Context
from shardwright.planner.search.operators.layouts import WHOLE, Codes
from shardwright.planner.search.operators.sizes import SplitSizes
from shardwright.planner.search.operators.states import Held, held
from shardwright.planner.search.operators.strategies import Strategies, strategies_of

Floats = NDArray[np.float64]

STATISTIC_BYTES = 4.0
GATHERED_AHEAD = 2.0
"""Parameters of the operator that runs and of the one that is gathered meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """Choices of one operator.

    Attributes:
        operator: the operator.
        strategies: its strategies.
        strategy: row of the strategy of each choice.
        levels: how parameters are held, [choices, axes].
        costs: columns of `amounts.COLUMNS`, [choices, columns].
    """

    operator: Operator
    strategies: Strategies
    strategy: NDArray[np.int64]
    levels: NDArray[np.int8]
    costs: Floats

    @property
    def name(self) -> str:
        """Of the operator."""
        return self.operator.name

    def __len__(self) -> int:
        return len(self.strategy)

    def written(self, output: int) -> Codes:
        """Layout of an output by choice, [choices, axes]."""
        return np.asarray(self.strategies.outputs[self.strategy, output])

    def read(self, source: int) -> Codes:
        """Layout in which an input is read by choice, [choices, axes]."""
        return np.asarray(self.strategies.inputs[self.strategy, source])


def node_table(operator: Operator, layer: LayerGraph, context: Context, *, again: bool, gone: frozenset[str]) -> NodeTable:
    """The table of an operator.

    Args:
        operator: the operator.
        layer: it belongs to.
        context: mesh and machine.
        again: whether the backward pass runs it again.
        gone: tensors that are not kept, because they are made again.
    """
    whole = layer.sizes(context.batch, context.seq_len)
    found = strategies_of(operator, whole, context.links.sizes, context.allowed)
    twin, extra = _told_apart(operator, whole)
    sizes = SplitSizes({**whole, **extra}, {**found.degrees, **_twin_degrees(found, extra)}, len(found))
    states = held(context.links, _parameter_codes(operator, found), *_elements(operator, found, whole, context), context.facts)
    costs = np.zeros((len(states.strategy), len(a.COLUMNS)))
    own = _own(operator, twin, sizes, found, context, again=again, gone=gone)
    costs[:] = own[states.strategy]
    _add_states(costs, states, context)
    kept = _undominated(states.strategy, costs)
    return NodeTable(
        operator=operator, strategies=found, strategy=states.strategy[kept], levels=states.levels[kept], costs=costs[kept]
    )


def _told_apart(operator: Operator, whole: dict[str, int]) -> tuple[Operator, dict[str, int]]:
    """A product that sums over a dim of the name of one it writes, with the summed dim named anew."""
    if operator.gemm is None:
        return operator, {}
    written = {dim for term in operator.gemm.n for dim in term}
    names = {dim: f"{dim}+" for dim in operator.gemm.k if dim in written}
    k = tuple(names.get(dim, dim) for dim in operator.gemm.k)
    return replace(operator, gemm=replace(operator.gemm, k=k)), {new: whole[old] for old, new in names.items()}


def _twin_degrees(found: Strategies, extra: dict[str, int]) -> dict[str, Floats]:
    """Degrees of dims that a product both sums over and writes: of the sum under the new name, of the other under the old."""
    made: dict[str, Floats] = {}
    ranks = np.asarray(found.ranks, dtype=np.float64)
    for name in extra:
        old = name.removesuffix("+")
        for index, loop in enumerate(found.loops):
            if loop.dim == old:
                degree = np.where(found.chosen == index, ranks, 1.0).prod(axis=1)
                made[name if loop.summed else old] = degree
    return made


def _parameter_codes(operator: Operator, found: Strategies) -> Codes:
    """Layout of the largest parameter (the one of most dims), [strategies, axes]."""
    if not operator.parameters:
        return np.full(found.chosen.shape, WHOLE, dtype=np.int8)
    largest = max(range(len(operator.parameters)), key=lambda at: len(operator.parameters[at].dims))
    return np.asarray(found.parameters[:, largest])


def _elements(operator: Operator, found: Strategies, whole: dict[str, int], context: Context) -> tuple[Floats, Floats]:
    """Elements of all parameters on a rank while they are used, and of those that are trained, [strategies]."""
    total, trained = np.zeros(len(found)), np.zeros(len(found))
    for at, parameter in enumerate(operator.parameters):
        divided = np.where(found.parameters[:, at] >= 0, np.asarray(context.links.sizes, dtype=np.float64), 1.0).prod(axis=1)
        each = parameter.elements(whole) / divided
        total += each
        trained += each * parameter.trainable
    return total, trained


def _own(
    operator: Operator,
    twin: Operator,
    sizes: SplitSizes,
    found: Strategies,
    context: Context,
    *,
    again: bool,
    gone: frozenset[str],
) -> Floats:
    """Columns that the strategy alone decides, [strategies, columns]."""
    costs = np.zeros((len(found), len(a.COLUMNS)))
    time = operator_times(twin, sizes, context.machine)
    statistics = _statistics_s(operator, sizes, found, context)
    costs[:, a.F_COMPUTE] = time.forward_s
    costs[:, a.B_COMPUTE] = time.backward_s + (time.forward_s if again else 0.0)
    costs[:, a.F_BLOCKING] = statistics[0]
    costs[:, a.B_BLOCKING] = statistics[1] + (statistics[0] if again else 0.0)
    width = float(context.machine.precision.activation_bytes)
    inputs = {t.name for t in operator.inputs}
    for tensor in operator_saves(operator, context.machine):
        if tensor.name not in inputs:
            costs[:, a.DROPPED if tensor.name in gone else a.SAVED] += sizes.bytes(tensor, width)
    costs[:, a.TRANSIENT] = sum((sizes.bytes(t, width) for t in (*operator.inputs, *operator.outputs)), np.zeros(1)) * 2.0
    return costs


def _statistics_s(operator: Operator, sizes: SplitSizes, found: Strategies, context: Context) -> tuple[Floats, Floats]:
    """Reductions of statistics, forward and backward, [strategies]."""
    forward, backward = np.zeros(len(found)), np.zeros(len(found))
    if operator.normalised is None:
        return forward, backward
    rows = [dim for dim in operator.inputs[0].dims if dim not in operator.normalised.dims]
    message = sizes.product(rows) * STATISTIC_BYTES
    for axis in range(found.chosen.shape[1]):
        for index, loop in enumerate(found.loops):
            if not any(loop.reductions):
                continue
            one = context.links.seconds("all_reduce", np.full(len(found), axis), message)
            used = found.chosen[:, axis] == index
            forward += np.where(used, loop.reductions[0] * one, 0.0)
            backward += np.where(used, loop.reductions[1] * one, 0.0)
    return forward, backward


def _add_states(costs: Floats, states: Held, context: Context) -> None:
    machine = context.machine
    costs[:, a.F_EACH] += states.gather_s
    costs[:, a.F_ONCE] += states.gather_once_s
    costs[:, a.B_EACH] += states.gather_s + states.reduce_s
    costs[:, a.B_ONCE] += states.reduce_once_s
    update = memory_bound_s(machine.fit, machine.plain, states.update_bytes)
    costs[:, a.B_BLOCKING] += update / context.micro_batches
    costs[:, a.STATES] += states.states_bytes
    costs[:, a.TRANSIENT] += states.gathered_bytes * GATHERED_AHEAD


def _undominated(strategy: NDArray[np.int64], costs: Floats) -> NDArray[np.int64]:
    """Choices that no other of the same strategy beats or equals in every column; of equals the first stays."""
    kept = []
    for row in range(len(costs)):
        others = np.flatnonzero(strategy == strategy[row])
        below = (costs[others] <= costs[row]).all(axis=1)
        strictly = below & ((costs[others] < costs[row]).any(axis=1) | (others < row))
        if not strictly.any():
            kept.append(row)
    return np.array(kept, dtype=np.int64)
