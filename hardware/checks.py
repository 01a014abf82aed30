"""Checks shared by the records of this package: each raises our own error naming the field, the value and what is allowed.

`positive` and `optional_positive` refuse zero, negative and non-finite figures, `whole` a count outside its range,
`identifier` an id that is not lower case with hyphens and dots.
"""

from __future__ import annotations

import math
import re

from shardwright.errors import InvalidValueError

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]*")
LARGEST = 1e30


def positive(place: str, value: object) -> float:
    """The value as a float.

    Raises:
        InvalidValueError: no number, not finite, zero, negative, or beyond 1e30.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValueError(f"{place} is {_shown(value)}, not a number", where=place, hint="give a positive number")
    if not math.isfinite(value) or not 0 < value <= LARGEST:
        raise InvalidValueError(
            f"{place} is {_shown(value)}", where=place, hint=f"a finite number above 0 and at most {LARGEST:g} is needed"
        )
    return float(value)


def optional_positive(place: str, value: object) -> float | None:
    """As `positive`, with None kept (unknown).

    Raises:
        InvalidValueError: given, but no positive number.
    """
    return None if value is None else positive(place, value)


def whole(place: str, value: object, low: int, high: int) -> int:
    """The value as an integer between `low` and `high`, both included.

    Raises:
        InvalidValueError: not a whole number, or outside the range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"{place} is {_shown(value)}, not a whole number", where=place, hint=f"give {low} to {high:,}")
    if not low <= value <= high:
        raise InvalidValueError(f"{place} is {_shown(value)}", where=place, hint=f"allowed are {low} to {high:,}")
    return value


def identifier(place: str, value: object) -> str:
    """The value as an id: lower case letters, digits, dots, plus signs and hyphens.

    Raises:
        InvalidValueError: anything else.
    """
    if not isinstance(value, str) or len(value) > 200 or not _IDENTIFIER.fullmatch(value):
        raise InvalidValueError(
            f"{place} is {_shown(value)}", where=place, hint="use lower case letters, digits, dots and hyphens"
        )
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
