"""Time of one operator on one rank, forward and backward, for all keys at once.

    product      forward (m, n, k); backward (m, k, n) for the input's gradient and (k, n, m) for the weight's (a frozen
                 weight has none), whose result is added to fp32 gradients, or written and added by a pass of its own; low
                 precision adds what quantises operands and scales results (`quantising`)
    attention    fused: `hardware.kernels.attention_s`; not fused: two batched products, passes over the scores, and copies of
                 the result and of the gradients of query, key and value, which stand in another order; windows that are chunks
                 are sequences of their own, and so are packed documents (fused only: L tokens each)
    scan         passes over operands, output and chunk states, and its FLOPs at the rate of batched products of one chunk
                 (chunk x head_dim x state); a selective scan has no products and runs on vector units; backward 3 times;
                 passes and products of a state-space scan as `cost.scans` has them, those of a delta rule no faster
    elementwise  bytes of inputs and outputs forward; gradients of both and what was saved backward; of convolutions and
                 gated norms no faster than multiprocessors move them (`cost.scans`)
    loss         the stack's bytes a logit (its first input)
    in pieces    head and loss of fewer tokens, forward and backward at once, so many times (`cost.losses`)
    view         nothing: slices and broadcasts of a layer read from a graph

`operator_times` chooses among them. Kernels are priced on the device (`hardware.kernels`); launches are the stack's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardwright.hardware.device import Device
from shardwright.hardware.kernels import DeviceRates, KernelFit, attention_s, gemm_s, memory_bound_s, precision_rates
from shardwright.hardware.site_factors import AS_MODELLED, SiteFactors
from shardwright.models.dtypes import Precision
from shardwright.models.graph import CONVOLVE, AttentionShape, GemmShape, Operator, OperatorKind, ScanShape, TensorSpec
from shardwright.models.lengths import Packing
from shardwright.planner.axes.sharding import LocalSizes, has_tensor_dim
from shardwright.planner.cost.experts import added_bytes, further_starts
from shardwright.planner.cost.losses import touches_logits
from shardwright.planner.cost.quantising import ALONE, ONE_LAYOUT, ROW_RATE, Beside, quantised_bytes
from shardwright.planner.cost.scans import (
    CHUNK_BACKWARD,
    CHUNK_FLOPS_PER_S_PER_SM,
    CONVOLVED_AGAIN,
    STAGED_BYTES_PER_S_PER_SM,
    scan_bytes,
    staged,
    turned_bytes,
)
from shardwright.planner.cost.scores import score_bytes
from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.stacks import StackProfile

SCORE_WIDTH = 2.0
"""Bytes of an activation where stacks count traffic a score; wider ones move as much more."""

IN_CHUNKS = frozenset({"state-space", "delta"})
"""Scans whose kernels go chunk by chunk, products between passes over scores; those of lightning attention are taken to run as
products do."""

EAGER_BYTES_PER_S_PER_SM: Mapping[str, float] = {"ampere": 12.4e9, "hopper": 15.9e9}
EAGER_OTHERWISE = 14e9
"""What one multiprocessor moves in softmax, mask and copy run operator by operator, whatever the memory could bring: about nine
bytes a clock on either generation. From backward passes of one layer of 16 heads of 2,048 tokens, eight sequences in fp32, on
A100 80 GB and GH200 (eth-easl/sailor, sailor_planner/profiles/OPT-350), one source; other generations are taken to lie between.
On V100 and A100 40 GB memory is the tighter bound."""

ROW_ALIGNMENT = 16
"""Bytes that rows of operands of batched products must be a multiple of to be loaded for matrix units (cuBLAS documentation,
tensor core restrictions); else the products run on vector units. Heads of 108 or 150 in 16 bits are not."""

VECTOR_SHARE = 1.0 / 44.0
"""Rate of a selective scan over the dense 16-bit peak of matrix units. The fp32 peak of vector units is 1/16 of it (A100 19.5
of 312, H100 67 of 989 TFLOP/s); of the nine FLOPs a state element one is an exponential, at 16 a clock and multiprocessor where
vector units do 256 FLOPs: 9 / (1/16 + 9/256) = 92 of 256. From datasheets, not measured."""

SCAN_BACKWARD = 3.0
"""A scan's backward pass computes states and products within chunks again and differentiates both (arXiv 2405.21060)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Device, kernel constants and stack, as operators see them.

    Attributes:
        products: rates of matrix products in the training precision.
        forward_products: the same of those of the forward pass.
        plain: rates of products kept in 16 bits (head, router) and of everything else.
        site: what measured steps say of kernels and host.
        one_layout: whether 8-bit products take operands as they lie.
        eager_bytes_per_s: what score passes that are run operator by operator move at most.
        chunk_flops_per_s: FLOP/s of scans in chunks at most; infinite where nothing but matrix units is known to bound them.
        staged_bytes_per_s: what convolutions over the sequence and gated norms move at most.
        arch: of the device.
        packing: of documents into sequences; None: a sequence is one document, or scores across documents are computed.
    """

    fit: KernelFit
    products: DeviceRates
    forward_products: DeviceRates
    plain: DeviceRates
    precision: Precision
    stack: StackProfile
    one_layout: bool
    eager_bytes_per_s: float
    chunk_flops_per_s: float
    staged_bytes_per_s: float
    arch: str = ""
    site: SiteFactors = AS_MODELLED
    packing: Packing | None = None

    @property
    def whole(self) -> DeviceRates:
        """Rates of products that are not run below 16 bits: head, router, attention."""
        return self.products if self.precision.whole else self.plain


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """Times of one operator, arrays of shape [keys].

    Attributes:
        forward_s, backward_s: seconds.
        hbm_bytes: bytes it moves in device memory both ways.
        weight_s: the part of `backward_s` that makes the gradient of a weight, which nothing else waits for; None: nothing.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    hbm_bytes: FloatArray
    weight_s: FloatArray | None = None


