"""Time, memory and exchange of whole layers, for every distinct combination of the degrees they depend on.

A *unit* is a distinct layer kind, the embedding, the head, or the multi-token-prediction block. `unit_tables` computes for
each unit and key, per micro-batch:

    compute_s     Σ of its operators' times
    host_s        what launching kernels adds: (c⁴ + h⁴)^¼ − c with h = kernels · host time a kernel and c the computing
                  and the exposed ring of context parallelism, and the host synchronisation of routed layers
    weight_s      of compute_s, backward, the gradients of weights, which nothing else waits for
    exposed_s     collectives of an axis that computation does not hide, forward and backward
    network_s     of the exposed ones, those that keep the links between nodes busy
    again_s       forward time repeated when activations are recomputed, by recompute mode
    saved_bytes   activations kept for the backward pass, by recompute mode
    parameters    on one rank, inside and outside the routed experts; those that are trained
    attention_s   of compute_s, both ways, what depends on the lengths of packed documents

Layers are built once per problem, keys are few (hundreds to thousands), so a million plans share these tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.models.adapters import ADAPTER
from shardwright.models.graph import LayerGraph, ModelGraph, OperatorKind, TensorSpec
from shardwright.planner.axes.base import LayerCollective
from shardwright.planner.axes.registry import AXES
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.cost.activations import backward_bytes, border_bytes, logit_names, saved_bytes
from shardwright.planner.cost.compute import Machine, OperatorTime, operator_times
from shardwright.planner.cost.losses import beside_bytes, head_gradient_bytes, touches_logits
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.quantising import beside, travels_quantised
from shardwright.planner.cost.recompute import left_out, shares
from shardwright.planner.cost.routed import Launches, buffer_bytes, launches_s, sm_share
from shardwright.planner.cost.scores import further_kernels
from shardwright.planner.cost.standins import stand_in_bytes
from shardwright.planner.cost.workspaces import workspace_bytes
from shardwright.planner.plans import RECOMPUTE_MODES, RING, FloatArray

LAYER_AXES = ("tp", "cp", "ep")
"""Axes that exchange inside layers, in the order of the last index of the exchange tables."""

OPERATORS_A_LAYER = 11.0
"""Operators of the layer whose kernels a stack counts: two norms, four products, attention, rotation, activation, two
additions."""

HOST_NORM = 4.0
"""Launching and running kernels overlap; the norm joins them (1 would add, infinity take the larger); where launches
block it is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTables:
    """Tables of shape [keys, units], [keys, units, modes] or [keys, units, axes]; units as in `unit_names`.

    Attributes:
        compute_forward_s, compute_backward_s, host_forward_s, host_backward_s: seconds, [keys, units].
        weight_s: of computing backward, gradients of weights, [keys, units].
        exposed_forward_s, exposed_backward_s: exposed exchange by axis, [keys, units, axes].
        hidden_forward_s, hidden_backward_s: exchange hidden behind computation, all axes, [keys, units].
        network_forward_s, network_backward_s: of the exposed exchange, what goes over links between nodes, [keys, units].
        again_s: recomputed forward time, [keys, units, modes].
        again_exposed_s: exchange repeated by full recomputing, [keys, units, axes].
        saved_bytes: activations kept, [keys, units, modes].
        live_bytes: activations of the one unit being recomputed, [keys, units, modes].
        backward_bytes: gradients of activations alive in the backward pass of a layer, [keys, units].
        dispatch_bytes: buffers that the dispatcher registers for routed layers, [keys, units].
        stand_in_bytes: gradients that stand in for those of its weights, [keys, units].
        made_bytes: what gradients of weights add to `backward_bytes` before they are added, [keys, units].
        border_bytes: what it reads of other units, [keys, units].
        workspace_bytes: of matrix products where it is run, [keys, units].
        attention_s: of computing, forward and backward, attention cores, [keys, units].
        frozen_products: frozen weights of products that an 8- or 4-bit recipe reads, on one rank, [keys, units].
        dense_parameters, expert_parameters: elements on one rank, [keys, units].
        trained_dense, trained_expert: those of them that are trained, [keys, units].
        hbm_bytes: device-memory traffic forward and backward, [keys, units].
        logits: logits of the loss, or of one piece of it, on one rank, [keys].
        beside_loss: what a loss in pieces holds beside them, bytes, [keys].
        head_gradients: what the head's backward pass holds beside the gradient of logits, bytes, [keys].
        shared_parameters, trained_shared: what embedding and head have in common (tied weights), [keys].
    """

    compute_forward_s: FloatArray
    compute_backward_s: FloatArray
    host_forward_s: FloatArray
    host_backward_s: FloatArray
    weight_s: FloatArray
    exposed_forward_s: FloatArray
    exposed_backward_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    network_forward_s: FloatArray
    network_backward_s: FloatArray
    again_s: FloatArray
    again_exposed_s: FloatArray
    saved_bytes: FloatArray
    live_bytes: FloatArray
    backward_bytes: FloatArray
    dispatch_bytes: FloatArray
    stand_in_bytes: FloatArray
    made_bytes: FloatArray
    border_bytes: FloatArray
    workspace_bytes: FloatArray
    attention_s: FloatArray
    frozen_products: FloatArray
    dense_parameters: FloatArray
    expert_parameters: FloatArray
    trained_dense: FloatArray
    trained_expert: FloatArray
    hbm_bytes: FloatArray
    logits: FloatArray
    beside_loss: FloatArray
    head_gradients: FloatArray
    shared_parameters: FloatArray
    trained_shared: FloatArray


