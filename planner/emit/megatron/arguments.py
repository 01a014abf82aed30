"""An argument list in the making: options in order, each said once."""

from __future__ import annotations

from shardwright.planner.emit.base import Word, literal


def option(name: str, *values: object) -> tuple[Word, ...]:
    """`--name value …`."""
    return literal(f"--{name}", *values)


def flag(name: str, wanted: bool) -> tuple[Word, ...]:
    """`--name` where wanted."""
    return literal(f"--{name}") if wanted else ()
