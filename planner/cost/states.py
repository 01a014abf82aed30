"""Parameters, gradients and optimizer states: their bytes on a rank, their exchange, the time of the update.

With D (dense) and E (expert) parameters of a rank after tensor and expert parallelism, D' and E' those of them that are
trained (all, without adapters and frozen modules), and the group sizes

    z = dp_shard · cp   ranks that share D           y = edp / dp_replicate   ranks that share E

    bytes         parameters   p·(D + E), / z and / y under ZeRO 3 (arXiv 1910.02054)
                  gradients    g·(D' + E'), / z and / y from ZeRO 2 where they are reduced after every micro-batch
                  optimizer    o·(D' + E'), / z and / y from ZeRO 1
                  where ZeRO 3 shards fp32 parameters (`fp32_shards`) they are the master: 4 for p and p + 2 less for o
    exchange      ZeRO 0       all-reduce of g·D' over dp·cp ranks, of g·E' over edp ranks
                  ZeRO 1, 2    reduce-scatter of g, all-gather of p, of D' and E', over z and y; where the stack reduces whole
                               gradients under ZeRO 1, the all-reduce of ZeRO 0 and that all-gather
                  ZeRO 3       all-gather of p of D and E for each pass, reduce-scatter of g of D' and E'
                  replicas     all-reduce of the shards over dp_replicate ranks
    update        (a·(D'/z + E'/y) + b·(D' + E')) / memory bandwidth
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.hardware.kernels import memory_bound_s
from shardwright.planner.cost.ends import end_gradients
from shardwright.planner.cost.grounds import Ground
from shardwright.planner.cost.operators import UnitTables
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.stacks import StackProfile

FED_BYTES_PER_S = 25e9
"""Network of a GPU at which exchange takes the multiprocessors that a stack's interference stands for: 200 GB/s a node of 8, as
the runs that prior comes from had (mosaicml/llm-foundry, scripts/train/benchmarking, 1,600 Gb/s); prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTables:
    """States of stages, arrays of shape [plans, runs]; `updated` are the parameters whose update is a rank's.

    `buffers_bytes` are there always, `reducing_bytes` while a layer's backward pass runs; `head_gradient_bytes`,
    `head_reduced_bytes`, `kept_gradient_bytes` and `embedding_gradient_bytes` are those of `ends`. `network` says where their
    exchange goes over links between nodes, all of it or a part; `copies_forward_s` and `copies_backward_s` are what copying
    parameters out of the buffers of a gather, and gradients into those of a reduction, takes of the computation of a pass.
    `interference_forward` and `interference_backward` are the shares that exchange in every pass slows computing beside it by.
    """

    parameters_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    buffers_bytes: FloatArray
    reducing_bytes: FloatArray
    head_gradient_bytes: FloatArray
    head_reduced_bytes: FloatArray
    kept_gradient_bytes: FloatArray
    embedding_gradient_bytes: FloatArray
    reduce_s: FloatArray
    gather_s: FloatArray
    update_s: FloatArray
    updated: FloatArray
    copies_forward_s: FloatArray
    copies_backward_s: FloatArray
    network: BoolArray
    interference_forward: FloatArray
    interference_backward: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters held on a rank of each run and the ranks they may be sharded over; [plans, runs].

    Attributes:
        dense, expert: outside and inside routed experts.
        trained_dense, trained_expert: those of them that are trained.
        frozen_products: frozen weights of products, a part of `dense` (and of `expert`).
        largest: of the largest unit (layer, embedding, head).
        largest_layer, trained_layer: of the largest layer, and of it what is trained.
        ends: of embedding and head.
        trained_ends: what is trained of the embedding, of the head, of both together.
        units: number of units.
        dense_shards, expert_shards: ranks that shard them, [plans, 1].
    """

    dense: FloatArray
    expert: FloatArray
    trained_dense: FloatArray
    trained_expert: FloatArray
    frozen_products: FloatArray
    largest: FloatArray
    largest_layer: FloatArray
    trained_layer: FloatArray
    ends: FloatArray
    trained_ends: tuple[FloatArray, FloatArray, FloatArray]
    units: FloatArray
    dense_shards: IntArray
    expert_shards: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StateExchange:
    """One collective of the states: what `communication` prints a line of.

    Attributes:
        message_bytes: all of it, [plans, runs].
        pieces: messages it goes in: one a unit where every pass exchanges, else one, [plans, runs].
        applies: where the plan does it, [plans].
        phase: "reduce" (gradients) or "gather" (parameters).
    """

    name: str
    kind: str
    size: IntArray
    stride: IntArray
    message_bytes: FloatArray
    pieces: FloatArray
    applies: IntArray
    phase: str


def held(batch: PlanBatch, key: IntArray, tables: UnitTables, splits: SplitTable, runs: int) -> Held:
    """What the ranks of each run hold.

    Args:
        batch: plans.
        key: index of each plan's operator key.
        tables: parameters of units.
        splits: units of stages.
        runs: how many runs to fill.
    """
    counts = splits.counts[batch.split, :runs]
    both_ends = splits.held(counts, splits.kinds) * splits.held(counts, splits.kinds + 1)

    def total(table: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("pru,pu->pr", counts, table[key]))

    per_unit = tables.dense_parameters[key] + tables.expert_parameters[key]
    trained = tables.trained_dense[key] + tables.trained_expert[key]
    present = [np.where(counts > 0, table[:, None, :], 0.0) for table in (per_unit, trained)]
    shared = both_ends * tables.shared_parameters[key][:, None]
    layers = splits.layer_units(counts.shape[2])
    first, last = (splits.held(present[1], splits.kinds + end) for end in (0, 1))
    trained_shared = both_ends * tables.trained_shared[key][:, None]
    return Held(
        dense=total(tables.dense_parameters) - shared,
        expert=total(tables.expert_parameters),
        trained_dense=total(tables.trained_dense) - trained_shared,
        trained_expert=total(tables.trained_expert),
        frozen_products=total(tables.frozen_products),
        largest=present[0].max(axis=2),
        largest_layer=present[0][:, :, layers].max(axis=2, initial=0.0),
        trained_layer=present[1][:, :, layers].max(axis=2, initial=0.0),
        ends=splits.held(present[0], splits.kinds) + splits.held(present[0], splits.kinds + 1) - shared,
        trained_ends=(first, last, first + last - trained_shared),
        units=np.maximum(counts.sum(axis=2), 1.0),
        dense_shards=(batch.dp_shard * batch.cp)[:, None],
        expert_shards=np.maximum(batch.edp // batch.shown_dp_replicate, 1)[:, None],
    )


def states(batch: PlanBatch, h: Held, problem: Problem, grounds: Sequence[Ground], area: IntArray) -> StateTables:
    """Bytes, exchange and update of the states; `area` says which of the grounds each run stands on, [plans, runs]."""
    job, stack = problem.job, problem.stack
    zero = batch.zero[:, None]
    own = h.dense + h.expert
    sharded = h.dense / h.dense_shards + h.expert / h.expert_shards
    trained = h.trained_dense + h.trained_expert
    trained_share = h.trained_dense / h.dense_shards + h.trained_expert / h.expert_shards
    width = job.precision.parameter_bytes
    state = stack.optimizer_bytes(job.optimizer, job.precision)
    doubled = np.where(zero >= 3, stack.doubled_bytes(job.optimizer, job.precision), 0.0)
    wider = np.where(doubled > 0, job.optimizer.master_bytes - width, 0.0)  # the parameter is its master
    parameters = width * np.where(zero >= 3, sharded, own) + wider * trained_share - _saved_by_quantising(batch, h, problem)
    reduced = (zero >= 2) & (every_pass(batch, stack) | (batch.micro_batches == 1))[:, None]
    exchanges = state_exchanges(batch, h, problem)
    seconds = {phase: np.zeros_like(own) for phase in ("reduce", "gather")}
    busy = {phase: np.zeros_like(own) for phase in ("reduce", "gather")}
    outside, whole, channels = np.zeros(own.shape, dtype=bool), zero >= 3, channel_share(grounds)[area]
    for exchange in exchanges:
        each, over_network = _spread(exchange, grounds, area)
        applies = exchange.applies[:, None] > 0
        seconds[exchange.phase] += np.where(applies, each, 0.0)
        busy[exchange.phase] += np.where(applies, each * np.where(over_network, channels, 1.0), 0.0)
        outside |= applies & over_network
    seconds["gather"] += np.where((zero == 1) | (zero == 2), stack.broadcast_s_per_rank * h.dense_shards, 0.0)
    moved = stack.optimizer_bytes_per_sharded_parameter * np.where(zero >= 1, trained_share, trained) + (
        stack.optimizer_bytes_per_parameter * np.where(zero >= 3, trained_share, trained)
    )
    copies, made = _copied_bytes(batch, h, stack), end_gradients(batch, h.trained_ends, reduced, problem)
    return StateTables(
        parameters_bytes=parameters,
        gradients_bytes=_held_gradient_bytes(problem) * np.where(reduced, trained_share, trained),
        optimizer_bytes=(state - doubled - wider) * np.where(zero >= 1, trained_share, trained),
        updated=np.where(zero >= 1, trained_share, trained),
        buffers_bytes=_buffers(batch, h, problem),
        reducing_bytes=np.where(reduced & (zero >= 3), (width + job.grad_bytes) * h.trained_layer, 0.0),
        head_gradient_bytes=made.head,
        head_reduced_bytes=made.reduced,
        kept_gradient_bytes=made.kept,
        embedding_gradient_bytes=made.embedding,
        reduce_s=seconds["reduce"],
        gather_s=seconds["gather"],
        update_s=_moved_s(moved, grounds, area),
        copies_forward_s=_moved_s(copies[0], grounds, area),
        copies_backward_s=_moved_s(copies[0] + copies[1], grounds, area),
        network=outside,
        interference_forward=stack.fsdp_interference * _share(busy["gather"], seconds["gather"]),
        interference_backward=stack.fsdp_interference
        * _share(whole * busy["gather"] + busy["reduce"], whole * seconds["gather"] + seconds["reduce"]),
    )


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.ones_like(whole), where=whole > 0)


def channel_share(grounds: Sequence[Ground]) -> FloatArray:
    """Multiprocessors that exchange between nodes takes over those it takes where nodes have fast networks, [grounds].

    NCCL opens as many channels as the network of a node feeds (NVIDIA/nccl, graph/search.cc), one multiprocessor each.
    """
    rates = [[(node.internode_bytes_per_s or np.inf) / gpus for node, gpus in ground.nodes] for ground in grounds]
    return np.array([min([1.0, *(rate / FED_BYTES_PER_S for rate in each)]) for each in rates])


def _copied_bytes(batch: PlanBatch, h: Held, stack: StackProfile) -> tuple[FloatArray, FloatArray]:
    """Bytes that a gather and a reduction of sharded states copy on each rank in every pass, [plans, runs]."""
    repeated = every_pass(batch, stack)[:, None]
    dense, expert = (repeated & (shards > 1) for shards in (h.dense_shards, h.expert_shards))
    gathered = stack.gather_copy_bytes * (h.dense * dense + h.expert * expert)
    reduced = stack.reduce_copy_bytes * (h.trained_dense * dense + h.trained_expert * expert)
    return np.where(batch.zero[:, None] >= 3, gathered, 0.0), reduced


def _moved_s(moved: FloatArray, grounds: Sequence[Ground], area: IntArray) -> FloatArray:
    """Time to move so many bytes in device memory, on the slowest machine of each run, [plans, runs]."""
    made = np.zeros_like(moved)
    for index, ground in enumerate(grounds):
        own = [machine.site.device * memory_bound_s(machine.fit, machine.plain, moved) for machine in ground.machines]
        made = own[0] if len(grounds) == 1 else np.where(area == index, np.max(own, axis=0), made)
    return made


def _held_gradient_bytes(problem: Problem) -> float:
    """Bytes of gradients a trained parameter: those accumulated, and autograd's own where the stack keeps both."""
    grad, width = problem.job.grad_bytes, problem.job.precision.parameter_bytes
    return float(grad + (width if problem.stack.keeps_both_gradients and grad > width else 0))


