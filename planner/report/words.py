"""Numbers as people read them: seconds, GiB (2^30), counts, shares, bars.

Only for the screen; files and JSON carry SI units with all their digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

GIB = 2**30
UNKNOWN = "-"
WORTH_A_CELL = 0.005


def seconds(value: float | None, significant: int = 3) -> str:
    """A duration with about so many significant digits and its unit."""
    if value is None:
        return UNKNOWN
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (1e4, 1.0, "s")):
        if value < limit:
            return f"{digits(value * factor, significant)} {unit}"
    return f"{value:,.0f} s"


def digits(value: float, count: int = 3) -> str:
    """A number with about `count` significant digits, never in scientific form."""
    size = abs(value)
    if 0 < size < 1:
        return f"{value:.{count}g}" if size >= 1e-4 else f"{value:.{count - 1}e}"
    decimals = next((count - n for n in range(1, count) if size < 10**n), 0)
    return f"{value:,.{decimals}f}"


def gib(value: float | None) -> str:
    """Bytes as GiB without the unit, with one decimal below a thousand."""
    if value is None:
        return UNKNOWN
    return f"{value / GIB:,.1f}" if value < 1000 * GIB else f"{value / GIB:,.0f}"


def meter_of(memory: Mapping[str, Any]) -> str:
    """The meter that leads a plan's memory: allocated, reserved or device."""
    return str(memory["headline"]["meter"])


def peak_bytes(memory: Mapping[str, Any]) -> int:
    """Bytes of a plan's fullest stage in the meter that leads; the device's include the margin asked for."""
    return int(memory["peak_bytes"] if meter_of(memory) == "device" else memory["headline"]["bytes"])


def message_size(value: float | None) -> str:
    """Bytes of a message in the binary unit that suits it."""
    if value is None:
        return UNKNOWN
    for limit, factor, unit in ((2**10, 1, "B"), (2**20, 2**10, "KiB"), (2**30, 2**20, "MiB")):
        if value < limit:
            return f"{digits(value / factor)} {unit}"
    return f"{digits(value / GIB)} GiB"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def many(value: int, noun: str, nouns: str = "") -> str:
    """A count with its noun, in the plural (`nouns`, else with an s) where it is not one."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {nouns or noun + 's'}"


def big(value: float | None) -> str:
    """A large count in millions (M), billions (B) or trillions (T)."""
    if value is None:
        return UNKNOWN
    for limit, factor, unit in ((1e6, 1.0, ""), (1e9, 1e6, " M"), (1e12, 1e9, " B")):
        if value < limit:
            return f"{value / factor:,.4g}{unit}"
    return f"{value / 1e12:,.4g} T"


def percent(value: float | None, decimals: int = 1) -> str:
    """A fraction as a percentage."""
    return UNKNOWN if value is None else f"{100 * value:.{decimals}f} %"


def span(value: float | None) -> str:
    """A duration of minutes to days, as people say it."""
    if value is None:
        return UNKNOWN
    for limit, factor, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if value < limit:
            return f"{digits(value / factor, 2)} {unit}"
    return f"{digits(value / 86_400.0)} days"


def failures(predicted: Mapping[str, Any]) -> list[str]:
    """What failures take: useful share of wall time with its interval, mean time to interruption, checkpoints."""
    share = predicted["goodput_fraction"]
    if share is None:
        return []
    low, high = predicted.get("goodput_low_fraction"), predicted.get("goodput_high_fraction")
    interval = f" ({percent(low)} to {percent(high)})" if low is not None and high is not None else ""
    said = [f"goodput {percent(share)}{interval}"]
    if predicted.get("mtti_s") is not None:
        every = predicted["checkpoint_interval_s"]
        said.append(f"an interruption every {span(predicted['mtti_s'])}, a checkpoint every {span(every)}")
    return said


def bar(fraction: float, width: int) -> str:
    """A bar of `width` cells, full only at 1 and empty only below half a per cent; beyond 1 the last cell is an arrow."""
    if fraction > 1:
        return "█" * (width - 1) + "▶"
    filled = int(max(0.0, fraction) * width)
    if fraction >= WORTH_A_CELL:
        filled = max(filled, 1)
    return "█" * filled + "░" * (width - filled)


def joined(pairs: Mapping[str, Any] | Iterable[tuple[str, Any]], separator: str = "=") -> str:
    """Pairs as `a=1, b=2`."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return ", ".join(f"{name}{separator}{plain(value)}" for name, value in items)


def plain(value: Any) -> str:
    """Any JSON value as short text: null as `-`, booleans as yes and no, lists with commas."""
    if value is None or value == []:
        return UNKNOWN
    if isinstance(value, Mapping):
        return joined(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _number(value) if isinstance(value, (int, float)) else str(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.6g}"
