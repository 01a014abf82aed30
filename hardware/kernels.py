"""Time of one kernel on one device: matrix products, fused attention and memory-bound work.

A *fit* is a small set of constants of one device, fitted to public kernel measurements by
``benchmarks/fit_kernels.py`` and kept in ``presets/kernels/<id>.yaml`` with its held-out error. All functions
here are pure, take and return float64 arrays that broadcast, and price many shapes in one call.

Matrix product of ``groups`` problems (m, n, k), tile a x b, S multiprocessors, peak P (``gemm_s``)::

    tiles   = groups * ceil(m/a) * ceil(n/b)                                          _tiled_s
    split   = min(max(floor(S/tiles), 1), max(k/k_split, 1))                          _tiled_s
    waves   = max(1, ceil(w) - soft*(ceil(w) - w)),  w = tiles*split/S                _waves
    rate    = P/S * fraction / (1 + loss*(1/a + 1/b))                                 _tiled_s
    compute = min over tiles of waves * 2*a*b*(k/split + k_prologue) / rate           _tiled_s
    memory  = groups * (bytes_in*(m*k + k*n) + bytes_out*m*n) / (bandwidth*fraction)  gemm_s
    time    = sustained * (norm_p(compute*throttle, memory) + start)                  gemm_s
    throttle = 1 + slope * max(0, log10(FLOPs/1e11))                                  _throttle

Fused attention with head sizes d_qk and d_v (``attention_s``)::

    pairs   = q * mean number of keys a query sees                                    visible_keys
    compute = 2*batch*heads*pairs*(d_qk + d_v) / (P*fraction(d)) * (1 + ramp/kv) * ceil(w)/w   attention_s
    time    = norm_p(compute, memory) + start                                         attention_s

The backward pass does 2.5 times the FLOPs (five products instead of two) at a fraction of the forward rate.
Launch and host time are not included: they belong to the software stack. ``start`` is the fixed part that a
kernel spends on the device itself.

Precision enters through ``DeviceRates.peak_flops``. The constants are fractions of the *bf16* datasheet peak, so
pass the bf16 peak times ``fit.precision_speedup[...]``: ``precision_rates`` does it.

Sources: the tables of ai-dynamo/aiconfigurator (forward kernels) and MooreThreads/SimuMax (kernels measured in
training), both Apache-2.0; wave quantisation and split-K as in the CUTLASS documentation.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.documents import parse_yaml
from shardwright.errors import DamagedFileError, UnsupportedError, unknown_name

Array = npt.NDArray[np.float64]
Numbers = npt.ArrayLike

ATTENTION_TILE = 128
"""Queries that one thread block of a fused attention kernel handles."""

THROTTLE_FROM_FLOPS = 1e11
"""Kernels with more FLOPs than this run long enough to reach the power limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a datasheet says of one device.

    Attributes:
        peak_flops: dense FLOP/s of the precision the kernels run in.
        memory_bytes_per_s: bandwidth of device memory.
        sm_count: multiprocessors (compute units); None takes the count the fit was made on.
    """

    peak_flops: float
    memory_bytes_per_s: float
    sm_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where constants come from and how far they can be trusted.

    Attributes:
        origin: ``measured`` on this device, ``transferred`` from another one, or ``assumed``.
        source: repository, table or paper.
        rows: measurements fitted (0 where none).
        median_error: relative error on held-out measurements, median; None where unknown.
        p90_error: the same, 90th percentile.
        note: how the number was derived.
    """

    origin: str
    source: str
    rows: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConstants:
    """Constants of the tile model of matrix products.

    Attributes:
        peak_fraction: share of peak FLOP/s that an endless tile reaches.
        tile_loss: elements; a tile a x b reaches 1/(1 + tile_loss*(1/a + 1/b)) of that.
        prologue_k: elements of k that filling and draining a tile costs.
        split_k: least elements of k in one part when k is split over idle multiprocessors.
        wave_softness: 0 = the last wave costs a whole wave, 1 = only its share.
        throttle_per_decade: relative slowdown per factor 10 of FLOPs above 1e11 (power limit).
        memory_fraction: share of memory bandwidth reached.
        norm_power: exponent joining compute and memory time.
        start_s: fixed device time of a kernel.
        sm_count: multiprocessors of the device the constants were fitted on.
        tiles: tile sizes (rows, columns) tried.
    """

    peak_fraction: float
    tile_loss: float
    prologue_k: float
    split_k: float
    wave_softness: float
    throttle_per_decade: float
    memory_fraction: float
    norm_power: float
    start_s: float
    sm_count: int
    tiles: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """Constants of fused attention.

    Attributes:
        peak_fraction: (mean of the two head sizes, share of peak) in rising order; linear in between.
        ramp_tokens: keys at which the rate is half of what it is for endless sequences.
        wave_softness: as for matrix products.
        memory_fraction: share of memory bandwidth reached.
        norm_power: exponent joining compute and memory time.
        start_s: fixed device time of a kernel.
        backward_flops_ratio: FLOPs of the backward pass over those of the forward pass.
        backward_rate: rate of the backward pass over that of the forward pass.
    """

    peak_fraction: tuple[tuple[float, float], ...]
    ramp_tokens: float
    wave_softness: float
    memory_fraction: float
    norm_power: float
    start_s: float
    backward_flops_ratio: float
    backward_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """All kernel constants of one device.

    Attributes:
        id: name of the preset.
        gemm: matrix products, in isolation.
        attention: fused attention, in isolation.
        sustained_factor: how much slower matrix products run in training than in isolation (power, cold operands).
        memory_fraction: share of datasheet memory bandwidth that streaming kernels reach.
        precision_speedup: matrix rate relative to bf16, by precision id and by compute type.
        backend_factor: rate of an attention backend relative to the table (the best backend).
        provenance: of ``gemm``, ``attention``, ``sustained_factor``, ``memory_fraction``, ``precision_speedup``.
    """

    id: str
    gemm: GemmConstants
    attention: AttentionConstants
    sustained_factor: float
    memory_fraction: float
    precision_speedup: Mapping[str, float]
    backend_factor: Mapping[str, float]
    provenance: Mapping[str, Provenance]


