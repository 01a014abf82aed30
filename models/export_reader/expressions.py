"""Sizes as a serialised program writes them: whole numbers, or expressions of symbols.

    Mul(Integer(32), Symbol('s23', positive=True, integer=True))       sympy's `srepr`, as torch serialises it

`evaluate` reads such a text into Python's syntax tree and computes it with whole numbers; nothing is ever executed. Symbols
take the sizes that a user binds.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping

MAX_TEXT = 4000
MAX_VALUE = 1 << 60


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= 16 or abs(base) >= 1 << 32:
        raise ValueError
    return int(base**exponent)


_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "Integer": int,
    "Add": lambda *v: sum(v),
    "Mul": lambda *v: math.prod(v),
    "Max": max,
    "Min": min,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, b, c: a // b % c,
    "Pow": _power,
}


class UnboundSymbolError(Exception):
    """A symbol whose size nobody gave."""


def evaluate(text: str, bound: Mapping[str, int]) -> int | None:
    """The whole number that an expression stands for, None where it is of another form.

    Raises:
        UnboundSymbolError: a symbol that is not bound (its name).
    """
    if len(text) > MAX_TEXT:
        return None
    try:
        value = _value(ast.parse(text, mode="eval").body, bound)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError, KeyError, MemoryError):
        return None
    return value if abs(value) <= MAX_VALUE else None


def _value(node: ast.expr, bound: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, bound)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "Symbol":
            return _symbol(node, bound)
        return _FUNCTIONS[node.func.id](*(_value(argument, bound) for argument in node.args))
    raise ValueError


def _symbol(node: ast.Call, bound: Mapping[str, int]) -> int:
    first = node.args[0]
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        raise ValueError
    if first.value not in bound:
        raise UnboundSymbolError(first.value)
    return bound[first.value]
