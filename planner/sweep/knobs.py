"""The values of a knob as a user writes them: one, a list, a range, or `auto`.

    8            one value              8..1024x2    8, 16, 32, ... up to 1024
    1,2,4        a list                 8..64+8      8, 16, 24, ... up to 64
    1,8..64x2    both                   auto         left to the sweep; stands alone

`words` takes names, `numbers` whole numbers, `shares` positive numbers that need not be whole. Values come back without
repeats: names in the order given, numbers ascending. None stands for `auto`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from shardwright.errors import ConflictError, InvalidValueError

AUTO = "auto"
LARGEST = 10**12
MOST = 10_000
"""Values of one knob at most."""

_RANGE = re.compile(r"(?P<low>[^.]+(?:\.\d+)?)\.\.(?P<high>[^x+*]+)(?:(?P<how>[x+*])(?P<by>.+))?")
RANGES = "write 8..1024x2 (doubling) or 8..64+8 (steps of 8), the lower end first"

NumberT = TypeVar("NumberT", int, float)
Given = str | int | float | Sequence[str | int | float]


def words(given: Given, where: str) -> tuple[str, ...] | None:
    """Names, in the order given.

    Raises:
        InvalidValueError: no value, or an empty one.
        ConflictError: `auto` beside other values.
    """
    parts = _parts(given, where)
    return None if parts is None else tuple(dict.fromkeys(parts))


def numbers(given: Given, where: str) -> tuple[int, ...] | None:
    """Whole numbers from 1, ascending.

    Raises:
        InvalidValueError: no value, no whole number, or an empty or descending range.
        ConflictError: `auto` beside other values.
    """
    return _values(given, where, _whole)


def shares(given: Given, where: str) -> tuple[float, ...] | None:
    """Positive numbers, ascending; as `numbers`."""
    return _values(given, where, _positive)


def _values(given: Given, where: str, read: Callable[[str, str], NumberT]) -> tuple[NumberT, ...] | None:
    parts = _parts(given, where)
    if parts is None:
        return None
    found = {value for part in parts for value in _of_part(part, where, read)}
    if len(found) > MOST:
        raise InvalidValueError(f"{len(found):,} values", where=where, hint=f"give at most {MOST:,}")
    return tuple(sorted(found))


def _parts(given: Given, where: str) -> list[str] | None:
    items = [given] if isinstance(given, (str, int, float)) else list(given)
    parts = [part.strip() for item in items for part in _text(item).split(",")]
    if not parts or "" in parts:
        raise InvalidValueError("an empty value" if parts else "no values", where=where, hint="give one value or more")
    if AUTO in parts and set(parts) != {AUTO}:
        raise ConflictError(
            f"{AUTO} beside {', '.join(p for p in parts if p != AUTO)}", where=where, hint="keep one of the two"
        )
    return None if AUTO in parts else parts


def _text(item: str | int | float) -> str:
    return str(int(item)) if isinstance(item, float) and item.is_integer() else str(item)


def _of_part(part: str, where: str, read: Callable[[str, str], NumberT]) -> list[NumberT]:
    if ".." not in part:
        return [read(part, where)]
    found = _RANGE.fullmatch(part)
    if found is None or found["how"] is None:
        raise InvalidValueError(f"{part!r} is no range", where=where, hint=RANGES)
    low, high, by = (read(found[name].strip(), where) for name in ("low", "high", "by"))
    if low > high:
        raise InvalidValueError(f"the range {part} descends", where=where, hint=RANGES)
    if found["how"] != "+" and by <= 1:
        raise InvalidValueError(f"the range {part} never reaches its end", where=where, hint="multiply by more than 1")
    made = [low]
    while (upper := low + by * len(made) if found["how"] == "+" else low * by ** len(made)) <= high:
        made.append(upper)
        if len(made) > MOST:
            raise InvalidValueError(f"the range {part} has more than {MOST:,} values", where=where, hint="take larger steps")
    return made


def _whole(text: str, where: str) -> int:
    value = _number(text)
    if value is None or not value.is_integer() or not 1 <= value <= LARGEST:
        message = f"{text[:40]!r} is no whole number from 1"
        raise InvalidValueError(message, where=where, hint=f"write 8, or 8,16,32, or a range: {RANGES}")
    return int(value)


def _positive(text: str, where: str) -> float:
    value = _number(text)
    if value is None or not 0 < value <= LARGEST:
        message = f"{text[:40]!r} is no positive number"
        raise InvalidValueError(message, where=where, hint=f"write 2, or 0.5,1,2, or a range: {RANGES}")
    return value


def _number(text: str) -> float | None:
    if not re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d{1,2})?", text):
        return None
    return float(text)
