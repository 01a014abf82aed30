"""Factors on constants of kernels and stacks: those that may be fitted to whole steps, and sets of values for them.

A factor f multiplies (or divides) fields of a record: a sustained time of `KernelFit`, a share or host time of `StackProfile`.
Its prior is 1: what operator tables, datasheets and the facts of stack profiles say. `Fits.kernels` and `Fits.stack` return the
records with a set of values applied; whoever prices reads the records and knows nothing of fits. Log f has a prior spread of
`Factor.spread`; `planner.fits.fitting` finds values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from shardwright.documents import rounded
from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware.kernel_fits import KernelFit
from shardwright.planner.stacks import StackProfile

RecordT = TypeVar("RecordT", KernelFit, StackProfile)

LEAST, MOST = 0.1, 10.0
"""Range of a factor that a user may set."""

BELOW_16_BITS = ("fp8", "mxfp8", "nvfp4", "fp4")
"""How ids of arithmetic below 16 bits begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A number that may be fitted.

    Attributes:
        name: by which it is listed and set.
        says: what it is, in words.
        fields: fields of the record it changes; of a field that is a mapping, the keys that begin with one of `keys`.
        spread: prior deviation of its logarithm.
        divides: whether the fields are divided by it (rates), so that above 1 is always slower.
        stack: whether the record is the stack profile; else the kernel fit.
        arch: generation of the device it is for, how the word begins.
        native: whether it is for stacks of PyTorch and JAX alone (torchtitan, FSDP, XLA), not for those of Megatron.
        keys: see `fields`.
        most: largest value of a field afterwards.
    """

    name: str
    says: str
    fields: tuple[str, ...]
    spread: float
    divides: bool = False
    stack: bool = False
    arch: str = ""
    native: bool = False
    keys: tuple[str, ...] = ()
    most: float = math.inf

    def holds_for(self, arch: str, profile: StackProfile) -> bool:
        """Whether it is for a device of a generation, run by a stack."""
        return arch.startswith(self.arch) and (not self.native or profile.framework in NATIVE)

    def on(self, record: RecordT, value: float) -> RecordT:
        """A record with the factor applied."""
        ratio = 1.0 / value if self.divides else value
        return replace(record, **{name: self._changed(getattr(record, name), ratio) for name in self.fields})

    def _changed(self, old: Any, ratio: float) -> Any:
        if isinstance(old, Mapping):
            return {key: number * ratio if key.startswith(self.keys) else number for key, number in old.items()}
        return min(old * ratio, max(self.most, old))


OPEN, COMMON, KNOWN = 0.1, 0.05, 0.03
"""Prior spreads. OPEN: known from kernels in isolation only (attention, copies that fill memory bandwidth) or from tables that
hold casts (8 and 4 bits, off by 10 to 15 %). COMMON: what all stacks may have in common of figures that each profile states for
itself. KNOWN: measured in training conditions, or a departure of one generation from the others; held-out errors of 3 to 4 %
(docs/model.md)."""

NATIVE = ("pytorch", "torchtitan")
"""Framework families of stacks that PyTorch or XLA run."""


def _products(arch: str, says: str) -> Factor:
    return Factor(
        name=f"products.{arch}", says=f"matrix products, {says}", fields=("sustained_factor",), spread=KNOWN, arch=arch
    )


def _of_stack(name: str, says: str, *fields: str, spread: float, most: float = math.inf) -> Factor:
    return Factor(name=name, says=says, fields=fields, spread=spread, stack=True, most=most)


FACTORS: Mapping[str, Factor] = {
    factor.name: factor
    for factor in (
        _products("volta", "V100"),
        _products("ampere", "A100"),
        _products("hopper", "H100, H200, GH200"),
        _products("blackwell", "B200, GB200, B300, GB300"),
        _products("cdna", "MI200 to MI350"),
        Factor(
            name="products.native",
            says="matrix products of PyTorch and JAX stacks",
            fields=("sustained_factor",),
            spread=KNOWN,
            native=True,
        ),
        Factor(
            name="products.below_16_bits",
            says="matrix products in 8 and 4 bits, beside those in 16",
            fields=("precision_speedup",),
            keys=BELOW_16_BITS,
            spread=OPEN,
            divides=True,
        ),
        Factor(
            name="products.below_16_bits.blackwell",
            says="the same on Blackwell",
            fields=("precision_speedup",),
            keys=BELOW_16_BITS,
            spread=KNOWN,
            divides=True,
            arch="blackwell",
        ),
        Factor(name="attention", says="fused attention", fields=("attention_sustained_factor",), spread=OPEN),
        Factor(
            name="attention.hopper",
            says="the same on Hopper",
            fields=("attention_sustained_factor",),
            spread=KNOWN,
            arch="hopper",
        ),
        Factor(
            name="streams",
            says="memory-bound kernels and the optimizer",
            fields=("memory_fraction",),
            spread=OPEN,
            divides=True,
        ),
        _of_stack("elementwise", "traffic of elementwise operators", "elementwise_factor", spread=COMMON),
        _of_stack("scores", "traffic of unfused scores", "score_bytes_forward", "score_bytes_backward", spread=COMMON),
        _of_stack("logits", "traffic of the loss", "logit_bytes", spread=COMMON),
        _of_stack("host", "host time of a launch", "host_s_per_kernel", spread=COMMON),
        _of_stack("host.routed", "host time of routing", "moe_host_forward_s", "moe_host_backward_s", spread=COMMON),
        _of_stack("exposed.tp", "exposed share of tensor parallelism", "tp_exposed", spread=COMMON, most=1.0),
        _of_stack("exposed.ep", "exposed share of expert exchange", "ep_exposed", spread=COMMON, most=1.0),
        _of_stack("exposed.dp", "exposed floor of data parallelism", "dp_exposed_floor", spread=COMMON, most=1.0),
        _of_stack("fsdp", "interference of sharded exchange", "fsdp_interference", spread=COMMON, most=1.0),
    )
}
"""All numbers that may be fitted; which of them ship is decided by what they do for sources left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Values of factors.

    Attributes:
        name: of the set.
        source: what it was fitted to, in words.
        values: by name; a factor that is missing is 1.
    """

    name: str = "none"
    source: str = "nothing: operator tables, datasheets and stack profiles as they are"
    values: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            if name not in FACTORS:
                raise unknown_name("fitted factor", name, list(FACTORS))
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST <= value <= MOST:
                raise InvalidValueError(f"fit.{name} is {value!r}", where=f"fit.{name}", hint=f"give {LEAST:g} to {MOST:g}")

    def kernels(self, fit: KernelFit, arch: str, profile: StackProfile) -> KernelFit:
        """The kernel constants of a device of a generation as a stack runs it."""
        for factor, value in self._those(stack=False):
            fit = factor.on(fit, value) if factor.holds_for(arch, profile) else fit
        return fit

    def stack(self, profile: StackProfile) -> StackProfile:
        """The profile of a stack."""
        for factor, value in self._those(stack=True):
            profile = factor.on(profile, value)
        return profile

    def _those(self, *, stack: bool) -> list[tuple[Factor, float]]:
        pairs = ((FACTORS[name], value) for name, value in self.values.items() if value != 1.0)
        return [(factor, value) for factor, value in pairs if factor.stack is stack]

    def in_force(self, archs: Sequence[str], profile: StackProfile, precision: str) -> dict[str, float]:
        """The values that are for one of the devices of a job in some precision, run by a stack."""
        low = precision.startswith(BELOW_16_BITS)
        pairs = ((FACTORS[name], value) for name, value in self.values.items())
        return {
            factor.name: value
            for factor, value in pairs
            if (low or not factor.keys) and any(factor.holds_for(arch, profile) for arch in archs)
        }

    def changed(self, values: Mapping[str, float]) -> Fits:
        """The set with some values replaced."""
        return replace(self, values={**self.values, **values}) if values else self

    def over(self, other: Fits) -> Fits:
        """What leads from records with another set applied to those with this one: quotients."""
        names = dict.fromkeys((*self.values, *other.values))
        return replace(self, values={name: self.values.get(name, 1.0) / other.values.get(name, 1.0) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"name": self.name, "source": self.source, "values": dict(rounded(dict(self.values)))}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Fits:
        """The set that `to_dict` wrote."""
        return Fits(name=str(data["name"]), source=str(data["source"]), values=dict(data["values"]))


NOTHING_FITTED = Fits()
"""Every factor at its prior."""
