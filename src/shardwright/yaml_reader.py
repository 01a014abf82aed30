"""YAML 1.2 text to plain values in one pass, with the line of every key.

The scanner and parser are ruamel.yaml's; its composer and constructor are left out. They would build
a second tree, follow aliases (nine lines can stand for gigabytes), honour tags, and read dates. Here

    events -> read_yaml -> values of type dict, list, str, int, float, bool, None

and a plain scalar follows the core schema of YAML 1.2.2, section 10.3.2 (`_scalar`), plus ``_`` between
digits: ``5e-6`` is a number, ``no`` and ``2026-01-31`` are text. What has no place in a configuration
is refused with its line: aliases, anchors, tags, more than one document, keys given twice.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from ruamel.yaml.representer import SafeRepresenter

from shardwright.errors import DamagedFileError, InvalidValueError

Path = tuple[str | int, ...]

_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_PREFIXED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_STARTS_OTHER_THAN_TEXT = frozenset("0123456789+-.~nNtTfF")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What the walk carries along: the name of the text, the lines found so far, the depth allowed."""

    source: str
    max_depth: int
    lines: dict[Path, int] = field(default_factory=dict)

    def of(self, event: Event) -> str:
        return f"{self.source}:{_line(event)}"


def read_yaml(text: str, source: str, *, max_depth: int) -> tuple[object, dict[Path, int]]:
    """The value of a YAML text and the line (from 1) of every key and list item by its path.

    Raises:
        DamagedFileError: not YAML, nested more deeply than `max_depth`, tagged, anchored, or several documents.
        InvalidValueError: a number that is not finite, or a key given twice.
    """
    place = _Place(source=source, max_depth=max_depth)
    try:
        return _only_document(_events(text), place), place.lines
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DamagedFileError(f"{source} is not YAML: {error.problem}", where=f"{source}:{line}") from error
    except (YAMLError, ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DamagedFileError(f"{source} is not YAML: {reason}", where=source) from error


class _Representer(SafeRepresenter):
    """Plain values, text of several lines line by line."""

    def represent_str(self, data: str) -> Any:
        """A scalar: a block where every character of its lines can be seen, else one that the emitter quotes."""
        block = "\n" in data and all(line.isprintable() for line in data.split("\n"))
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if block else None)


_Representer.add_representer(str, _Representer.represent_str)


def write_yaml(value: Mapping[str, Any], *, compact: bool = False) -> str:
    """A mapping as YAML text, keys in their order; block style, or with innermost lists and mappings on one line.

    Text of several lines is a literal block where YAML can hold it as one.
    """
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Representer
    writer.default_flow_style = None if compact else False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.allow_unicode = True
    writer.width = 120
    stream = io.StringIO()
    writer.dump(value, stream)
    return stream.getvalue()


def _events(text: str) -> Iterator[Event]:
    reader = YAML(typ="safe", pure=True)
    events: Iterator[Event] = reader.parse(io.StringIO(text))
    return events


def _only_document(events: Iterator[Event], place: _Place) -> object:
    found: list[object] = []
    for event in events:
        if isinstance(event, DocumentStartEvent):
            _refuse_second(event, found, place)
            found.append(_value(next(events), events, (), place))
        elif not isinstance(event, (StreamStartEvent, StreamEndEvent)):
            continue  # the end of the document
    return found[0] if found else None


def _refuse_second(event: DocumentStartEvent, found: list[object], place: _Place) -> None:
    if found:
        raise DamagedFileError(f"{place.source} holds more than one document", where=place.of(event), hint="keep one `---`")
    if event.version not in (None, (1, 2)):
        raise DamagedFileError(
            f"{place.source} asks for another YAML than 1.2", where=place.of(event), hint="drop the %YAML line"
        )


def _value(event: Event, events: Iterator[Event], path: Path, place: _Place) -> object:
    _refuse_reference(event, place)
    place.lines[path] = _line(event)
    if isinstance(event, ScalarEvent):
        return _scalar(event, place)
    if len(path) >= place.max_depth:
        raise DamagedFileError(f"{place.source} is nested more than {place.max_depth} levels deep", where=place.of(event))
    if isinstance(event, MappingStartEvent):
        return _mapping(events, path, place)
    return _sequence(events, path, place)


def _mapping(events: Iterator[Event], path: Path, place: _Place) -> dict[str, object]:
    made: dict[str, object] = {}
    for event in events:
        if isinstance(event, MappingEndEvent):
            break
        key = _key(event, place)
        if key in made:
            first = place.lines[(*path, key)]
            hint = f"it stands on line {first} already; keep one of them"
            raise InvalidValueError(f"{place.source}: the key {key!r} is given twice", where=place.of(event), hint=hint)
        made[key] = _value(next(events), events, (*path, key), place)
        place.lines[(*path, key)] = _line(event)
    return made


def _sequence(events: Iterator[Event], path: Path, place: _Place) -> list[object]:
    made: list[object] = []
    for event in events:
        if isinstance(event, SequenceEndEvent):
            break
        made.append(_value(event, events, (*path, len(made)), place))
    return made


def _key(event: Event, place: _Place) -> str:
    _refuse_reference(event, place)
    key = _scalar(event, place) if isinstance(event, ScalarEvent) else None
    if not isinstance(key, str):
        shown = event.value if isinstance(event, ScalarEvent) else "a list or mapping"
        raise DamagedFileError(
            f"{place.source}: the key {shown!r} is no text", where=place.of(event), hint="put the key in quotes"
        )
    return key


def _refuse_reference(event: Any, place: _Place) -> None:
    if isinstance(event, AliasEvent):
        raise DamagedFileError(f"{place.source} uses a YAML alias", where=place.of(event), hint="write the value out")
    if event.anchor is not None:
        raise DamagedFileError(
            f"{place.source} uses a YAML anchor", where=place.of(event), hint="drop it and write the value out"
        )
    if event.ctag is not None:
        raise DamagedFileError(
            f"{place.source} uses the YAML tag {str(event.ctag)!r}", where=place.of(event), hint="drop the tag"
        )


def _scalar(event: ScalarEvent, place: _Place) -> str | int | float | bool | None:
    text: str = event.value
    if not event.implicit[0] or (text and text[0] not in _STARTS_OTHER_THAN_TEXT):
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        return _number(text)
    except ValueError as error:
        message = f"{place.source} holds {_shortened(text)}, which is no number that can be used"
        raise InvalidValueError(message, where=place.of(event), hint="write a finite number") from error


def _number(text: str) -> str | int | float:
    """The number a plain scalar stands for, or the text itself.

    Raises:
        ValueError: infinite, not a number, or too many digits.
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    if _PREFIXED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(text)
    return text


def _shortened(text: str, length: int = 40) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}... ({len(text)} characters)"


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1
