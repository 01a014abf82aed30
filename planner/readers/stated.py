"""Settings as a file states them: each value with its place, and what of it cannot be told.

    Stated       one value        Settings   all of a file, asked for by name and kind

Whatever is wrong with a value is an error with its place; a value that only running a script could tell names the variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.planner.readers.shell_values import Unknown

Value = bool | int | float | str | tuple[str, ...] | None
MAX_WHOLE = 10**15
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One value of a file.

    Attributes:
        value: as the framework would take it.
        where: its place, such as `run.sh:12: --num-layers`.
        unknowns: parts of it that cannot be told without running the file.
    """

    value: Value
    where: str
    unknowns: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSettings:
    """All values of a file by the framework's own names for them."""

    source: str
    stated: Mapping[str, Stated] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.stated and self.stated[name].value is not None

    def values(self) -> dict[str, Value]:
        """Name -> value of everything that can be told."""
        return {name: one.value for name, one in self.stated.items() if not one.unknowns}

    def where(self, name: str) -> str:
        """The place of a value; the file where it is not stated."""
        return self.stated[name].where if name in self.stated else self.source

    def known(self, name: str) -> Value:
        """A value, or None where the file does not state it.

        Raises:
            InvalidValueError: it cannot be told without running the file.
        """
        one = self.stated.get(name)
        if one is None:
            return None
        if one.unknowns:
            raise untold(one)
        return one.value

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number of at least `least`; a default where the file does not state it."""
        value = self.known(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_WHOLE:
            hint = f"give a whole number of {least} or more"
            raise InvalidValueError(f"{_shown(value)} is no such number", where=self.where(name), hint=hint)
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of 1 or more."""
        made = []
        for word in self.words(name):
            if not _WHOLE.fullmatch(word) or int(word) < 1:
                hint = "give whole numbers of 1 or more"
                raise InvalidValueError(f"{_shown(word)} is no such number", where=self.where(name), hint=hint)
            made.append(int(word))
        return tuple(made)

    def required(self, name: str, hint: str) -> int:
        """A whole number the file must state."""
        value = self.whole(name)
        if value is None:
            raise InvalidValueError(f"{self.source} does not state {name}", where=self.source, hint=hint)
        return value

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.known(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidValueError(f"{_shown(value)} is no number", where=self.where(name), hint="give a number")
        return float(value)

    def share(self, name: str, default: float) -> float:
        """A fraction of a whole."""
        value = self.number(name, default)
        if not 0 <= value <= 1:
            raise InvalidValueError(f"{value:g} is no fraction", where=self.where(name), hint="give 0 to 1")
        return value

    def on(self, name: str, default: bool = False) -> bool:
        """A switch."""
        value = self.known(name)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in {"true", "false", "yes", "no"}:
            return value.lower() in {"true", "yes"}
        if not isinstance(value, (bool, int)):
            raise InvalidValueError(f"{_shown(value)} is no switch", where=self.where(name), hint="give true or false")
        return bool(value)

    def word(self, name: str, known: Sequence[str], default: str | None = None) -> str | None:
        """One of some words."""
        value = self.known(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            raise unknown_name(name.replace("_", " "), _shown(value), known, where=self.where(name))
        return value

    def text(self, name: str) -> str | None:
        """Any text."""
        value = self.known(name)
        return None if value is None else " ".join(value) if isinstance(value, tuple) else str(value)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words."""
        value = self.known(name)
        return () if value is None else value if isinstance(value, tuple) else (str(value),)


def untold(one: Stated) -> InvalidValueError:
    """The error of a value that cannot be told without running the file."""
    part = one.unknowns[0]
    hint = f"give its value by --define {part.name}=VALUE" if part.name else "write its value into the file"
    return InvalidValueError(f"{part.text} on line {part.line} is not known: {part.why}", where=one.where, hint=hint)


def typed(text: str) -> int | float | str:
    """A number where a text is one, else the text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _shown(value: Value) -> str:
    text = str(value) if not isinstance(value, str) else value
    return repr(text if len(text) <= 40 else text[:37] + "...").strip("'")
