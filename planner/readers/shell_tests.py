"""Tests of bash, decided where texts and numbers decide them.

    holds(words)           `[ ... ]`, `[[ ... ]]`, `test ...`, `((...))`, `! ...`: True, False, or None where running would tell
    matches(text, pattern) `case` patterns and the right side of `==` in `[[ ]]`: `*` and `?`

Files (`-f`), commands and everything unknown give None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.errors import ShardwrightError
from shardwright.planner.readers.arithmetic import arithmetic
from shardwright.planner.readers.shell_tokens import Token
from shardwright.planner.readers.shell_values import Values

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_CLOSING = {"[": "]", "[[": "]]"}


def holds(words: Sequence[Token], values: Values) -> bool | None:
    """Whether a test succeeds; None where it cannot be told."""
    first = words[0].text
    if first == "!":
        inner = holds(words[1:], values) if len(words) > 1 else None
        return None if inner is None else not inner
    if first.startswith("(("):
        return _arithmetic(first[2:-2], words[0].line, values)
    if first not in {"[", "[[", "test"}:
        return None
    inside = [word for word in words[1:] if word.text != _CLOSING.get(first)]
    return _either(inside, values)


def _either(words: Sequence[Token], values: Values) -> bool | None:
    """Alternatives joined by `||` or `-o`, each of parts joined by `&&` or `-a`."""
    results = [_both(part, values) for part in _parted(words, ("||", "-o"))]
    return True if True in results else None if None in results else False


def _both(words: Sequence[Token], values: Values) -> bool | None:
    results = [_simple(part, values) for part in _parted(words, ("&&", "-a"))]
    return False if False in results else None if None in results else True


def _parted(words: Sequence[Token], marks: tuple[str, ...]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for word in words:
        if word.text in marks:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _simple(words: Sequence[Token], values: Values) -> bool | None:
    if words and words[0].text == "!":
        inner = _simple(words[1:], values)
        return None if inner is None else not inner
    texts = [values.joined(word.text, word.line) for word in words]
    if len(texts) == 2 and texts[0] in {"-z", "-n"}:
        return _empty(texts[1], values, wanted=texts[0] == "-z")
    if any(values.unknowns_in(text) for text in texts):
        return None
    return texts[0] != "" if len(texts) == 1 else _compared(*texts) if len(texts) == 3 else None


def _compared(left: str, operator: str, right: str) -> bool | None:
    if operator in {"=", "==", "!="}:
        return matches(left, right) == (operator != "!=")
    if operator in _NUMBERS and all(re.fullmatch(r"-?[0-9]{1,18}", text.strip()) for text in (left, right)):
        return bool(arithmetic(f"({left.strip()}){_NUMBERS[operator]}({right.strip()})", lambda name: None))
    return None


def _empty(text: str, values: Values, *, wanted: bool) -> bool | None:
    """A variable nothing sets is empty, if the environment does not set it either: that is taken to be so."""
    unknown = values.unknowns_in(text)
    if unknown and not all(found.name for found in unknown):
        return None
    return (not values.known_part(text)) == wanted


def _arithmetic(text: str, line: int, values: Values) -> bool | None:
    inner = values.joined(text, line)
    if values.unknowns_in(inner):
        return None
    try:
        return arithmetic(inner, lambda name: next(iter(values.value(name) or ()), None)) != 0
    except ShardwrightError:
        return None


def matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern of `*` and `?`."""
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None
