"""Checks of single values, raising our errors with the key as the place.

Each says the key, what was given and what is allowed. `shown` shortens what was given, however large it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.errors import InvalidValueError


def shown(value: object) -> str:
    """A value for a message, at most 60 characters long."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} keys"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def whole(value: object, key: str, low: int, high: int) -> int:
    """A whole number in [low, high].

    Raises:
        InvalidValueError: another type (true and false are no numbers), or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"{key} is {shown(value)}", where=key, hint=f"give a whole number from {low:,} to {high:,}")
    if not low <= value <= high:
        raise InvalidValueError(
            f"{key} is {shown(value)}", where=key, hint=f"allowed are whole numbers from {low:,} to {high:,}"
        )
    return value


def flag(value: object, key: str) -> bool:
    """True or false.

    Raises:
        InvalidValueError: anything else.
    """
    if not isinstance(value, bool):
        raise InvalidValueError(f"{key} is {shown(value)}", where=key, hint="give true or false")
    return value


def text(value: object, key: str, limit: int = 2000) -> str:
    """A text of at most `limit` characters.

    Raises:
        InvalidValueError: another type, or longer.
    """
    if not isinstance(value, str):
        raise InvalidValueError(f"{key} is {shown(value)}", where=key, hint="give a text")
    if len(value) > limit:
        raise InvalidValueError(f"{key} has {len(value):,} characters", where=key, hint=f"at most {limit:,} are allowed")
    return value


def name_text(value: object, key: str, limit: int = 200) -> str:
    """A name: a text of at most `limit` characters that are not all blank.

    Any character may stand in it: what writes it quotes it (`emit`, HTML), what shows it on a screen writes control
    characters out.

    Raises:
        InvalidValueError: anything else.
    """
    given = text(value, key, limit)
    if not given.strip():
        raise InvalidValueError(f"{key} is empty", where=key, hint="give a name")
    return given


def name_of_file(stem: str) -> str:
    """A name made of that of a file."""
    return "".join(c if c.isprintable() else "?" for c in stem)[:100]


def choice(value: object, key: str, allowed: Sequence[str]) -> str:
    """One of a few words.

    Raises:
        InvalidValueError: none of them.
    """
    if not isinstance(value, str) or value not in allowed:
        raise InvalidValueError(f"{key} is {shown(value)}", where=key, hint="allowed: " + ", ".join(allowed))
    return value


def sequence(value: object, key: str, limit: int) -> tuple[Any, ...]:
    """A list (or tuple) of at most `limit` entries.

    Raises:
        InvalidValueError: another type, or longer.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidValueError(f"{key} is {shown(value)}", where=key, hint="give a list")
    if len(value) > limit:
        raise InvalidValueError(f"{key} has {len(value):,} entries", where=key, hint=f"at most {limit:,} are allowed")
    return tuple(value)


def mapping(value: object, key: str) -> dict[str, Any]:
    """A mapping with text keys.

    Raises:
        InvalidValueError: another type.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidValueError(f"{key} is {shown(value)}", where=key, hint="give a mapping of keys to values")
    return dict(value)