def machine_of(problem: Problem, device: Device | None = None) -> Machine:
    """The machine a problem runs on, or that of one of its devices."""
    device = problem.device if device is None else device
    fit, precision = problem.kernels_of(device), problem.job.precision
    base = device.peak_flops.get("bf16") or device.peak_flops.get("fp16") or device.peak_flops[precision.compute]
    plain = DeviceRates(peak_flops=base, memory_bytes_per_s=device.memory_bytes_per_s, sm_count=device.sm_count)
    products = precision_rates(fit, plain, precision.rate_id)
    by_rows = replace(products, peak_flops=products.peak_flops * ROW_RATE)
    lengths = problem.job.lengths
    packing = lengths.packing() if lengths is not None and problem.stack.fused_attention else None
    multiprocessors = device.sm_count or fit.gemm.sm_count
    return Machine(
        fit=fit,
        products=products,
        forward_products=by_rows if precision.scales == "row" else products,
        plain=plain,
        precision=precision,
        stack=problem.stack,
        one_layout=device.arch.startswith(ONE_LAYOUT),
        eager_bytes_per_s=EAGER_BYTES_PER_S_PER_SM.get(device.arch, EAGER_OTHERWISE) * multiprocessors,
        chunk_flops_per_s=CHUNK_FLOPS_PER_S_PER_SM.get(device.arch, np.inf) * multiprocessors,
        staged_bytes_per_s=STAGED_BYTES_PER_S_PER_SM * multiprocessors,
        arch=device.arch,
        site=problem.site,
        packing=packing,
    )


def operator_times(operator: Operator, sizes: LocalSizes, machine: Machine, around: Beside = ALONE) -> OperatorTime:
    """Time of one operator of a layer on one rank, at this site; `around` a product stands what quantises with it."""
    time, factor = _with_added(_modelled(operator, sizes, machine, around), operator, sizes, machine), machine.site.device
    pieces = sizes.loss_pieces()
    if touches_logits(operator) and (pieces > 1).any():
        time = _in_pieces(time, _modelled(operator, sizes.of_a_loss_piece(), machine, around), pieces)
    weight = None if time.weight_s is None else factor * time.weight_s
    return replace(time, forward_s=factor * time.forward_s, backward_s=factor * time.backward_s, weight_s=weight)


