"""Files of Megatron-LM arguments: a shell script, a list of arguments, YAML or JSON.

    read_megatron_file(path)   settings by name, the environment where the file sets one, the ranks it starts

A script is read, never run (`shell_walk`). A file of arguments alone is a script of one line. JSON holds a list of words or a
mapping; YAML a mapping, flat or nested: `num_layers`, `num-layers`, `--num-layers` and `model.num_layers` are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.documents import Document, parse_json, parse_yaml, read_text
from shardwright.errors import DamagedFileError, InvalidValueError
from shardwright.planner.readers.launches import slurm_variables, world_size
from shardwright.planner.readers.megatron_arguments import Arguments, read_arguments, read_mapping
from shardwright.planner.readers.shell_walk import Word, directives_of, read_script
from shardwright.planner.readers.stated import StatedSettings

_ENVIRONMENT = frozenset(("env_vars", "env", "environment", "environment_vars"))
LIMIT_BYTES = 2**20
"""Largest file that is read; scripts have a few kB."""

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_LAUNCH = {"devices": "gpus", "num_nodes": "nodes", "nproc_per_node": "gpus", "nnodes": "nodes", "gpus_per_node": "gpus"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronFile:
    """What a file says.

    Attributes:
        settings: arguments by the parser's own names.
        environment: variables it sets; None where it cannot set any.
        world_size: ranks it starts, if that can be told.
        program: the Python file it starts.
        warnings: what was not read.
    """

    settings: StatedSettings
    environment: Mapping[str, str] | None
    world_size: int | None
    program: str
    warnings: tuple[str, ...]


def read_megatron_file(path: Path, defined: Mapping[str, str] | None = None) -> MegatronFile:
    """What a file of arguments says.

    Args:
        path: the file.
        defined: shell variables to take as given.

    Raises:
        DamagedFileError: it cannot be read, or holds no arguments.
        InvalidValueError: a value that is none.
    """
    text = read_text(path, limit_bytes=LIMIT_BYTES)
    suffix, start = path.suffix.lower(), text.lstrip()[:1]
    if suffix in {".yaml", ".yml"}:
        return _checked(_mapping(parse_yaml(text, path.name)), path)
    if start == "[":
        return _checked(_list(text, path.name), path)
    if suffix == ".json" or start == "{":
        return _checked(_mapping(parse_json(text, path.name)), path)
    return _checked(_script(text, path.name, defined or {}), path)


def _checked(made: MegatronFile, path: Path) -> MegatronFile:
    if not made.settings.stated:
        hint = "give a script that starts pretrain_gpt.py, a list of its arguments, or YAML of them"
        found = f" ({'; '.join(made.warnings[:3])})" if made.warnings else ""
        raise DamagedFileError(f"{path.name} holds no Megatron-LM arguments{found}", where=str(path), hint=hint)
    return made


def _script(text: str, source: str, defined: Mapping[str, str]) -> MegatronFile:
    script = read_script(text, source, slurm_variables(directives_of(text)) | dict(defined))
    arguments = read_arguments(script.arguments, source)
    only_arguments = not script.program and not script.environment
    return MegatronFile(
        settings=arguments.settings,
        environment=None if only_arguments else script.environment,
        world_size=world_size(script.launcher, script.directives),
        program=script.program.rsplit("/", 1)[-1],
        warnings=(*script.notes, *arguments.warnings),
    )


def _list(text: str, source: str) -> MegatronFile:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{source} is no JSON list", where=source, hint='write ["--num-layers", "32"]') from error
    scalars = (str, int, float)
    if not isinstance(items, list) or not all(isinstance(item, scalars) and not isinstance(item, bool) for item in items):
        raise InvalidValueError(f"{source} is no list of words", where=source, hint='write ["--num-layers", "32"]')
    arguments = read_arguments([Word(text=str(item), line=1) for item in items], source)
    return _without_environment(arguments)


def _without_environment(arguments: Arguments) -> MegatronFile:
    return MegatronFile(settings=arguments.settings, environment=None, world_size=None, program="", warnings=arguments.warnings)


def _mapping(document: Document) -> MegatronFile:
    data: dict[str, Any] = {}
    places: dict[str, str] = {}
    environment: dict[str, str] = {}
    launch: dict[str, int] = {}
    for path, value in _leaves(document.data, ()):
        name = path[-1].rsplit(".", 1)[-1]
        if any(part.lower() in _ENVIRONMENT for part in path[:-1]):
            environment[name] = str(value)
        elif name in _LAUNCH and isinstance(value, int):
            launch[_LAUNCH[name]] = value
        elif not _NAME.fullmatch(name):
            data[".".join(path)] = value
            places[".".join(path)] = document.place(*path)
    arguments = read_mapping(data, document.source, places)
    return MegatronFile(
        settings=arguments.settings,
        environment=environment or None,
        world_size=launch["gpus"] * launch.get("nodes", 1) if "gpus" in launch else None,
        program="",
        warnings=arguments.warnings,
    )


def _leaves(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Keys that hold no further mapping, with their path."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