def _saved_by_quantising(batch: PlanBatch, h: Held, problem: Problem) -> FloatArray:
    """What frozen weights take less where the stack holds them in 8 bits alone, [plans, runs]."""
    precision = problem.job.precision
    if not problem.stack.frozen_8bit or precision.gemm_input_bytes >= precision.parameter_bytes:
        return np.zeros_like(h.dense)
    less = precision.parameter_bytes - max(precision.gemm_input_bytes, 1.0)
    return less * np.where(batch.zero[:, None] >= 3, h.frozen_products / h.dense_shards, h.frozen_products)


def every_pass(batch: PlanBatch, stack: StackProfile) -> BoolArray:
    """Where sharded gradients are reduced (and parameters gathered) in every pass rather than once a step, [plans].

    Under a pipeline, stacks gather once a step and accumulate whole gradients (PyTorch pipelining with FSDP2).
    """
    return np.asarray((batch.zero >= 2) & ((batch.pp == 1) | (stack.fsdp_gathers_per_step == "micro-batch")))


def state_exchanges(batch: PlanBatch, h: Held, problem: Problem) -> list[StateExchange]:
    """All collectives of gradients and parameters; messages are of shape [plans, runs]."""
    width, grad = float(problem.job.precision.parameter_bytes), float(problem.job.grad_bytes)
    zero, replicas = batch.zero, batch.shown_dp_replicate
    sharded = (zero > 0).astype(np.int64)
    dense_stride, expert_stride = batch.tp, batch.etp * batch.ep
    dense_shards, expert_shards = h.dense_shards[:, 0], h.expert_shards[:, 0]
    pieces = np.where(every_pass(batch, problem.stack)[:, None], h.units, 1.0)
    across, whole = sharded * (replicas > 1), (zero >= 3)[:, None]
    in_parts = sharded * ((zero > 1) | (not problem.stack.zero1_reduces_whole))
    in_whole, across = 1 - in_parts, across * in_parts
    dense, expert = h.trained_dense, h.trained_expert
    gathered, expert_gathered = np.where(whole, h.dense, dense), np.where(whole, h.expert, expert)
    inner, expert_inner = dense_shards * dense_stride, expert_shards * expert_stride
    rows = (
        ("gradients", "all_reduce", batch.dp * batch.cp, dense_stride, grad * dense, in_whole, "reduce"),
        ("expert gradients", "all_reduce", batch.edp, expert_stride, grad * expert, in_whole, "reduce"),
        ("gradients", "reduce_scatter", dense_shards, dense_stride, grad * dense, in_parts, "reduce"),
        ("expert gradients", "reduce_scatter", expert_shards, expert_stride, grad * expert, in_parts, "reduce"),
        ("parameters", "all_gather", dense_shards, dense_stride, width * gathered, sharded, "gather"),
        ("expert parameters", "all_gather", expert_shards, expert_stride, width * expert_gathered, sharded, "gather"),
        ("gradients", "all_reduce", replicas, inner, grad * dense / h.dense_shards, across, "reduce"),
        ("expert gradients", "all_reduce", replicas, expert_inner, grad * expert / h.expert_shards, across, "reduce"),
    )
    return [_exchange(*row, pieces=pieces) for row in rows]


