"""An argument list in the making: options in order, each said once; and what it sets, for rules to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.emit.base import Word, literal
from shardwright.planner.readers.megatron_arguments import read_arguments
from shardwright.planner.readers.shell_walk import Word as Read


def option(name: str, *values: object) -> tuple[Word, ...]:
    """`--name value …`."""
    return literal(f"--{name}", *values)


def flag(name: str, wanted: bool) -> tuple[Word, ...]:
    """`--name` where wanted."""
    return literal(f"--{name}") if wanted else ()


def settings_of(words: Sequence[Word], environment: Mapping[str, str], world_size: int) -> dict[str, Any]:
    """What an argument list, started in an environment on so many ranks, sets, by the names of Megatron's parser.

    Raises:
        InvalidValueError: an option without its value.
    """
    read = read_arguments([Read(text=word.text, line=1) for word in words], "arguments.json")
    variables = {f"env.{name}": value for name, value in environment.items()}
    return read.settings.values() | variables | {"launch.world_size": world_size}


def texts_by_option(words: Sequence[Word]) -> dict[str, tuple[str, ...]]:
    """The values of each option of an argument list, by its name without dashes; a switch has none."""
    made: dict[str, tuple[str, ...]] = {}
    name = ""
    for text in (word.text for word in words):
        if text.startswith("--"):
            name = text.removeprefix("--")
            made[name] = ()
        else:
            made[name] = (*made[name], text)
    return made