def units_of(graph: ModelGraph) -> tuple[LayerGraph, ...]:
    """Layer kinds, then embedding, head and the multi-token-prediction block if there is one."""
    extra = (graph.mtp,) if graph.mtp is not None else ()
    return (*graph.layer_kinds, graph.embedding, graph.head, *extra)


def unit_tables(graph: ModelGraph, keys: OperatorKeys, machine: Machine, network: Network) -> UnitTables:
    """Tables of all units of a model for all keys."""
    each = [_unit(unit, keys, machine, network) for unit in units_of(graph)]
    stacked = {name: np.stack([u[name] for u in each], axis=1) for name in each[0]}
    stacked["dense_parameters"], shared = _dense_parameters(graph, keys)
    stacked["trained_dense"], trained_shared = stacked["dense_parameters"], shared
    if any(not p.trainable for unit in units_of(graph) for p in unit.parameter_specs):
        stacked["trained_dense"], trained_shared = _dense_parameters(graph, keys, trained=True)
    head = LocalSizes(graph.head.dims, keys)
    logits = max((head.elements(t) for t in _logits(graph.head)), key=np.sum, default=np.zeros(len(keys)))
    ends = {"shared_parameters": shared, "trained_shared": trained_shared}
    ends |= {"logits": logits * (1 + graph.mtp_layers) / keys.loss_chunks}
    ends["beside_loss"] = beside_bytes(graph.head, head, machine.precision)
    ends["head_gradients"] = head_gradient_bytes(graph.head, head, machine.precision, machine.stack)
    return UnitTables(**stacked, **ends)


def _logits(head: LayerGraph) -> list[TensorSpec]:
    names = logit_names(head)
    return [t for o in head.operators for t in o.outputs if t.name in names]


def _dense_parameters(graph: ModelGraph, keys: OperatorKeys, *, trained: bool = False) -> tuple[FloatArray, FloatArray]:
    """Parameters outside routed experts by unit, each name once on a stage; and those of both embedding and head."""
    kinds = [_parameters(unit, keys, expert=False, trained=trained) for unit in graph.layer_kinds]
    first, last = (_elements(unit, keys, trained) for unit in (graph.embedding, graph.head))
    ends = [first, last]
    if graph.mtp is not None:
        further = _elements(graph.mtp, keys, trained)
        last |= {name: each for name, each in first.items() if name in further}
        ends.append({name: each for name, each in further.items() if name not in last})
    columns = [_total(unit.values(), keys) for unit in ends]
    shared = _total((each for name, each in first.items() if name in last), keys)
    return np.stack([*kinds, *columns], axis=1), shared


