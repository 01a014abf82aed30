"""What dispatching rows to experts costs beside its exchange: multiprocessors, waiting of the host, buffers.

    multiprocessors   kernels of DeepEP and HybridEP take some of the device's while they run: computing that hides s seconds of
                      them takes s·(taken / all) longer                                                 `sm_share`
    launches          products that start expert by expert, 2 forward and 4 backward, and below 16 bits the small kernels of
                      their inputs and gradients, take the host time; one that has waited for counts has queued nothing, so
                      that the device waits for what its own work on them does not hide                 `launches_s`
    buffers           of DeepEP, for c = taken / 2 channels, of h values in 16 bits: over NVLink c·min(d, 8)·q·h with q by ranks
                      (`NVLINK_TOKENS`), and over the network c·(d / 8)·128·h, to send and to receive; of HybridEP, what all d
                      ranks of a group may send, for dispatch and for combine: 2·d·t·h    `buffer_bytes`

Rows that are copied, sent and received stand in memory as what the operators read and write (`activations.backward_bytes`).
Sources: NVIDIA/TransformerEngine pytorch/module/grouped_linear.py, pytorch/csrc/extensions/cast.cpp (counted),
deepseek-ai/DeepEP csrc/legacy/config.hpp (size hints), deep_ep/buffers/legacy.py (configurations by ranks), branch hybrid-ep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.models.graph import LayerGraph, OperatorKind
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys, unique_keys
from shardwright.planner.cost.compute import Machine, OperatorTime
from shardwright.planner.cost.experts import quantising_kernels
from shardwright.planner.plans import DEEP_EP, HYBRID_EP, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.stacks import StackProfile

NVLINK_PEERS = 8
NVLINK_TOKENS = ((8, 256.0), (64, 288.0), (96, 480.0), (128, 560.0))
MOST_NVLINK_TOKENS, NETWORK_TOKENS = 720.0, 128.0
"""Tokens that a channel of DeepEP may have on the way from a peer over NVLink, up to so many ranks and above, and from one over
the network (deepseek-ai/DeepEP, deep_ep/buffers/legacy.py, get_dispatch_config and get_combine_config)."""

PRODUCTS = (2.0, 4.0)
"""Products of an expert, forward and backward."""

TENSORS = (2.0, 2.0)
"""Tensors of an expert that are quantised one by one below 16 bits: inputs of its products forward, gradients backward."""

BESIDE_ROW = 2048.0
"""Bytes that DeepEP makes room for beside a row: places and weights of 128 experts, 128 scales."""

WIDTH = 2.0
"""Bytes of a value that buffers are made for, also where it is sent in fewer."""


def operator_keys(problem: Problem, batch: PlanBatch) -> tuple[OperatorKeys, IntArray]:
    """The distinct keys of a batch in a problem and, for each plan, the index of its key."""
    job, stack = problem.job, problem.stack
    low = job.precision.gemm_input_bytes < job.precision.activation_bytes
    return unique_keys(batch, job.seq_len, stack.moe_load_imbalance, dispatch_8bit=stack.moe_dispatch_8bit and low)


def multiprocessors(stack: StackProfile, keys: OperatorKeys) -> FloatArray:
    """Multiprocessors that kernels of the dispatcher take, [keys]; the library's exchange is priced as taking none."""
    taken = {DEEP_EP: stack.deepep_multiprocessors, HYBRID_EP: stack.hybridep_multiprocessors}
    return np.asarray(sum((float(n) * (keys.moe_dispatcher == kind) for kind, n in taken.items()), start=np.zeros(len(keys))))


def sm_share(machine: Machine, keys: OperatorKeys) -> FloatArray:
    """Share of the device's multiprocessors that kernels of the dispatcher take from computing beside them, [keys]."""
    return np.minimum(multiprocessors(machine.stack, keys) / (machine.plain.sm_count or machine.fit.gemm.sm_count), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Host time of launching what a rank's experts run one by one in one pass, [keys].

    Attributes:
        all_s: all of it.
        beyond_s: what the device's own work on it does not hide.
    """

    all_s: FloatArray
    beyond_s: FloatArray


def launches_s(
    unit: LayerGraph, sizes: LocalSizes, machine: Machine, times: Mapping[str, OperatorTime]
) -> tuple[Launches, Launches]:
    """Launches of a rank's experts, forward and backward; 0 without experts."""
    stack = machine.stack
    experts = sizes.dim("experts", beside_tensor=False) if "experts" in unit.dims else np.zeros(1)
    each = quantising_kernels(machine.precision) * stack.moe_launch_s
    grouped = [times[o.name] for o in unit.operators if o.kind is OperatorKind.GROUPED_GEMM]
    made = []
    for way, tensors, products in zip(("forward_s", "backward_s"), TENSORS, PRODUCTS, strict=True):
        host = experts * (tensors * each + products * stack.moe_product_launch_s) * machine.site.host
        device = sum((getattr(time, way) for time in grouped), start=np.zeros(1))
        made.append(Launches(all_s=host, beyond_s=np.maximum(host - device, 0.0)))
    return made[0], made[1]


def buffer_bytes(unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, stack: StackProfile) -> FloatArray:
    """Buffers that the dispatcher of a routed layer registers once for all layers, [keys]; 0 of other layers."""
    none = np.zeros(len(keys))
    if not any(operator.kind == "dispatch" for operator in unit.operators):
        return none
    row = unit.dims["hidden"] * WIDTH
    channels, ranks = multiprocessors(stack, keys) / 2.0, keys.ep.astype(np.float64)
    domains = np.where(ranks > NVLINK_PEERS, ranks / NVLINK_PEERS, 0.0)
    nearby = np.select([ranks <= most for most, _ in NVLINK_TOKENS], [count for _, count in NVLINK_TOKENS], MOST_NVLINK_TOKENS)
    queues = channels * (row + BESIDE_ROW) * (np.minimum(ranks, NVLINK_PEERS) * nearby + 2.0 * domains * NETWORK_TOKENS)
    tokens = sizes.product(("batch", "seq"), beside_tensor=False)
    whole = 2.0 * ranks * tokens * row
    return np.where(keys.moe_dispatcher == DEEP_EP, queues, np.where(keys.moe_dispatcher == HYBRID_EP, whole, none))