def _exchange(
    name: str,
    kind: str,
    size: IntArray,
    stride: IntArray,
    message: FloatArray,
    applies: IntArray,
    phase: str,
    *,
    pieces: FloatArray,
) -> StateExchange:
    """A collective; where it does not apply its group is a single rank, so that no shape is looked up in vain."""
    used = (applies > 0) & (size > 1)
    return StateExchange(
        name=name,
        kind=kind,
        size=np.where(used, size, 1),
        stride=np.where(used, stride, 1),
        message_bytes=message,
        pieces=pieces,
        applies=used.astype(np.int64),
        phase=phase,
    )


def _spread(exchange: StateExchange, grounds: Sequence[Ground], area: IntArray) -> tuple[FloatArray, BoolArray]:
    """Seconds for every run, and whether they go over the network: groups are per plan, messages per run."""
    shape = area.shape
    size = np.repeat(exchange.size, shape[1])
    stride = np.repeat(exchange.stride, shape[1])
    each = (exchange.message_bytes / exchange.pieces).reshape(-1)
    if len(grounds) == 1:
        priced = grounds[0].network.collective(exchange.kind, size, stride, each)
        return priced.time_s.reshape(shape) * exchange.pieces, (priced.network_s > 0).reshape(shape)
    seconds, outside = np.zeros(len(each)), np.zeros(len(each), dtype=bool)
    for index, ground in enumerate(grounds):
        rows = np.flatnonzero(area.reshape(-1) == index)
        if len(rows):
            priced = ground.network.collective(exchange.kind, size[rows], stride[rows], each[rows])
            seconds[rows], outside[rows] = priced.time_s, priced.network_s > 0
    return seconds.reshape(shape) * exchange.pieces, outside.reshape(shape)


def _buffers(batch: PlanBatch, h: Held, problem: Problem) -> FloatArray:
    """Gathered parameters under ZeRO 3, else gradient buckets.

    Gathered are two units, or the whole stage once a step; where embedding and head stay gathered, they and two layers.
    """
    width, own = problem.job.precision.parameter_bytes, h.dense + h.expert
    trained = h.trained_dense + h.trained_expert
    whole = (problem.stack.fsdp_gathers_per_step == "step") & (batch.pp > 1)
    units = 2 * h.largest_layer + h.ends if problem.stack.keeps_ends_gathered else 2 * h.largest
    gathered = np.where(whole[:, None], own, np.minimum(units, own)) * width
    size = problem.stack.bucket_bytes * problem.job.grad_bytes / problem.stack.grad_bytes
    bucket = np.where(batch.dp > 1, size, 0.0)[:, None]
    return np.where(batch.zero[:, None] >= 3, gathered, np.minimum(bucket, trained * problem.job.grad_bytes))
