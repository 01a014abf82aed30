"""The report of `show`: a table of all items, or one item key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import table

UNITS = {
    "scaleup_bytes_per_s": ("up\nGB/s", 1e9),
    "internode_bytes_per_s": ("net\nGB/s", 1e9),
    "memory_bytes_per_s": ("memory GB/s", 1e9),
    "bf16_flops": ("bf16 TFLOP/s", 1e12),
    "memory_bytes": ("memory GiB", words.GIB),
}
COUNTS = ("parameters", "active_parameters")
ONLY_OF_RULES = ("reads", "source", "since", "until", "settings")
ONLY_IN_FULL = (*ONLY_OF_RULES, "writes", "launchers", "cannot", "zero_stage", "grad_bytes", "scaleup_domain_gpus",
                "left_out_least", "left_out_most")  # fmt: skip
LONG = ("says", "versions", "description", "rules", "targets", "arch", "frameworks")
HEADINGS = {"active_parameters": "active"}


def listing_parts(data: Mapping[str, Any]) -> list[Any]:
    """A table of `items`, or the one `item`."""
    return [_items(data["items"])] if "items" in data else [_item(data["item"])]


def _items(items: Sequence[Mapping[str, Any]]) -> Any:
    names = [name for name in (items[0] if items else ("id",)) if name not in ONLY_IN_FULL]
    numbers = [n for n in names if any(isinstance(i[n], (int, float)) for i in items)]
    headings = [UNITS[n][0] if n in UNITS else HEADINGS.get(n, n).replace("_", " ") for n in names]
    texts = [h for n, h in zip(names, headings, strict=True) if n not in numbers]
    shown = table(*headings, left=texts, wrap=LONG)
    for item in items:
        shown.add_row(*(cell(name, item[name]) for name in names))
    return shown


def cell(name: str, value: Any) -> str:
    """A value in the unit of its column."""
    if value is None:
        return words.UNKNOWN
    if name in UNITS:
        return words.digits(value / UNITS[name][1], 4)
    return words.big(value) if name in COUNTS else words.plain(value)


def _item(item: Mapping[str, Any]) -> Any:
    shown = table("key", "value", left=("key",), wrap=("value",))
    for name, value in _lines(item, ""):
        shown.add_row(name, value)
    return shown


def _lines(item: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, part in enumerate(value, 1):
                yield from _lines(part, f"{prefix}{name}.{number}.")
        else:
            yield prefix + name, words.plain(value)
