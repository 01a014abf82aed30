"""Time of one kernel on one device: matrix products, fused attention and memory-bound work.

A *fit* is a small set of constants of one device, fitted to public kernel measurements by
``benchmarks/fit_kernels.py`` and kept in ``presets/kernels/<id>.yaml`` with its held-out error. All functions
here are pure, take and return float64 arrays that broadcast, and price many shapes in one call.

Matrix product of ``groups`` problems (m, n, k), tile a x b, S multiprocessors, peak P (``gemm_s``)::

    tiles   = groups * ceil(m/a) * ceil(n/b)                                          _tiled_s
    split   = min(max(floor(S/tiles), 1), max(k/k_split, 1))                          _tiled_s
    waves   = max(1, ceil(w) - soft*(ceil(w) - w)),  w = tiles*split/S                _waves
    feeding = min(1, bytes_in/2 * P / P of bf16)                                      _feeding
    rate    = P/S * fraction / (1 + feeding*loss*(1/a + 1/b))                         _tiled_s
    compute = min over tiles of waves * 2*a*b*(k/split + feeding*k_prologue) / rate   _tiled_s
    memory  = groups * (bytes_in*(m*k + k*n) + bytes_out*m*n) / (bandwidth*fraction)  gemm_s
    time    = sustained * (norm_p(compute*throttle, memory) + start)                  gemm_s
    throttle = 1 + slope * max(0, log10(FLOPs/1e11))                                  _throttle
               1 where the power limit holds for all sizes (fit.throttles_in_training is False)

Fused attention with head sizes d_qk and d_v (``attention_s``)::

    pairs   = batch * heads * q * mean number of keys a query sees                    visible_keys
    ramp    = 1 + ramp_tokens / span,  span = 2*seen if causal else seen/0.19         _ramp
    fill    = waves(w) / w,  w = batch*heads*ceil(q/query_tile)/S                     _fill
    compute = 2*pairs*(d_qk + d_v + padding) / (P*fraction(d)) * ramp * fill          attention_s
    time    = sustained * norm_p(compute, memory) + start                             attention_s

The backward pass does 2.5 times the FLOPs (five products instead of two) at a fraction of the forward rate.
Unfused attention is batched products and memory-bound work: price it with ``gemm_s`` and ``memory_bound_s``.

Launch and host time are not included: they belong to the software stack. ``start`` is the fixed part that a
kernel spends on the device itself (filling and draining it), 1 to 3 microseconds.

Precision enters through ``DeviceRates.peak_flops``. The constants are fractions of the *bf16* datasheet peak, so
pass the bf16 peak times ``fit.precision_speedup[...]``: ``precision_rates`` does it.

Sources: the tables of ai-dynamo/aiconfigurator (forward kernels) and MooreThreads/SimuMax (kernels measured in
training), both Apache-2.0; wave quantisation and split-K as in the CUTLASS documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardwright.errors import UnsupportedError
from shardwright.hardware.kernel_fits import AttentionConstants, GemmConstants, KernelFit, Provenance, fit_ids, load_fit

__all__ = [
    "AttentionConstants",
    "DeviceRates",
    "GemmConstants",
    "KernelFit",
    "Provenance",
    "attention_s",
    "fit_ids",
    "gemm_s",
    "load_fit",
    "memory_bound_s",
    "precision_rates",
    "visible_keys",
]

Array = npt.NDArray[np.float64]
Numbers = npt.ArrayLike

FULL_RAMP_SHARE = 0.19
"""Ramp of attention without a mask over that with a causal mask.

From FlashAttention-3 on H100 and FlashAttention-4 on Blackwell, head size 128, 512 to 16,384 tokens
(pytorch/benchmark pull 2391, Dao-AILab/flash-attention pull 2605): the blocks on the diagonal are half wasted.
"""

FITTED_BYTES = 2.0
"""Bytes of an operand's element in the tables the constants were fitted to."""

THROTTLE_FROM_FLOPS = 1e11
"""Kernels with more FLOPs than this run long enough to reach the power limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a datasheet says of one device.

    Attributes:
        peak_flops: dense FLOP/s of the precision the kernels run in.
        memory_bytes_per_s: bandwidth of device memory.
        sm_count: multiprocessors (compute units); None takes the count the fit was made on.
        speedup: what `peak_flops` is of the bf16 peak that the constants are fractions of.
    """

    peak_flops: float
    memory_bytes_per_s: float
    sm_count: int | None = None
    speedup: float = 1.0


