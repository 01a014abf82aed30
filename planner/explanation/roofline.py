"""Where the heavy operators of a plan stand under the roof of the device.

For one rank of the stage that determines the step, from the same times that price it (`cost.compute.operator_times`):

    intensity = FLOPs / bytes          ceiling = min(peak, intensity · bandwidth)          attained = FLOPs / time / ceiling

FLOPs are those that run, forward and backward: three products of 2·m·n·k (two where the weight is frozen), attention of the
pairs a mask leaves, backward 2.5 times of it, or all pairs where scores are written to memory. What has no products is told by
the bytes it moves: its ceiling is the bandwidth, and it attains bytes / time of it. All operators sum to `time.compute_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.hardware.kernels import visible_keys
from shardwright.models.graph import AttentionShape, GemmShape, LayerGraph, Operator
from shardwright.planner.axes.sharding import LocalSizes, has_tensor_dim
from shardwright.planner.cost.compute import Machine, operator_times
from shardwright.planner.cost.operators import units_of
from shardwright.planner.cost.quantising import beside
from shardwright.planner.explanation.saved import Priced, Record
from shardwright.planner.plans import FloatArray

SHOWN = 8
"""Operators told, the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One operator of one kind of layer in a step of the rank.

    Attributes:
        runs: how often it runs, forward and backward counted once.
        time_s, flops, hbm_bytes: of one run, both ways; no FLOPs where it has no products.
        peak_flops: rate of the matrix units it runs on.
    """

    name: str
    unit: str
    runs: float
    time_s: float
    flops: float | None
    hbm_bytes: float
    peak_flops: float


def loads(priced: Priced, index: int) -> list[Load]:
    """All operators of the critical stage of a plan."""
    context, batch = priced.context, priced.batch
    at = int(batch.split[index]), int(priced.prices.critical[index])
    counts, machine = context.splits.units(*at), slowest(context.ground(*at).machines)
    count, key = int(batch.micro_batches[index]), int(priced.key[index])
    made = []
    for unit, times in zip(units_of(context.problem.graph), counts.tolist(), strict=True):
        sizes = LocalSizes(unit.dims, context.keys)
        made += [_load(unit, operator, sizes, machine, key, times * count) for operator in unit.operators if times]
    return made


def slowest(machines: Sequence[Machine]) -> Machine:
    """The machine of a stage: of several kinds of device, the one with the least rate of products."""
    return min(machines, key=lambda machine: machine.products.peak_flops)


def _load(unit: LayerGraph, operator: Operator, sizes: LocalSizes, machine: Machine, key: int, runs: float) -> Load:
    time = operator_times(operator, sizes, machine, beside(unit, operator, machine.stack, machine.precision))
    flops = _flops(operator, sizes, machine)
    return Load(
        name=operator.name,
        unit=unit.kind,
        runs=runs,
        time_s=_at(time.forward_s + time.backward_s, key),
        flops=None if flops is None else _at(flops, key),
        hbm_bytes=_at(time.hbm_bytes, key),
        peak_flops=_peak(operator, machine),
    )


def _at(values: FloatArray, key: int) -> float:
    """The value of a key, of an array that may hold one value for all keys."""
    flat = np.atleast_1d(values)
    return float(flat[key] if len(flat) > 1 else flat[0])


def _peak(operator: Operator, machine: Machine) -> float:
    precision = machine.precision
    low = precision.gemm_input_bytes < precision.activation_bytes and operator.gemm is not None and operator.quantizable
    return (machine.products if low else machine.whole).peak_flops


def _flops(operator: Operator, sizes: LocalSizes, machine: Machine) -> FloatArray | None:
    if operator.gemm is not None:
        return _product_flops(operator.gemm, sizes) * (3.0 if operator.trains else 2.0)
    if operator.attention is not None:
        return _attention_flops(operator.attention, sizes, machine)
    return None


def _product_flops(gemm: GemmShape, sizes: LocalSizes) -> FloatArray:
    split = has_tensor_dim(gemm.k) or any(has_tensor_dim(term) for term in gemm.n)
    rows, depth = (sizes.product(dims, beside_tensor=split) for dims in (gemm.m, gemm.k))
    columns = sum((sizes.product(term, beside_tensor=split) for term in gemm.n), start=np.zeros(1))
    return np.asarray(2.0 * rows * columns * depth)


def _attention_flops(shape: AttentionShape, sizes: LocalSizes, machine: Machine) -> FloatArray:
    names = ("batch", shape.heads, "seq", shape.qk_dim, shape.v_dim)
    batch, heads, queries, qk_dim, v_dim = (sizes.dim(name, beside_tensor=True) for name in names)
    whole = sizes.whole_sequence()
    if not machine.stack.fused_attention:
        return np.asarray(2.0 * batch * heads * queries * whole * (qk_dim + v_dim) * 3.0)
    if machine.packing is not None:
        whole = np.full_like(whole, machine.packing.attended)
    if shape.chunked and shape.window:
        whole = np.minimum(whole, shape.window)
    seen = visible_keys(whole, causal=shape.causal, window=shape.window)
    forward = 2.0 * batch * heads * queries * seen * (qk_dim + v_dim)
    return np.asarray(forward * (1.0 + machine.fit.attention.backward_flops_ratio))


def roofline(priced: Priced, index: int) -> list[Record]:
    """The heaviest operators of a plan, longest first."""
    found = sorted(loads(priced, index), key=lambda load: (-load.runs * load.time_s, load.unit, load.name))
    total = sum(load.runs * load.time_s for load in found)
    at = int(priced.batch.split[index]), int(priced.prices.critical[index])
    bandwidth = slowest(priced.context.ground(*at).machines).plain.memory_bytes_per_s
    return [_row(load, bandwidth, total) for load in found[:SHOWN] if load.time_s > 0]


def _row(load: Load, bandwidth: float, total: float) -> Record:
    made: Record = {
        "operator": load.name,
        "layer": load.unit,
        "count_per_step": load.runs,
        "time_s": load.runs * load.time_s,
        "share_of_compute": load.runs * load.time_s / total,
        "flops": load.flops,
        "hbm_bytes": load.hbm_bytes,
    }
    if load.flops is None:
        rates: Record = {"intensity": None, "bound": "memory", "achieved": load.hbm_bytes / load.time_s, "ceiling": bandwidth}
    else:
        intensity = load.flops / load.hbm_bytes
        bound = "matrix units" if intensity * bandwidth >= load.peak_flops else "memory"
        ceiling = min(load.peak_flops, intensity * bandwidth)
        rates = {"intensity": intensity, "bound": bound, "achieved": load.flops / load.time_s, "ceiling": ceiling}
    return made | {
        "intensity_flops_per_byte": rates["intensity"],
        "bound": rates["bound"],
        "achieved_per_s": rates["achieved"],
        "ceiling_per_s": rates["ceiling"],
        "attained_fraction": rates["achieved"] / rates["ceiling"],
    }
