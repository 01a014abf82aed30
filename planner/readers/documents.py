"""TOML and JSON documents as settings by dotted name, each with its line.

read_toml(path)   read_json(path)   -> StatedSettings: `parallelism.tensor_parallel_degree` -> value and place
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwright.documents import MAX_DEPTH, parse_json, read_text
from shardwright.errors import DamagedFileError
from shardwright.planner.readers.stated import Stated, StatedSettings

_SECTION = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?")
_KEY = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


def read_toml(path: Path) -> StatedSettings:
    """The values of a TOML document.

    Raises:
        DamagedFileError: it cannot be read, is no TOML, or is nested too deeply.
    """
    text = read_text(path)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{path.name}:{line[1]}" if line else path.name
        raise DamagedFileError(f"{path.name} is not TOML: {str(error)[:120]}", where=where) from error
    return _settings(path.name, data, dict(_toml_places(text, path.name)))


def read_json(path: Path) -> StatedSettings:
    """The values of a JSON document."""
    document = parse_json(read_text(path), path.name)
    places = {".".join(keys): document.place(*keys) for keys, _ in _leaves(document.data, (), 0)}
    return _settings(path.name, document.data, places)


def _settings(source: str, data: Mapping[str, Any], places: Mapping[str, str]) -> StatedSettings:
    stated = {}
    for keys, value in _leaves(data, (), 0):
        name = ".".join(keys)
        kept = (
            tuple(map(str, value)) if isinstance(value, list) and not any(isinstance(v, (list, dict)) for v in value) else value
        )
        stated[name] = Stated(value=kept, where=places.get(name, f"{source}: {name}"))
    return StatedSettings(source=source, stated=stated)


def _leaves(data: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Keys that hold no further mapping, with their path; an empty mapping counts as one."""
    if depth > MAX_DEPTH:
        raise DamagedFileError(f"the file is nested more than {MAX_DEPTH} levels deep", where=".".join(path[:3]))
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key), depth + 1)
        else:
            yield (*path, key), value


def _toml_places(text: str, source: str) -> Iterator[tuple[str, str]]:
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _SECTION.match(line), _KEY.match(line)
        if header:
            section = header[1].replace('"', "").replace("'", "") + "."
        elif key:
            yield section + key[1], f"{source}:{number}: {section}{key[1]}"
