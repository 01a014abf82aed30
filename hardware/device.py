"""One accelerator: what a datasheet and the driver say of it.

`Device` carries dense peaks per precision, memory capacity as the driver reports it (never the marketing figure),
memory and link bandwidths (one way), and the id of the kernel fit that prices operators on it. A figure that is not
known is None, a precision the device lacks is missing from `peak_flops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware import checks

PEAK_KEYS = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator as one rank sees it.

    Attributes:
        id: preset id, such as ``h100-sxm5-80g``.
        name: the vendor's name.
        vendor: who makes it.
        arch: chip generation, such as ``hopper``.
        peak_flops: dense FLOP/s by precision (bf16 fp16 fp32 tf32 fp8 fp4); missing = not supported.
        memory_bytes: capacity as the driver reports it.
        memory_bytes_source: where that figure comes from; starts with ``assumed`` where it was derived.
        memory_bytes_per_s: peak bandwidth of the device memory.
        sm_count: streaming multiprocessors or compute units.
        scaleup_bytes_per_s: one-way bandwidth to the scale-up fabric, all links; None without one.
        pcie_bytes_per_s: one-way bandwidth to the host.
        tdp_w: board power limit.
        kernels: id of the kernel fit.
        sources: where the figures come from.
        notes: what a user should know.
    """

    id: str
    name: str
    vendor: str
    arch: str
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bytes_source: str
    memory_bytes_per_s: float
    sm_count: int | None = None
    scaleup_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    tdp_w: float | None = None
    kernels: str = "generic"
    sources: tuple[str, ...] = field(default=())
    notes: str = ""

    def __post_init__(self) -> None:
        checks.identifier("device.id", self.id)
        for key, value in self.peak_flops.items():
            if key not in PEAK_KEYS:
                raise unknown_name("precision", str(key), PEAK_KEYS, where="device.peak_flops")
            checks.positive(f"device.peak_flops.{key}", value)
        if not self.peak_flops:
            raise InvalidValueError(
                "device.peak_flops is empty", where="device.peak_flops", hint="give at least one of " + ", ".join(PEAK_KEYS)
            )
        checks.whole("device.memory_bytes", self.memory_bytes, 1, 2**50)
        checks.positive("device.memory_bytes_per_s", self.memory_bytes_per_s)
        for name in ("scaleup_bytes_per_s", "pcie_bytes_per_s", "tdp_w"):
            checks.optional_positive(f"device.{name}", getattr(self, name))
        if self.sm_count is not None:
            checks.whole("device.sm_count", self.sm_count, 1, 100_000)

    def __hash__(self) -> int:
        return hash((self.id, self.memory_bytes, self.memory_bytes_per_s, tuple(self.peak_flops.items())))

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON values; `from_dict` reads it back to an equal record."""
        return {**asdict(self), "peak_flops": dict(self.peak_flops), "sources": list(self.sources)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Device:
        """A device from a mapping of its fields.

        Raises:
            InvalidValueError: a field missing or out of range.
            UnknownNameError: a key that is no field.
        """
        made: Device = make_record(Device, "device", data, _FLOATS, _TUPLES)
        return made


_FLOATS = ("memory_bytes_per_s", "scaleup_bytes_per_s", "pcie_bytes_per_s", "tdp_w")
_TUPLES = ("sources",)


def make_record(
    record: type[Any], place: str, data: Mapping[str, Any], floats: tuple[str, ...], tuples: tuple[str, ...]
) -> Any:
    """Builds a record from plain data: numbers of `floats` as float, lists of `tuples` as tuple.

    Raises:
        InvalidValueError: a field missing or out of range.
        UnknownNameError: a key that is no field.
    """
    known = record.__dataclass_fields__
    for key in data:
        if key not in known:
            raise unknown_name("key", str(key), known, where=f"{place}.{key}")
    values = {k: v for k, v in data.items() if v is not None or known[k].default is None}
    for key in floats:
        if key in values:
            values[key] = checks.optional_positive(f"{place}.{key}", values[key])
    for key in tuples:
        if key in values:
            values[key] = tuple(values[key] or ())
    if "peak_flops" in values:
        values["peak_flops"] = _peaks(place, values["peak_flops"])
    try:
        return record(**values)
    except TypeError as error:
        missing = ", ".join(sorted(_required(record) - set(values)))
        raise InvalidValueError(f"{place} lacks {missing or error}", where=place, hint="fill in the missing keys") from error


def _peaks(place: str, value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise InvalidValueError(
            f"{place}.peak_flops is no mapping", where=f"{place}.peak_flops", hint="write bf16: 989e12 and so on"
        )
    return {str(k): checks.positive(f"{place}.peak_flops.{k}", v) for k, v in value.items()}


def _required(record: type[Any]) -> set[str]:
    from dataclasses import MISSING

    fields = record.__dataclass_fields__.values()
    return {f.name for f in fields if f.default is MISSING and f.default_factory is MISSING}