def precision_rates(fit: KernelFit, rates: DeviceRates, precision: str) -> DeviceRates:
    """The rates to price kernels of a precision with.

    Args:
        fit: constants of the device.
        rates: with the dense *bf16* peak (fp16 on devices without bf16).
        precision: precision id or compute type, such as ``"fp8-blockwise"`` or ``"fp8"``.

    Raises:
        UnsupportedError: the device has no units for it.
    """
    speedup = fit.precision_speedup.get(precision)
    if speedup is None:
        known = ", ".join(sorted(fit.precision_speedup))
        raise UnsupportedError(f"no matrix rate of {precision!r} is known for {fit.id}", hint=f"known there: {known}")
    return replace(rates, peak_flops=rates.peak_flops * speedup, speedup=rates.speedup * speedup)


def gemm_s(
    fit: KernelFit,
    rates: DeviceRates,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    groups: Numbers = 1.0,
    input_bytes: Numbers = 2.0,
    output_bytes: Numbers = 2.0,
) -> Array:
    """Seconds of ``groups`` matrix products (m, k) x (k, n) in one kernel, in training conditions.

    Args:
        fit: constants of the device.
        rates: peak FLOP/s of the precision, memory bandwidth, multiprocessors.
        m: rows of each problem; may be fractional (mean rows of an expert). Broadcasts with all that follow.
        n: columns.
        k: the summed dimension.
        groups: number of equal problems.
        input_bytes: bytes of an element of both operands.
        output_bytes: bytes of an element of the result; count a result read and added to (fp32 gradients) twice.
    """
    m, n, k, groups, input_bytes, output_bytes = _floats(m, n, k, groups, input_bytes, output_bytes)
    c = fit.gemm
    size = 2.0 * groups * m * n * k
    compute = _best_tile_s(c, rates, m, n, k, groups, _feeding(rates, input_bytes))
    compute = compute * (_throttle(c, size) if fit.throttles_in_training else 1.0)
    moved = groups * (input_bytes * (m + n) * k + output_bytes * m * n)
    memory = moved / (rates.memory_bytes_per_s * c.memory_fraction)
    return np.asarray(fit.sustained_factor * (_norm(compute, memory, c.norm_power) + c.start_s))


def attention_s(
    fit: KernelFit,
    rates: DeviceRates,
    batch: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    q_len: Numbers,
    kv_len: Numbers,
    qk_dim: Numbers,
    v_dim: Numbers,
    *,
    causal: bool = True,
    window: Numbers | None = None,
    backward: bool = False,
    backend: str = "table",
) -> Array:
    """Seconds of the fused attention core, one direction.

    Args:
        fit: constants of the device.
        rates: peak FLOP/s of the precision, memory bandwidth, multiprocessors.
        batch: sequences. Broadcasts with all that follow.
        heads: query heads on this device.
        kv_heads: key/value heads on this device.
        q_len: queries of a sequence on this device; with causal masking they are taken to be spread evenly over
            the sequence (as context parallelism balances them), so that each rank does the same work.
        kv_len: keys of a sequence that these queries meet.
        qk_dim: size of a query/key head.
        v_dim: size of a value head.
        causal: a query sees only keys up to itself.
        window: most keys that a query sees; None or a value >= ``kv_len`` is all.
        backward: the backward pass instead of the forward pass.
        backend: key of ``fit.backend_factor``; ``"table"`` is the best known one. ``"fp8"`` is relative to bf16 rates.

    Raises:
        UnsupportedError: the backend is not known on this device.
    """
    batch, heads, kv_heads, q_len, kv_len = _floats(batch, heads, kv_heads, q_len, kv_len)
    qk_dim, v_dim = _floats(qk_dim, v_dim)
    c = fit.attention
    seen = visible_keys(kv_len, causal=causal, window=window)
    size = qk_dim + v_dim + (c.backward_head_padding if backward else c.head_padding) * np.abs(qk_dim - v_dim)
    rate = rates.peak_flops * _head_fraction(c, (qk_dim + v_dim) / 2.0) * _backend_factor(fit, backend)
    fill = _fill(c, batch * heads, q_len, float(rates.sm_count or fit.gemm.sm_count))
    compute = 2.0 * batch * heads * q_len * seen * size / rate * _ramp(c, seen, causal) * fill
    moved = 2.0 * batch * (heads * q_len + kv_heads * kv_len) * (qk_dim + v_dim)
    memory = moved / (rates.memory_bytes_per_s * c.memory_fraction)
    if backward:
        compute, memory = compute * c.backward_flops_ratio / c.backward_rate, memory * 2.0
    return np.asarray(fit.attention_sustained_factor * _norm(compute, memory, c.norm_power) + c.start_s)


