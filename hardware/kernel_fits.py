"""Constants of the kernel model: one record a device, read from ``presets/kernels/<id>.yaml``.

The constants are written by ``benchmarks/fit_kernels.py``; ``shardwright.hardware.kernels`` says what each one
does in the formulas. Every group of constants carries its provenance: measured on the device, transferred from
another one or assumed, with the error on measurements that were held out of the fit.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardwright.documents import parse_yaml
from shardwright.errors import DamagedFileError, unknown_name

DIVISORS = frozenset({"peak_fraction", "memory_fraction", "norm_power", "split_k", "sm_count", "backward_rate"})
"""Constants that others are divided by."""

LARGEST, SMALLEST = 1e6, 1e-6
"""No constant of a fit is larger, and no divisor smaller."""

ORIGINS = ("measured", "transferred", "assumed")
"""Where constants can come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where constants come from and how far they can be trusted.

    Attributes:
        origin: ``measured`` on this device, ``transferred`` from another one, or ``assumed``.
        source: repository, table or paper.
        rows: measurements fitted (0 where none).
        median_error: relative error on held-out measurements, median; None where unknown.
        p90_error: the same, 90th percentile.
        mean_error: the same, mean.
        note: how the number was derived.
    """

    origin: str
    source: str
    rows: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    mean_error: float | None = None
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
        ramp_tokens: causal sequence length at which the rate is half of what it is for endless sequences.
        query_tile: queries that one thread block handles.
        wave_softness: as for matrix products.
        memory_fraction: share of memory bandwidth reached.
        norm_power: exponent joining compute and memory time.
        start_s: fixed device time of a kernel.
        backward_flops_ratio: FLOPs of the backward pass over those of the forward pass.
        backward_rate: rate of the backward pass over that of the forward pass.
        head_padding: 1 = value heads are padded to the size of the query/key heads (or the reverse), 0 = not; forward.
        backward_head_padding: the same in the backward pass.
    """

    peak_fraction: tuple[tuple[float, float], ...]
    ramp_tokens: float
    query_tile: int
    wave_softness: float
    memory_fraction: float
    norm_power: float
    start_s: float
    backward_flops_ratio: float
    backward_rate: float
    head_padding: float
    backward_head_padding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """All kernel constants of one device.

    Attributes:
        id: name of the preset.
        gemm: matrix products, in isolation.
        attention: fused attention, in isolation.
        sustained_factor: how much slower matrix products run in training than in isolation (power, cold operands).
        attention_sustained_factor: the same for fused attention.
        memory_fraction: share of datasheet memory bandwidth that streaming kernels reach.
        precision_speedup: matrix rate relative to bf16, by precision id and by compute type.
        backend_factor: rate of an attention backend relative to the table (the best backend).
        throttles_in_training: whether large products are slowed in training as they are in isolation; False where training has
            no kernel at the clocks of an idle device, so that the sustained factor alone holds for all sizes.
        provenance: of ``gemm``, ``attention``, ``sustained_factor``, ``attention_sustained_factor``,
            ``memory_fraction``, ``precision_speedup``.
    """

    id: str
    gemm: GemmConstants
    attention: AttentionConstants
    sustained_factor: float
    attention_sustained_factor: float
    memory_fraction: float
    precision_speedup: Mapping[str, float]
    backend_factor: Mapping[str, float]
    provenance: Mapping[str, Provenance]
    throttles_in_training: bool = True


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
        for place, number in _numbers(data):
            _check_number(place, number)
        gemm = GemmConstants(
            **{**data["gemm"], "tiles": tuple((max(int(a), 1), max(int(b), 1)) for a, b in data["gemm"]["tiles"])}
        )
        heads = tuple(sorted((float(d), float(v)) for d, v in data["attention"]["peak_fraction"]))
        if not heads or not heads[0][0] > 0:
            raise ValueError("attention.peak_fraction has no head sizes")
        attention = AttentionConstants(**{**data["attention"], "peak_fraction": heads})
        if not isinstance(data.get("throttles_in_training", True), bool):
            raise ValueError("throttles_in_training is not true or false")
        records = {"gemm": gemm, "attention": attention}
        origin = {"provenance": {k: _provenance(k, v) for k, v in data["provenance"].items()}}
        return KernelFit(**{**data, **records, **origin})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(
            f"the kernel fit {str(data.get('id', '?'))[:60]!r} cannot be read: {error}",
            hint="write it with benchmarks/fit_kernels.py",
        ) from error


def _numbers(data: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Every constant of a fit with its place."""
    for name in ("sustained_factor", "attention_sustained_factor", "memory_fraction"):
        yield name, data[name]
    for part in ("gemm", "attention", "precision_speedup", "backend_factor"):
        yield from ((f"{part}.{key}", value) for key, value in data[part].items() if (part, key) not in _PAIRS)
    for part, key in _PAIRS:
        yield from ((f"{part}.{key}", number) for pair in data[part][key] for number in pair)


_PAIRS = (("gemm", "tiles"), ("attention", "peak_fraction"))
"""Constants that are lists of two numbers each."""


def _check_number(place: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LARGEST:
        raise ValueError(f"{place} is {str(number)[:60]!r}, not a number from 0 to {LARGEST:g}")
    if number < SMALLEST and place.rpartition(".")[2] in DIVISORS:
        raise ValueError(f"{place} is {number!r}, less than {SMALLEST:g}")


def _provenance(term: str, data: Mapping[str, Any]) -> Provenance:
    made = Provenance(**data)
    if made.origin not in ORIGINS or not isinstance(made.source, str) or not isinstance(made.note, str):
        raise ValueError(f"provenance.{term} needs an origin of {', '.join(ORIGINS)}, a source and a note in words")
    for name in ("rows", "median_error", "p90_error", "mean_error"):
        value = getattr(made, name)
        if value is not None:
            _check_number(f"provenance.{term}.{name}", value)
    return made
