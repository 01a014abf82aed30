"""Checks shared by the records of this package: each raises our own error naming the field, the value and what is allowed.

`positive` and `optional_positive` refuse zero, negative, non-finite and absurd figures, `whole` a count outside its range,
`identifier` an id that is not lower case with hyphens and dots.
"""

from __future__ import annotations

import math
import re

from shardwright.errors import InvalidValueError

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]*")
SMALLEST, LARGEST = 1e-3, 1e21
"""Figures (bytes or FLOP a second, watts, dollars an hour) below or beyond these are typing errors."""


def positive(place: str, value: object) -> float:
    """The value as a float.

    Raises:
        InvalidValueError: no number, not finite, zero, negative, below 1e-3 or beyond 1e21.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValueError(f"{place} is {_shown(value)}, not a number", where=place, hint="give a positive number")
    if not math.isfinite(value) or not SMALLEST <= value <= LARGEST:
        raise InvalidValueError(
            f"{place} is {_shown(value)}", where=place, hint=f"a finite number from {SMALLEST:g} to {LARGEST:g} is needed"
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


def shown_name(place: str, value: object) -> str:
    """The value as a name that can be printed: 1 to 200 characters, none of them a control character.

    Raises:
        InvalidValueError: anything else.
    """
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InvalidValueError(f"{place} is {_shown(value)}", where=place, hint="use up to 200 printable characters")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