def visible_keys(kv_len: Numbers, *, causal: bool = True, window: Numbers | None = None) -> Array:
    """Mean number of keys that a query sees, over queries spread evenly over the sequence."""
    length = np.asarray(kv_len, dtype=np.float64)
    reach = length if window is None else np.minimum(np.asarray(window, dtype=np.float64), length)
    if not causal:
        return np.asarray(reach)
    return np.asarray(reach * (1.0 - (reach - 1.0) / (2.0 * length)))


def memory_bound_s(fit: KernelFit, rates: DeviceRates, bytes_moved: Numbers) -> Array:
    """Seconds that streaming kernels (norms, activations, residuals, optimizer) need to move bytes."""
    return np.asarray(np.asarray(bytes_moved, dtype=np.float64) / (rates.memory_bytes_per_s * fit.memory_fraction))


def _floats(*values: Numbers) -> tuple[Array, ...]:
    return tuple(np.asarray(v, dtype=np.float64) for v in values)


def _feeding(rates: DeviceRates, input_bytes: Array) -> Array:
    """What bringing operands to the units takes of their computing, over that of bf16: less where units are slow."""
    return np.minimum(rates.speedup * input_bytes / FITTED_BYTES, 1.0)


def _best_tile_s(c: GemmConstants, rates: DeviceRates, m: Array, n: Array, k: Array, groups: Array, feeding: Array) -> Array:
    sms = float(rates.sm_count or c.sm_count)
    best: Array | None = None
    for tile in c.tiles:
        time = _tiled_s(c, rates.peak_flops / sms, sms, tile, m, n, k, groups, feeding)
        best = time if best is None else np.minimum(best, time)
    return np.asarray(best)


def _tiled_s(
    c: GemmConstants,
    peak_per_sm: float,
    sms: float,
    tile: tuple[int, int],
    m: Array,
    n: Array,
    k: Array,
    groups: Array,
    feeding: Array,
) -> Array:
    rows, columns = tile
    tiles = groups * (np.ceil(m / rows) * np.ceil(n / columns))
    split = np.minimum(np.maximum(np.floor(sms / tiles), 1.0), np.maximum(k / c.split_k, 1.0))
    rate = peak_per_sm * c.peak_fraction / (1.0 + feeding * c.tile_loss * (1.0 / rows + 1.0 / columns))
    per_k = 2.0 * rows * columns / rate
    return np.asarray(_waves(tiles * split / sms, c.wave_softness) * (k / split + feeding * c.prologue_k) * per_k)


def _waves(blocks_per_sm: Array, softness: float) -> Array:
    whole = np.ceil(blocks_per_sm)
    return np.asarray(np.maximum(whole - softness * (whole - blocks_per_sm), 1.0))


def _throttle(c: GemmConstants, flops: Array) -> Array:
    return np.asarray(1.0 + c.throttle_per_decade * np.log10(np.maximum(flops / THROTTLE_FROM_FLOPS, 1.0)))


def _ramp(c: AttentionConstants, seen: Array, causal: bool) -> Array:
    span = seen * 2.0 if causal else seen / FULL_RAMP_SHARE
    return np.asarray(1.0 + c.ramp_tokens / span)


def _fill(c: AttentionConstants, problems: Array, q_len: Array, sms: float) -> Array:
    blocks_per_sm = problems * np.ceil(q_len / c.query_tile) / sms
    return np.asarray(_waves(blocks_per_sm, c.wave_softness) / blocks_per_sm)


def _head_fraction(c: AttentionConstants, head_dim: Array) -> Array:
    sizes, fractions = zip(*c.peak_fraction, strict=True)
    return np.asarray(np.interp(head_dim, sizes, fractions))


def _backend_factor(fit: KernelFit, backend: str) -> float:
    if backend not in fit.backend_factor:
        known = ", ".join(sorted(fit.backend_factor))
        raise UnsupportedError(
            f"no rate of the attention backend {backend!r} is known for {fit.id}", hint=f"known there: {known}"
        )
    return fit.backend_factor[backend]


def _norm(one: Array, other: Array, power: float) -> Array:
    high, low = np.maximum(one, other), np.minimum(one, other)
    ratio = np.divide(low, high, out=np.zeros(np.broadcast(low, high).shape), where=high > 0)
    return np.asarray(high * (1.0 + ratio**power) ** (1.0 / power))