def _in_pieces(whole: OperatorTime, piece: OperatorTime, pieces: IntArray) -> OperatorTime:
    """An operator piece by piece where there are several: all of it is done when the forward pass ends.

    Large products run slower as the device reaches its power limit; a row of smaller ones reaches it too, and is never faster.
    """
    cut, both = pieces > 1, whole.forward_s + whole.backward_s
    weight = 0.0 if whole.weight_s is None else whole.weight_s
    return OperatorTime(
        forward_s=np.where(cut, np.maximum(pieces * (piece.forward_s + piece.backward_s), both), whole.forward_s),
        backward_s=np.where(cut, 0.0, whole.backward_s),
        hbm_bytes=np.where(cut, pieces * piece.hbm_bytes, whole.hbm_bytes),
        weight_s=np.where(cut, 0.0, weight),
    )


def _with_added(time: OperatorTime, operator: Operator, sizes: LocalSizes, machine: Machine) -> OperatorTime:
    """The time with what a stack moves and starts beside an operator."""
    forward, backward = (
        n * machine.fit.gemm.start_s for n in further_starts(operator, sizes, machine.stack, machine.precision)
    )
    time = replace(time, forward_s=time.forward_s + forward, backward_s=time.backward_s + backward)
    added = added_bytes(operator, sizes, machine.stack, machine.precision) or turned_bytes(operator, sizes, machine.stack)
    if added is None:
        return time
    moved = _moved(machine, *added)
    return replace(
        time,
        forward_s=time.forward_s + moved.forward_s,
        backward_s=time.backward_s + moved.backward_s,
        hbm_bytes=time.hbm_bytes + moved.hbm_bytes,
    )


def _modelled(operator: Operator, sizes: LocalSizes, machine: Machine, around: Beside) -> OperatorTime:
    if operator.gemm is not None:
        return _product(operator, operator.gemm, sizes, machine, around)
    if operator.attention is not None:
        attend = _fused_attention if machine.stack.fused_attention else _unfused_attention
        return attend(operator.attention, sizes, machine)
    if operator.scan is not None:
        return _scan(operator, operator.scan, sizes, machine)
    if operator.kind is OperatorKind.LOSS:
        logits = sizes.elements(operator.inputs[0])
        return _moved(machine, logits * machine.stack.logit_bytes / 3.0, logits * machine.stack.logit_bytes * 2.0 / 3.0)
    if operator.kind is OperatorKind.VIEW:
        return OperatorTime(forward_s=np.zeros(1), backward_s=np.zeros(1), hbm_bytes=np.zeros(1))
    return _elementwise(operator, sizes, machine)


def _product(operator: Operator, gemm: GemmShape, sizes: LocalSizes, machine: Machine, around: Beside) -> OperatorTime:
    split = has_tensor_dim(gemm.k) or any(has_tensor_dim(term) for term in gemm.n)
    groups = sizes.product(gemm.groups, beside_tensor=split)
    m = np.maximum(sizes.product(gemm.m, beside_tensor=split) / groups, 1.0)
    n = sum((sizes.product(term, beside_tensor=split) for term in gemm.n), start=np.zeros(1))
    k = sizes.product(gemm.k, beside_tensor=split)
    precision, fit = machine.precision, machine.fit
    low, out = precision.narrow and operator.quantizable, precision.activation_bytes
    rates = machine.products if low else machine.whole
    width = precision.gemm_input_bytes if low else out
    forward = gemm_s(fit, machine.forward_products if low else rates, m, n, k, groups, width, out)
    backward = gemm_s(fit, rates, m, k, n, groups, width, out)
    weight, products, accumulated = np.zeros(1), 2, 0.0
    if operator.trains:
        written, added = machine.stack.weight_gradient_bytes, machine.stack.accumulation_bytes
        wide = low and precision.wide_weight_gradients
        weight = gemm_s(fit, machine.whole if wide else rates, n, k, m, groups, out if wide else width, written)
        weight = weight + memory_bound_s(fit, machine.plain, added * groups * k * n)
        products, accumulated = 3, written + added
        if machine.stack.sums_biases and any(not set(p.dims) & set(gemm.k) for p in operator.parameters):
            weight = weight + memory_bound_s(fit, machine.plain, out * groups * m * n)
    moved = groups * (products * width * (m * k + k * n + m * n) + out * m * (n + k) + accumulated * k * n)
    if low:
        elements = (groups * m * k, groups * m * n, groups * k * n)
        made = quantised_bytes(operator, around, elements, sizes, machine.stack, precision, one_layout=machine.one_layout)
        forward, backward, weight = (
            time + memory_bound_s(fit, rates, each)
            for time, each in ((forward, made.forward), (backward, made.backward), (weight, made.weight))
        )
        moved = moved + made.forward + made.backward + made.weight
    return OperatorTime(forward_s=forward, backward_s=backward + weight, hbm_bytes=moved, weight_s=weight)


