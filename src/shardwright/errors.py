"""Every error shardwright raises on purpose, with its exit code.

    ShardwrightError                 exit 2
    ├── UnknownNameError             a preset, key or word that does not exist (nearest right word offered)
    ├── InvalidValueError            a value outside what is allowed
    ├── ConflictError                two statements that cannot both hold
    ├── DamagedFileError             a file that cannot be read as what it should be
    ├── UnsupportedError             understood, but outside what shardwright models
    └── LimitReachedError            stopped at the limit with nothing found (exit 3)

A message says what was given, `hint` what is allowed or what to do next, `where` the place (option, or
file:line: key). "Nothing fits" is an answer, not an error: it is a result whose exit code is 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class ShardwrightError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        message: what was given and why it cannot be used.
        where: the place, such as ``--cluster`` or ``config.json:12: hidden_size``; empty if there is none.
        hint: what is allowed, or what to do next; empty if the message says it already.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def to_dict(self) -> dict[str, str]:
        """The four fields that ``--format json`` prints on the last line of standard error."""
        return {"code": self.code, "message": self.message, "where": self.where, "hint": self.hint}


class UnknownNameError(ShardwrightError):
    """A preset, key or word that does not exist."""

    code = "unknown-name"


class InvalidValueError(ShardwrightError):
    """A value outside what is allowed."""

    code = "invalid-value"


class ConflictError(ShardwrightError):
    """Two statements that cannot both hold."""

    code = "conflict"


class DamagedFileError(ShardwrightError):
    """A file that cannot be read as what it should be."""

    code = "damaged-file"


class UnsupportedError(ShardwrightError):
    """Understood, but outside what shardwright models."""

    code = "unsupported"


class LimitReachedError(ShardwrightError):
    """Stopped at the limit with nothing found."""

    code = "limit-reached"
    exit_code = 3


def unknown_name(kind: str, given: str, known: Iterable[str], *, where: str = "") -> UnknownNameError:
    """An error that names the nearest right words.

    Args:
        kind: what was looked up, such as ``"model preset"``.
        given: the word as the user wrote it.
        known: all right words.
        where: the place the word stands at.
    """
    words = sorted(set(known))
    near = _nearest(given.lower(), words)[:3]
    shown = given if len(given) <= 60 else given[:57] + "..."
    if near:
        hint = "did you mean " + " or ".join(near) + "?"
    else:
        hint = "known: " + ", ".join(words[:24]) + (", ..." if len(words) > 24 else "")
    return UnknownNameError(f"unknown {kind} {shown!r}", where=where, hint=hint)


def _nearest(given: str, words: list[str]) -> list[str]:
    """The words that begin with the given one, then those that hold it, shortest first; else those spelled alike."""
    begun = [word for word in words if given and word.startswith(given)]
    holding = sorted((word for word in words if len(given) > 2 and given in word), key=lambda word: (len(word), word))
    alike = [] if begun else difflib.get_close_matches(given, words, n=3, cutoff=0.52)  # at half, words have little in common
    return list(dict.fromkeys((*begun[:2], *holding, *begun, *alike)))