def fit_ids() -> tuple[str, ...]:
    """Names of the fits that come with the package, sorted."""
    folder = importlib.resources.files("shardwright.hardware") / "presets" / "kernels"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


@lru_cache(maxsize=64)
def load_fit(fit_id: str) -> KernelFit:
    """The fit of a device.

    Args:
        fit_id: such as ``"h100"``; ``Device.kernels`` names it.

    Raises:
        UnknownNameError: no such fit.
        DamagedFileError: a key of its file is missing or not known.
    """
    if fit_id not in fit_ids():
        raise unknown_name("kernel fit", fit_id, fit_ids())
    path = importlib.resources.files("shardwright.hardware") / "presets" / "kernels" / f"{fit_id}.yaml"
    return fit_from_dict(parse_yaml(path.read_text(encoding="utf-8"), f"kernels/{fit_id}.yaml").data)


def fit_from_dict(data: Mapping[str, Any]) -> KernelFit:
    """A fit from the mapping its YAML file holds.

    Raises:
        DamagedFileError: a key is missing, not known or of the wrong type.
    """
    try:
        gemm = GemmConstants(**{**data["gemm"], "tiles": tuple((int(a), int(b)) for a, b in data["gemm"]["tiles"])})
        heads = tuple(sorted((float(d), float(v)) for d, v in data["attention"]["peak_fraction"]))
        attention = AttentionConstants(**{**data["attention"], "peak_fraction": heads})
        records = {"gemm": gemm, "attention": attention}
        origin = {"provenance": {k: Provenance(**v) for k, v in data["provenance"].items()}}
        return KernelFit(**{**data, **records, **origin})
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"the kernel fit {data.get('id', '?')!r} cannot be read: {error}", hint="write it with benchmarks/fit_kernels.py"
        ) from error


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
    return replace(rates, peak_flops=rates.peak_flops * speedup)


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
    m, n, k, groups = (np.asarray(v, dtype=np.float64) for v in (m, n, k, groups))
    c = fit.gemm
    size = 2.0 * groups * m * n * k
    compute = _best_tile_s(c, rates, m, n, k, groups) * _throttle(c, size)
    moved = groups * (np.asarray(input_bytes) * (m + n) * k + np.asarray(output_bytes) * m * n)
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
        backend: key of ``fit.backend_factor``; ``"table"`` is the best known one.

    Raises:
        UnsupportedError: the backend is not known on this device.
    """
    batch, heads, q_len, kv_len = (np.asarray(v, dtype=np.float64) for v in (batch, heads, q_len, kv_len))
    qk_dim, v_dim = np.asarray(qk_dim, dtype=np.float64), np.asarray(v_dim, dtype=np.float64)
    c = fit.attention
    seen = visible_keys(kv_len, causal=causal, window=window)
    flops = 2.0 * batch * heads * q_len * seen * (qk_dim + v_dim)
    rate = rates.peak_flops * _head_fraction(c, (qk_dim + v_dim) / 2.0) * _backend_factor(fit, backend)
    blocks = batch * heads * np.ceil(q_len / ATTENTION_TILE) / (rates.sm_count or fit.gemm.sm_count)
    ramp = 1.0 + c.ramp_tokens / np.where(seen > 0, seen * (2.0 if causal else 1.0), 1.0)
    compute = flops / rate * ramp * _waves(blocks, c.wave_softness) / blocks
    moved = 2.0 * batch * (heads * q_len + np.asarray(kv_heads, dtype=np.float64) * kv_len) * (qk_dim + v_dim)
    memory = moved / (rates.memory_bytes_per_s * c.memory_fraction)
    if backward:
        compute, memory = compute * c.backward_flops_ratio / c.backward_rate, memory * 2.0
    return np.asarray(_norm(compute, memory, c.norm_power) + c.start_s)


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


def _best_tile_s(c: GemmConstants, rates: DeviceRates, m: Array, n: Array, k: Array, groups: Array) -> Array:
    sms = float(rates.sm_count or c.sm_count)
    best: Array | None = None
    for tile in c.tiles:
        time = _tiled_s(c, rates.peak_flops / sms, sms, tile, m, n, k, groups)
        best = time if best is None else np.minimum(best, time)
    return np.asarray(best)


def _tiled_s(
    c: GemmConstants, peak_per_sm: float, sms: float, tile: tuple[int, int], m: Array, n: Array, k: Array, groups: Array
) -> Array:
    rows, columns = tile
    tiles = groups * (np.ceil(m / rows) * np.ceil(n / columns))
    split = np.minimum(np.maximum(np.floor(sms / tiles), 1.0), np.maximum(k / c.split_k, 1.0))
    rate = peak_per_sm * c.peak_fraction / (1.0 + c.tile_loss * (1.0 / rows + 1.0 / columns))
    per_k = 2.0 * rows * columns / rate
    return np.asarray(_waves(tiles * split / sms, c.wave_softness) * (k / split + c.prologue_k) * per_k)


def _waves(blocks_per_sm: Array, softness: float) -> Array:
    whole = np.ceil(blocks_per_sm)
    return np.asarray(np.maximum(whole - softness * (whole - blocks_per_sm), 1.0))


def _throttle(c: GemmConstants, flops: Array) -> Array:
    return np.asarray(1.0 + c.throttle_per_decade * np.log10(np.maximum(flops / THROTTLE_FROM_FLOPS, 1.0)))


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