def _attention_sizes(shape: AttentionShape, sizes: LocalSizes) -> tuple[FloatArray, ...]:
    """Rows, heads, key/value heads, queries and widths of heads of a core; swapped for sequence where the plan does so."""
    names, swapped = (shape.heads, shape.kv_heads, shape.queries, shape.qk_dim, shape.v_dim), sizes.head_split()
    heads, kv_heads, queries, *widths = (sizes.dim(name, beside_tensor=True) for name in names)
    rows = sizes.product(shape.rows, beside_tensor=True)
    return rows, np.ceil(heads / swapped), np.ceil(kv_heads / swapped), queries * swapped, *widths


def _fused_attention(shape: AttentionShape, sizes: LocalSizes, machine: Machine) -> OperatorTime:
    """The core in as many kernels as the ring has steps, each with the keys of one rank; one if keys are all there, or few."""
    batch, heads, kv_heads, queries, qk_dim, v_dim = _attention_sizes(shape, sizes)
    whole = sizes.whole(shape.keys)
    if machine.packing is not None:
        share = machine.packing.attended / whole
        batch, queries, whole = batch / share, queries * share, whole * share
    keys = whole if shape.window or shape.keys != shape.queries else np.where(sizes.gathers_keys(), whole, queries)
    steps = whole / keys
    if shape.chunked and shape.window:
        keys = np.minimum(keys, shape.window)
    rates = machine.whole
    backend = machine.stack.attention_backend if machine.stack.attention_backend in machine.fit.backend_factor else "table"
    both = [
        steps
        * attention_s(
            machine.fit,
            rates,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            qk_dim,
            v_dim,
            causal=shape.causal and shape.keys == shape.queries,
            window=shape.window,
            backward=backward,
            backend=backend,
        )
        for backward in (False, True)
    ]
    moved = 2.0 * batch * (heads * queries + kv_heads * whole) * (qk_dim + v_dim) * 3.0
    return OperatorTime(forward_s=both[0], backward_s=both[1], hbm_bytes=moved)


