"""Whole-number arithmetic as bash and configuration files write it, evaluated here and nowhere else.

    arithmetic(text, look_up)   + - * / % ** ( ) comparisons && || ! ?: over whole numbers and names
    numbers(text)               lists of numbers as Megatron takes them: `[0]*3+[1]*58`

Precedence climbing over a fixed table; no name but those `look_up` knows means anything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from shardwright.errors import InvalidValueError

MAX_NUMBER = 2**63 - 1
MAX_TEXT = 4096
MAX_DEPTH = 60
MAX_ITEMS = 100_000
_TOKEN = re.compile(r"\s*([0-9]+|[A-Za-z_][A-Za-z0-9_]*|\*\*|<=|>=|==|!=|&&|\|\||[-+*/%()<>!?:])")


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise InvalidValueError("a division by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b < 0 or (abs(a) > 1 and b > 63):
        raise InvalidValueError(f"the power {a}**{b}")
    return int(a**b)


_BINARY: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: a != 0 or b != 0),
    "&&": (2, lambda a, b: a != 0 and b != 0),
    "==": (3, operator.eq),
    "!=": (3, operator.ne),
    "<": (4, operator.lt),
    ">": (4, operator.gt),
    "<=": (4, operator.le),
    ">=": (4, operator.ge),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    "/": (6, _divided),
    "%": (6, lambda a, b: a - b * _divided(a, b)),
    "**": (8, _power),
}


def arithmetic(text: str, look_up: Callable[[str], str | None]) -> int:
    """The value of an expression.

    Args:
        text: the expression.
        look_up: the text of a name, itself an expression; None for an unknown one.

    Raises:
        InvalidValueError: no such expression, an unknown name, or a number beyond 63 bits.
    """
    return _evaluated(text, look_up, 0)


def _evaluated(text: str, look_up: Callable[[str], str | None], depth: int) -> int:
    if len(text) > MAX_TEXT or depth > MAX_DEPTH:
        raise InvalidValueError("an expression without end")
    reader = _Reader(text, look_up, depth)
    value = reader.choice()
    if reader.at < len(reader.tokens):
        raise InvalidValueError(f"{reader.tokens[reader.at]!r} in an expression")
    return value


class _Reader:
    def __init__(self, text: str, look_up: Callable[[str], str | None], depth: int) -> None:
        self.look_up, self.depth, self.at = look_up, depth, 0
        self.tokens: list[str] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise InvalidValueError(f"{text[at:].strip()[:20]!r} in an expression")
            self.tokens.append(found[1])
            at = found.end()

    def choice(self) -> int:
        """`a ? b : c`, or what stands alone."""
        value = self._binary(0)
        if self._next() != "?":
            return value
        self.at += 1
        first = self.choice()
        self._expect(":")
        second = self.choice()
        return first if value else second

    def _binary(self, level: int) -> int:
        value = self._unary()
        while (found := _BINARY.get(self._next())) is not None and found[0] > level:
            self.at += 1
            right = found[0] == 8
            value = _bounded(int(found[1](value, self._binary(found[0] - right))))
        return value

    def _unary(self) -> int:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidValueError("an expression without end")
        token = self._next()
        self.at += 1
        if token in {"-", "+", "!"}:
            value = self._unary()
            value = -value if token == "-" else int(value == 0) if token == "!" else value
        elif token == "(":
            value = self.choice()
            self._expect(")")
        else:
            value = self._atom(token)
        self.depth -= 1
        return value

    def _atom(self, token: str) -> int:
        if token.isdecimal():
            if len(token) > 19:
                raise InvalidValueError(f"the number {token[:20]}...")
            return _bounded(int(token, 8) if token[0] == "0" and token.strip("01234567") == "" else int(token))
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise InvalidValueError(f"{token!r} where a number should be" if token else "an expression that ends too early")
        found = self.look_up(token)
        if found is None:
            raise InvalidValueError(f"{token} is not set in the file")
        return _evaluated(found, self.look_up, self.depth + 1) if found.strip() else 0

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise InvalidValueError(f"{token!r} is missing in an expression")
        self.at += 1

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""


def _bounded(value: int) -> int:
    if abs(value) > MAX_NUMBER:
        raise InvalidValueError("a number beyond 63 bits")
    return value


def numbers(text: str) -> list[int]:
    """The numbers of `[0]*3+[1]*58`, of `([0]*3+[1]*58)`, or of a single number.

    Raises:
        InvalidValueError: another expression, or a list without end.
    """
    made: list[int] = []
    plain = text.replace(" ", "")
    plain = plain[1:-1] if plain.startswith("(") and plain.endswith(")") else plain
    for part in plain.split("+"):
        found = re.fullmatch(r"\[([0-9,]*)\](?:\*([0-9]{1,6}))?|([0-9]{1,18})", part)
        if found is None:
            raise InvalidValueError(f"{text!r} is no list of numbers", hint="write it as [0]*3+[1]*58")
        if found[3] is not None:
            made.append(int(found[3]))
            continue
        items = [int(item) for item in found[1].split(",") if item]
        if len(items) * int(found[2] or 1) > MAX_ITEMS:
            raise InvalidValueError(f"{text!r} is a list without end", hint=f"at most {MAX_ITEMS:,} numbers")
        made += items * int(found[2] or 1)
    return made
