"""Host names in short, the notation of Slurm's `scontrol show hostnames`.

    node[001-003,007],login    ->  node001 node002 node003 node007 login
    r[1-2]n[1-2]               ->  r1n1 r1n2 r2n1 r2n2

A number that starts with 0 fixes the width. `expand` reads, `compress` writes; names keep their order, so that
`expand(compress(names)) == names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from shardwright.errors import InvalidValueError

MAX_NAMES = 1_000_000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)|(,)|(.)", re.DOTALL)
_RANGE = re.compile(r"\s*([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?\s*")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)


def expand(text: str, *, place: str = "hosts") -> tuple[str, ...]:
    """The names of a host list, in its order.

    Raises:
        InvalidValueError: brackets that do not close or nest, a range that runs backwards, a name with characters that host
            names do not have, or more than a million names.
    """
    names: list[str] = []
    parts: list[list[str]] = []
    for match in _PIECE.finditer(text.strip()):
        inside, plain, comma, wrong = match.groups()
        if wrong is not None:
            raise _fault(text, "brackets do not match", place)
        if comma:
            names += _combined(parts, text, place, room=MAX_NAMES - len(names))
            parts = []
        else:
            parts.append([plain] if inside is None else _numbers(inside, text, place))
    return tuple(names + _combined(parts, text, place, room=MAX_NAMES - len(names)))


def compress(names: Sequence[str]) -> str:
    """A host list of the names in their order; runs of counted names become ranges."""
    return ",".join(_blocks(names))


def _combined(parts: list[list[str]], text: str, place: str, *, room: int) -> list[str]:
    total = 1
    for part in parts:
        total *= len(part)
    if total > room:
        raise _fault(text, f"more than {MAX_NAMES:,} names", place)
    names = ["".join(chosen).strip() for chosen in product(*parts)] if parts else [""]
    for name in names:
        if not NAME.fullmatch(name):
            raise _fault(text, f"{name[:40]!r} is no host name", place)
    return names


def _numbers(inside: str, text: str, place: str) -> list[str]:
    made: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise _fault(text, f"{part[:40]!r} is no number or range", place)
        first, last = match.group(1), match.group(2) or match.group(1)
        low, high = int(first), int(last)
        if high < low:
            raise _fault(text, f"the range {part.strip()} runs backwards", place)
        if high - low >= MAX_NAMES - len(made):
            raise _fault(text, f"more than {MAX_NAMES:,} names", place)
        width = _width(first)
        made += [str(number).zfill(width) for number in range(low, high + 1)]
    return made


def _width(digits: str) -> int:
    return len(digits) if digits.startswith("0") else 0


def _fault(text: str, reason: str, place: str) -> InvalidValueError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return InvalidValueError(f"{shown!r} is no list of hosts: {reason}", where=place, hint="write node[001-016] or a,b,c")


def _blocks(names: Sequence[str]) -> Iterator[str]:
    """The names, neighbours that share all but the last number put into one pair of brackets."""
    around: tuple[str, str] | None = None
    runs: list[tuple[str, str]] = []
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        key = (match.group(1), match.group(3)) if match else (name, "")
        digits = match.group(2) if match else ""
        if around == key and digits and runs:
            _grow(runs, digits)
            continue
        if around is not None:
            yield _written(around, runs)
        around, runs = key, [(digits, digits)] if digits else []
    if around is not None:
        yield _written(around, runs)


def _grow(runs: list[tuple[str, str]], digits: str) -> None:
    first, last = runs[-1]
    if digits == str(int(last) + 1).zfill(_width(first)):
        runs[-1] = (first, digits)
    else:
        runs.append((digits, digits))


def _written(around: tuple[str, str], runs: list[tuple[str, str]]) -> str:
    start, end = around
    if not runs:
        return start
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return f"{start}{runs[0][0]}{end}"
    inside = ",".join(first if first == last else f"{first}-{last}" for first, last in runs)
    return f"{start}[{inside}]{end}"