def _elements(unit: LayerGraph, keys: OperatorKeys, trained: bool) -> dict[str, FloatArray]:
    """Elements of each parameter of a unit outside routed experts on one rank, by name."""
    sizes = LocalSizes(unit.dims, keys)
    return {p.name: sizes.elements(p) for p in _counted(unit.parameter_specs, trained) if "experts" not in p.dims}


def _counted(parameters: Iterable[TensorSpec], trained: bool) -> list[TensorSpec]:
    return [p for p in parameters if p.trainable or not trained]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """Exchange of one unit by axis, [keys, axes].

    Attributes:
        exposed_forward_s, exposed_backward_s: what nothing hides.
        total_forward_s, total_backward_s: all of it.
        left_forward_s, left_backward_s: what the stack would hide but computing is too short for, all axes, [keys].
        network_forward_s, network_backward_s: of what nothing hides, that over links between nodes, all axes, [keys].
    """

    exposed_forward_s: FloatArray
    exposed_backward_s: FloatArray
    total_forward_s: FloatArray
    total_backward_s: FloatArray
    left_forward_s: FloatArray
    left_backward_s: FloatArray
    network_forward_s: FloatArray
    network_backward_s: FloatArray


def layer_collectives(unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> list[LayerCollective]:
    """All collectives of a unit, axis by axis; operands of products travel quantised where the stack quantises first."""
    activation = float(machine.precision.activation_bytes)
    narrow = machine.precision.gemm_input_bytes / activation if travels_quantised(machine.stack, machine.precision) else 1.0
    return [
        replace(c, message_bytes=c.message_bytes * narrow) if c.operand else c
        for axis in AXES
        for c in axis.layer_collectives(unit, sizes, keys, activation)
    ]


def exposed_fraction(collective: LayerCollective, keys: OperatorKeys, machine: Machine, way: int) -> FloatArray:
    """Share of a collective that the stack does not even try to hide, forward (way 0) or backward (1).

    Without sequence parallelism tp reduces gradients of inputs while gradients of weights are made, or hides nothing; cp needs
    a ring, whose steps a core goes through one by one.
    """
    stack = machine.stack
    if collective.axis == "tp":
        return np.where(keys.sp > 0, stack.tp_exposed, stack.tp_exposed_unsequenced if way else 1.0)
    if collective.axis == "cp":
        return np.where(keys.cp_comm == RING, 0.0, 1.0)
    return np.full(len(keys), stack.ep_exposed)


def _unit(unit: LayerGraph, keys: OperatorKeys, machine: Machine, network: Network) -> dict[str, FloatArray]:
    sizes = LocalSizes(unit.dims, keys)
    times = {
        o.name: operator_times(o, sizes, machine, beside(unit, o, machine.stack, machine.precision)) for o in unit.operators
    }
    exchange = _exchange(unit, sizes, keys, machine, network, times)
    forward = _total((t.forward_s for t in times.values()), keys)
    backward = _total((t.backward_s for t in times.values()), keys)
    stack, experts = machine.stack, launches_s(unit, sizes, machine, times)
    further = further_kernels(unit, sizes, stack)
    busy_forward, busy_backward = forward + exchange.left_forward_s, backward + exchange.left_backward_s
    host_forward = _host_s(unit, machine, busy_forward, further, stack.moe_host_forward_s, experts[0])
    host_backward = _host_s(unit, machine, busy_backward, further, stack.moe_host_backward_s, experts[1])
    saved = saved_bytes(unit, sizes, keys, machine)
    repeated, (gradients, made) = exchange.exposed_forward_s * is_layer(unit), backward_bytes(unit, sizes, keys, machine)
    return {
        "compute_forward_s": forward,
        "compute_backward_s": backward,
        "host_forward_s": host_forward,
        "host_backward_s": host_backward,
        "weight_s": _total((t.weight_s for t in times.values() if t.weight_s is not None), keys),
        "exposed_forward_s": exchange.exposed_forward_s,
        "exposed_backward_s": exchange.exposed_backward_s,
        "hidden_forward_s": (exchange.total_forward_s - exchange.exposed_forward_s).sum(axis=1),
        "hidden_backward_s": (exchange.total_backward_s - exchange.exposed_backward_s).sum(axis=1),
        "network_forward_s": exchange.network_forward_s,
        "network_backward_s": exchange.network_backward_s,
        "again_s": _again_s(unit, times, forward + host_forward, keys, machine),
        "again_exposed_s": repeated,
        "saved_bytes": saved,
        "live_bytes": np.maximum(saved[:, :1] - saved, 0.0),
        "backward_bytes": gradients,
        "dispatch_bytes": buffer_bytes(unit, sizes, keys, machine.stack),
        "stand_in_bytes": stand_in_bytes(unit, sizes, keys, machine),
        "made_bytes": made,
        "border_bytes": border_bytes(unit, sizes, float(machine.precision.activation_bytes)),
        "workspace_bytes": workspace_bytes(keys, machine, routed=is_routed(unit)),
        "attention_s": _total((t.forward_s + t.backward_s for t in _of_attention(unit, times)), keys),
        "frozen_products": _frozen_products(unit, keys),
        "expert_parameters": _parameters(unit, keys, expert=True),
        "trained_expert": _parameters(unit, keys, expert=True, trained=True),
        "hbm_bytes": _total((t.hbm_bytes for t in times.values()), keys),
    }


def _of_attention(unit: LayerGraph, times: dict[str, OperatorTime]) -> list[OperatorTime]:
    return [times[o.name] for o in unit.operators if o.attention is not None]


def _total(parts: Iterable[FloatArray], keys: OperatorKeys) -> FloatArray:
    return sum(parts, start=np.zeros(len(keys)))


def _exchange(
    unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine, network: Network, times: dict[str, OperatorTime]
) -> _Exchange:
    """Exchange of a unit; what is hidden never exceeds the computation there is to hide it."""
    shape = (len(keys), len(LAYER_AXES))
    total, wanted, outside = ((np.zeros(shape), np.zeros(shape)) for _ in range(3))
    for collective in layer_collectives(unit, sizes, keys, machine):
        priced = network.in_layer(collective)
        each = priced.time_s
        axis = LAYER_AXES.index(collective.axis)
        for way, count in enumerate((collective.forward, collective.backward)):
            share = 1.0 - exposed_fraction(collective, keys, machine, way)
            total[way][:, axis] += each * count
            wanted[way][:, axis] += each * count * share
            outside[way][:, axis] += priced.network_s * count
    hidden = [_hidden(wanted[way], _computing(unit, times, keys, way, machine)) for way in (0, 1)]
    left = np.ones(len(LAYER_AXES)) - np.multiply.outer(sm_share(machine, keys), [axis == "ep" for axis in LAYER_AXES])
    exposed = [total[way] - left * hidden[way] for way in (0, 1)]
    return _Exchange(
        exposed_forward_s=exposed[0],
        exposed_backward_s=exposed[1],
        total_forward_s=total[0],
        total_backward_s=total[1],
        left_forward_s=(wanted[0] - hidden[0]).sum(axis=1),
        left_backward_s=(wanted[1] - hidden[1]).sum(axis=1),
        network_forward_s=np.minimum(exposed[0], outside[0]).sum(axis=1),
        network_backward_s=np.minimum(exposed[1], outside[1]).sum(axis=1),
    )


def _computing(
    unit: LayerGraph, times: dict[str, OperatorTime], keys: OperatorKeys, way: int, machine: Machine
) -> tuple[FloatArray, FloatArray]:
    """Computation of a pass that can hide a ring (attention), and any exchange (all of it), [keys]."""

    def total(names: list[str]) -> FloatArray:
        parts = (times[name].backward_s if way else times[name].forward_s for name in names)
        return _total(parts, keys)

    attention = [o.name for o in unit.operators if o.attention is not None]
    return machine.stack.cp_hidden * total(attention), total(list(times))


def _hidden(wanted: FloatArray, computing: tuple[FloatArray, FloatArray]) -> FloatArray:
    """What is hidden of each axis' exchange: the ring first, the others behind what it leaves, [keys, axes]."""
    attention, left = computing
    hidden = np.zeros_like(wanted)
    for axis in ("cp", "tp", "ep"):
        index = LAYER_AXES.index(axis)
        limit = np.minimum(attention, left) if axis == "cp" else left
        hidden[:, index] = np.minimum(wanted[:, index], limit)
        left = left - hidden[:, index]
    return hidden


def is_routed(unit: LayerGraph) -> bool:
    """Whether a unit holds routed experts."""
    return any(o.kind == "dispatch" for o in unit.operators)


def is_layer(unit: LayerGraph) -> bool:
    """Whether a unit is a whole layer (embedding and head are not)."""
    return unit.kind not in {"embedding", "head"}


def _host_s(
    unit: LayerGraph,
    machine: Machine,
    busy: FloatArray,
    launches: FloatArray,
    synchronisation_s: float,
    experts: Launches,
) -> FloatArray:
    """What launches (`launches` beside the stack's) and host synchronisation add to a pass that keeps the device busy.

    Waiting for exchange that computing was too short to hide counts as busy: the host launches ahead meanwhile, so that
    faster computing, which hides less, never slows a layer down. Launches of experts are among those ahead, unless the host has
    to wait for counts of rows first: then the device waits for what its work on the experts does not hide.
    """
    if not is_layer(unit):
        return np.zeros_like(busy)
    stack, routed = machine.stack, is_routed(unit)
    further = sum(1 for o in unit.operators if o.module == ADAPTER)
    counted = stack.kernels_per_layer * _operators_of(unit) / OPERATORS_A_LAYER
    kernels = counted + routed * stack.moe_kernels_per_layer + further + launches
    waits = synchronisation_s > 0
    launch = kernels * stack.host_s_per_kernel * machine.site.host + experts.all_s * (not waits)
    norm = 1.0 if stack.launches_block else HOST_NORM
    late = experts.beyond_s * waits
    total = ((busy + late) ** norm + launch**norm) ** (1.0 / norm) - busy
    return np.asarray(total + routed * synchronisation_s * machine.site.host)


def _operators_of(unit: LayerGraph) -> float:
    """Operators that start kernels; of a layer built from an architecture as many as stacks count on."""
    if unit.border is None:
        return OPERATORS_A_LAYER
    return float(sum(1 for o in unit.operators if o.kind is not OperatorKind.VIEW))


def _again_s(
    unit: LayerGraph, times: dict[str, OperatorTime], forward: FloatArray, keys: OperatorKeys, machine: Machine
) -> FloatArray:
    """Recomputed forward time by mode; embedding and head are never recomputed."""
    again = np.zeros((len(keys), len(RECOMPUTE_MODES)))
    if is_layer(unit):
        chosen = [share * times[name].forward_s for name, share in shares(unit, machine.stack).items()]
        again[:, RECOMPUTE_MODES.index("selective")] = _total(chosen, keys)
        spared = _total((times[name].forward_s for name in left_out(unit, machine.stack)), keys)
        again[:, RECOMPUTE_MODES.index("full")] = forward - spared - _of_cut_losses(unit, times, keys)
    return again


def _of_cut_losses(unit: LayerGraph, times: dict[str, OperatorTime], keys: OperatorKeys) -> FloatArray:
    """Forward time of a unit's loss in pieces, which is never run again: its backward pass is over by then."""
    own = _total((times[o.name].forward_s for o in unit.operators if touches_logits(o)), keys)
    return np.where(keys.loss_chunks > 1, own, 0.0)


def _parameters(unit: LayerGraph, keys: OperatorKeys, *, expert: bool, trained: bool = False) -> FloatArray:
    sizes, counted = LocalSizes(unit.dims, keys), _counted(unit.parameter_specs, trained)
    return _total((sizes.elements(p) for p in counted if ("experts" in p.dims) == expert), keys)


def _frozen_products(unit: LayerGraph, keys: OperatorKeys) -> FloatArray:
    """Frozen weights of products that run in low precision where the job does."""
    sizes = LocalSizes(unit.dims, keys)
    products = [o for o in unit.operators if o.gemm is not None and o.quantizable]
    return _total((sizes.elements(p) for o in products for p in o.parameters if not p.trainable), keys)