def _unfused_attention(shape: AttentionShape, sizes: LocalSizes, machine: Machine) -> OperatorTime:
    batch, heads, _, queries, qk_dim, v_dim = _attention_sizes(shape, sizes)
    width = float(machine.precision.activation_bytes)
    keys, groups = sizes.whole(shape.keys), batch * heads
    lines_up = np.all([size * width % ROW_ALIGNMENT == 0 for size in (qk_dim, v_dim, keys)], axis=0)

    def product(m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        fast = gemm_s(machine.fit, machine.whole, m, n, k, groups, width, width)
        if lines_up.all():
            return fast
        return np.where(lines_up, fast, gemm_s(machine.fit, _vector_rates(machine), m, n, k, groups, width, width))

    forward = product(queries, keys, qk_dim) + product(queries, v_dim, keys)
    scores = groups * queries * keys * width / SCORE_WIDTH
    each_forward, each_backward, eager = score_bytes(shape, sizes, machine.stack)
    passes = _moved(machine, scores * each_forward, scores * each_backward)
    if eager.any():
        apart = _moved(_operator_by_operator(machine), scores * each_forward, scores * each_backward)
        passes = replace(
            passes,
            forward_s=np.where(eager, apart.forward_s, passes.forward_s),
            backward_s=np.where(eager, apart.backward_s, passes.backward_s),
        )
    rows = groups * queries * width
    copies = _moved(machine, 2.0 * rows * v_dim, 2.0 * rows * (2.0 * v_dim + 2.0 * qk_dim))
    backward = product(queries, keys, v_dim) + product(keys, v_dim, queries)
    backward = backward + product(queries, qk_dim, keys) + product(keys, qk_dim, queries)
    return OperatorTime(
        forward_s=forward + passes.forward_s + copies.forward_s,
        backward_s=backward + passes.backward_s + copies.backward_s,
        hbm_bytes=passes.hbm_bytes + copies.hbm_bytes,
    )


def _vector_rates(machine: Machine) -> DeviceRates:
    """Rates of products that matrix units cannot load: those of vector units, in fp32."""
    known = "fp32" in machine.fit.precision_speedup
    return precision_rates(machine.fit, machine.plain, "fp32") if known else machine.plain


def _operator_by_operator(machine: Machine) -> Machine:
    """The machine as passes over scores see it that are not one kernel: multiprocessors bound them."""
    rate = min(machine.plain.memory_bytes_per_s, machine.eager_bytes_per_s / machine.fit.memory_fraction)
    return replace(machine, plain=replace(machine.plain, memory_bytes_per_s=rate))


def _scan(operator: Operator, shape: ScanShape, sizes: LocalSizes, machine: Machine) -> OperatorTime:
    """A recurrence over the sequence: its streams, and its FLOPs as products of chunks or on vector units."""
    streams, fit, rates = _elementwise(operator, sizes, machine), machine.fit, machine.plain
    names = (shape.heads, shape.groups, shape.head_dim, shape.state)
    local = {name: sizes.dim(name, beside_tensor=True) for name in names}
    tokens = sizes.product(("batch", "seq"), beside_tensor=True)
    chunk = min(shape.chunk, int(sizes.whole_sequence().max(initial=1.0)))
    flops = tokens * shape.token_flops(local, chunk, causal=False)
    if shape.method == "selective":
        products = flops / (VECTOR_SHARE * rates.peak_flops)
    else:
        groups = np.maximum(local[shape.heads] * tokens / chunk, 1.0)
        one = 2.0 * groups * chunk * local[shape.head_dim] * local[shape.state]
        products = flops / one * gemm_s(fit, rates, chunk, local[shape.head_dim], local[shape.state], groups)
    chunks = flops / machine.chunk_flops_per_s if shape.method in IN_CHUNKS else 0.0
    if shape.method == "state-space":
        streams = _moved(machine, *scan_bytes(shape, local, tokens, chunk))
        products = products * np.isinf(machine.chunk_flops_per_s)
    return OperatorTime(
        forward_s=streams.forward_s + np.maximum(products, chunks),
        backward_s=streams.backward_s + np.maximum(SCAN_BACKWARD * products, CHUNK_BACKWARD * chunks),
        hbm_bytes=streams.hbm_bytes,
    )


def _elementwise(operator: Operator, sizes: LocalSizes, machine: Machine) -> OperatorTime:
    def total(tensors: tuple[TensorSpec, ...]) -> FloatArray:
        return sum((sizes.bytes(t, machine.precision.activation_bytes) for t in tensors), start=np.zeros(1))

    factor = machine.stack.elementwise_factor
    through = total(operator.inputs) + total(operator.outputs)
    again = CONVOLVED_AGAIN * through if CONVOLVE in operator.beside else 0.0
    forward, backward = factor * through, factor * (through + total(operator.saved)) + again
    moved = _moved(machine, forward, backward)
    slowly = [way * each / machine.staged_bytes_per_s for way, each in zip(staged(operator), (forward, backward), strict=True)]
    return replace(moved, forward_s=np.maximum(moved.forward_s, slowly[0]), backward_s=np.maximum(moved.backward_s, slowly[1]))


def _moved(machine: Machine, forward_bytes: FloatArray, backward_bytes: FloatArray) -> OperatorTime:
    return OperatorTime(
        forward_s=memory_bound_s(machine.fit, machine.plain, forward_bytes),
        backward_s=memory_bound_s(machine.fit, machine.plain, backward_bytes),
        hbm_bytes=forward_bytes + backward_bytes,
    )
