"""Making validated records from mappings, and the ranges of their whole numbers.

`record_of` turns a mapping into a record and names the first key that is unknown, missing or out of its range;
`check_ranges`, `check_optional` and `check_flags` serve the records' own checks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.models.checks import flag, mapping, whole

MAX_LAYERS = 10_000

RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "layers": (1, MAX_LAYERS),
        "hidden": (1, 1_000_000),
        "heads": (1, 65_536),
        "kv_heads": (1, 65_536),
        "head_dim": (1, 65_536),
        "ffn": (1, 10_000_000),
        "vocab": (1, 100_000_000),
        "max_positions": (1, 1_000_000_000),
        "position_offset": (0, 1024),
        "window": (1, 1_000_000_000),
        "mtp_layers": (0, 64),
        "q_rank": (1, 1_000_000),
        "kv_rank": (1, 1_000_000),
        "nope_dim": (1, 65_536),
        "rope_dim": (1, 65_536),
        "v_dim": (1, 65_536),
        "index_heads": (1, 65_536),
        "index_dim": (1, 65_536),
        "index_topk": (1, 1_000_000_000),
        "experts": (1, 65_536),
        "topk": (1, 65_536),
        "expert_ffn": (1, 10_000_000),
        "shared_ffn": (0, 10_000_000),
        "groups": (1, 65_536),
        "topk_groups": (1, 65_536),
        "dense_layer": (0, MAX_LAYERS - 1),
        "state": (1, 65_536),
        "conv": (0, 1024),
        "chunk": (1, 65_536),
        "dt_rank": (1, 1_000_000),
    }
)

RecordT = TypeVar("RecordT")
ItemT = TypeVar("ItemT", bound=Hashable)


def record_of(record: type[RecordT], value: object, key: str) -> RecordT:
    """The record of a mapping that stands under `key`; a record stays as it is."""
    if isinstance(value, record):
        return value
    return made(record, known(record, mapping(value, key), key + "."), key + ".")


def known(record: type[Any], data: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The mapping, if the record has all its keys.

    Raises:
        UnknownNameError: it has not (the nearest right key is offered).
    """
    names = [field.name for field in fields(record)]
    for key in data:
        if key not in names:
            raise unknown_name("key", str(key), names, where=prefix + str(key)[:60])
    return dict(data)


def made(record: type[RecordT], given: dict[str, Any], prefix: str) -> RecordT:
    """The record of these arguments.

    Raises:
        InvalidValueError: one without a default is missing.
    """
    for field in fields(record):  # type: ignore[arg-type]
        if _required(field) and given.get(field.name) is None:
            raise InvalidValueError(f"{prefix}{field.name} is missing", where=prefix + field.name)
    return record(**given)


def one_period(entries: tuple[ItemT, ...], layers: int) -> tuple[ItemT, ...]:
    """The shortest beginning of the entries that, repeated, says the same of all layers."""
    repeated = tuple(entries[layer % len(entries)] for layer in range(layers))
    return repeated[: _period(repeated)]


def check_ranges(record: object, names: tuple[str, ...], prefix: str) -> None:
    """Whole numbers within `RANGES`."""
    for name in names:
        whole(getattr(record, name), prefix + name, *RANGES[name])


def check_optional(record: object, names: tuple[str, ...], prefix: str) -> None:
    """Whole numbers within `RANGES`, or None."""
    check_ranges(record, tuple(name for name in names if getattr(record, name) is not None), prefix)


def check_flags(record: object, names: tuple[str, ...], prefix: str) -> None:
    """True or false."""
    for name in names:
        flag(getattr(record, name), prefix + name)


def _period(entries: tuple[ItemT, ...]) -> int:
    """The least p with entries[i] = entries[i - p] for all i >= p (Knuth, Morris, Pratt: length less the longest border)."""
    borders = [0] * len(entries)
    for i in range(1, len(entries)):
        length = borders[i - 1]
        while length and entries[i] != entries[length]:
            length = borders[length - 1]
        borders[i] = length + (entries[i] == entries[length])
    return len(entries) - borders[-1]


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
