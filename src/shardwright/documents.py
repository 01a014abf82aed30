"""Reading and writing the documents users hand over: JSON and YAML, never executed, always bounded.

Every reader turns whatever is wrong with a file into one of our errors with the place: too large, not
text, not JSON or YAML, a key given twice, NaN or Infinity, nested too deeply. `validate` checks a
document against a pydantic record and names the line of the offending key and the nearest right word.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError

if TYPE_CHECKING:
    import pydantic

CONFIG_LIMIT_BYTES = 8 * 2**20
RESULT_LIMIT_BYTES = 256 * 2**20
YAML_LIMIT_CHARACTERS = 2 * 2**20  # read at roughly a second per 12,000 lines
MAX_DEPTH = 64
MAX_INTEGER = 2**63 - 1
BYTE_ORDER_MARK = "\ufeff"

KeyPath = tuple[str | int, ...]

_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_START_OF: Mapping[str, tuple[str | int, ...]] = {"{": ("",), "[": (0,)}
_SURROGATE = re.compile("[\ud800-\udfff]")

RecordT = TypeVar("RecordT", bound="pydantic.BaseModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed document and where it came from.

    Attributes:
        data: the top-level mapping.
        source: the path as given, or a name for text that came from elsewhere.
        text: the text it was parsed from (to find the line of a key).
        lines: the line of every key and list item by its path, where the parser knows it already.
    """

    data: dict[str, Any]
    source: str
    text: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False, compare=False)

    def place(self, *keys: str | int) -> str:
        """``source:line: a.b.c`` for a key path.

        The line is that of the deepest part of the path that the document has; it is left out where the
        document has none of it.
        """
        if not keys:
            return self.source
        lines = self.lines or json_lines(self.text)
        line = next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), None)
        start = self.source if line is None else f"{self.source}:{line}"
        return f"{start}: {'.'.join(_printable(str(k)) for k in keys)}"


def read_text(path: Path, *, limit_bytes: int = CONFIG_LIMIT_BYTES) -> str:
    """The text of a file.

    Raises:
        DamagedFileError: it does not exist, is no file, is empty, larger than the limit, or not UTF-8.
    """
    try:
        if not path.is_file():
            raise DamagedFileError(
                f"cannot read {path}: {_no_file(path)}", where=str(path), hint="give the path of an existing file"
            )
        size = path.stat().st_size
        if size > limit_bytes:
            raise _too_large(str(path), size, limit_bytes)
        with path.open("rb") as file:  # never more than the limit, whatever happened to the file since
            raw = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"cannot read {path}: {error}", where=str(path)) from error
    if len(raw) > limit_bytes:
        raise _too_large(str(path), len(raw), limit_bytes)
    return _decoded(raw, str(path))


def parse_json(text: str, source: str) -> Document:
    """Parses a JSON object.

    Raises:
        DamagedFileError: not JSON, nested too deeply, or not an object at the top.
        InvalidValueError: NaN, Infinity, a number out of range, or a key given twice.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _not_json(error, source) from error
    except RecursionError as error:
        raise DamagedFileError(f"{source} is nested too deeply", where=source) from error
    except _RepeatedKeyError as error:
        line = _line_of_repeated_key(text, error.key)
        where = source if line is None else f"{source}:{line}"
        message = f"{source}: the key {_printable(error.key)!r} is given twice"
        raise InvalidValueError(message, where=where, hint="keep one of them") from error
    except ShardwrightError as error:
        error.where = source
        raise
    except ValueError as error:  # integers of more than 4,300 digits
        message = f"{source} holds a number of more digits than can be read"
        raise DamagedFileError(message, where=source, hint="write a number that can be meant") from error
    return _checked(data, Document(data={}, source=source, text=text))


def parse_yaml(text: str, source: str) -> Document:
    """Parses a YAML 1.2 mapping, without tags and without aliases.

    Raises:
        DamagedFileError: not YAML, too large, nested too deeply, tagged, aliased, or not a mapping at the top.
        InvalidValueError: not-a-number values, a number out of range, or a key given twice.
    """
    from shardwright.yaml_reader import read_yaml

    text = text.removeprefix(BYTE_ORDER_MARK)
    if len(text) > YAML_LIMIT_CHARACTERS:
        raise _too_large(source, len(text), YAML_LIMIT_CHARACTERS)
    data, lines = read_yaml(text, source, max_depth=MAX_DEPTH)
    return _checked(data, Document(data={}, source=source, text=text, lines=lines))


def read_document(path: Path, *, limit_bytes: int = CONFIG_LIMIT_BYTES) -> Document:
    """Reads a JSON (``.json``) or YAML (any other suffix) document whose top level is a mapping."""
    text = read_text(path, limit_bytes=limit_bytes)
    parse = parse_json if path.suffix.lower() == ".json" else parse_yaml
    return parse(text, str(path))


def validate(record: type[RecordT], document: Document) -> RecordT:
    """A document as a pydantic record.

    Raises:
        UnknownNameError: a key that the record does not know (nearest right key offered).
        InvalidValueError: a value of the wrong type or outside its range, or a key missing.
    """
    import pydantic

    try:
        return record.model_validate(document.data)
    except pydantic.ValidationError as error:
        _explain(error, record, document)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no blanks: the form digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """The sha256 of the canonical JSON of a value, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def rounded(value: Any, digits: int = 12) -> Any:
    """The same structure with every float rounded to a number of significant digits.

    Tuples become lists, numpy scalars and arrays become plain numbers and lists, minus zero becomes zero.
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") + 0.0
    if isinstance(value, (int, str)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v, digits) for v in value]
    return rounded(value.tolist(), digits) if hasattr(value, "tolist") else value


def yaml_text(value: Mapping[str, Any], *, compact: bool = False) -> str:
    """A mapping as YAML text, keys in their order; `parse_yaml` reads it back as the same values.

    Args:
        value: what to write.
        compact: innermost lists and mappings on one line; otherwise all in block style.
    """
    from shardwright.yaml_reader import write_yaml

    return write_yaml(value, compact=compact)


def json_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every key and list item of a JSON text by its path; of a damaged text, what was found."""
    return dict(_json_places(text))


def _json_places(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yields (path, line) of every key and list item in their order, a repeated key each time."""
    path: list[str | int] = []  # per open bracket the key or the index the walk is at
    name, name_line, line, seen = "", 1, 1, 0
    for token in _JSON_TOKEN.finditer(text):
        mark = token.group()
        line, seen = line + text.count("\n", seen, token.start()), token.start()
        here = path[-1] if path else None
        if mark in "}]":
            del path[-1:]
        elif mark == ",":
            path[-1:] = [here + 1] if isinstance(here, int) else path[-1:]
        elif mark == ":":
            path[-1:] = [name]
            yield tuple(path), name_line
        else:
            if isinstance(here, int):
                yield tuple(path), line
            name, name_line = _unquoted(mark), line
            path += _START_OF.get(mark, ())


def _unquoted(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token


def _line_of_repeated_key(text: str, key: str) -> int | None:
    seen: set[KeyPath] = set()
    for path, line in _json_places(text):
        if path in seen and path[-1] == key:
            return line
        seen.add(path)
    return None


def _no_file(path: Path) -> str:
    if path.is_dir():
        return "it is a folder"
    if path.is_symlink() and not path.exists():
        return "it is a link that leads to no file"
    return "it is no regular file" if path.exists() else "no such file"


def _not_json(error: json.JSONDecodeError, source: str) -> DamagedFileError:
    """Where a text ceases to be JSON, and what is mostly the matter: it ends early, or is another dialect."""
    reason = error.msg.removesuffix(" at").removesuffix(" starting")
    early = error.pos >= len(error.doc.rstrip()) or reason == "Unterminated string"
    dialect = "JSON takes double quotes, no comments, and no comma before a closing bracket"
    return DamagedFileError(
        f"{source} is not JSON: {reason}",
        where=f"{source}:{error.lineno}:{error.colno}",
        hint="was it written to the end?" if early else dialect,
    )


def _too_large(source: str, size: int, limit: int) -> DamagedFileError:
    return DamagedFileError(
        f"{source} has {size / 1e6:.1f} MB; at most {limit / 1e6:.1f} MB are read",
        where=source,
        hint="is this the right file? configuration files have a few kB",
    )


def _decoded(raw: bytes, source: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = f"byte {error.start} cannot be decoded; save the file as UTF-8"
        raise DamagedFileError(f"{source} is not UTF-8 text", where=source, hint=hint) from error
    if not text.strip():
        raise DamagedFileError(f"{source} is empty", where=source, hint="was it written to the end?")
    return text


def _checked(data: object, empty: Document) -> Document:
    if not isinstance(data, dict):
        raise DamagedFileError(f"{empty.source} holds {_kind(data)}, not a mapping of keys to values", where=empty.source)
    found = _first_unusable(data, 0)
    if found:
        path, error = found
        error.where = empty.place(*path)
        raise error
    return replace(empty, data=data)


def _first_unusable(value: object, depth: int) -> tuple[KeyPath, ShardwrightError] | None:
    if not isinstance(value, (dict, list)):
        reason = _unusable(value)
        return ((), InvalidValueError(reason, hint="write a finite number or plain text")) if reason else None
    if depth >= MAX_DEPTH:
        return (), DamagedFileError(f"the file is nested more than {MAX_DEPTH} levels deep")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        found = _first_unusable(item, depth + 1)
        if found:
            return (key, *found[0]), found[1]
        if isinstance(key, str) and _unusable(key):
            return (key,), InvalidValueError(str(_unusable(key)), hint="write a plain key")
    return None


def _unusable(value: object) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"the file holds {value}, which is no finite number"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return f"the file holds an integer beyond {MAX_INTEGER}"
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return "the file holds half of a surrogate pair, which is no text"
    return None


class _RepeatedKeyError(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(key)
            seen.add(key)
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidValueError(f"the file holds {name}, which is no number", hint="write a finite number")


def _printable(text: str, length: int = 80) -> str:
    shown = text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode("ascii")
    return shown if len(shown) <= length else shown[: length - 3] + "..."


def _kind(value: object) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def _explain(error: pydantic.ValidationError, record: type[pydantic.BaseModel], document: Document) -> NoReturn:
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    keys = _keys_of(first["loc"], document.data, ends_outside=first["type"] == "missing")
    where = document.place(*keys)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(record, keys[:-1])
        near = difflib.get_close_matches(str(keys[-1]), known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(sorted(known))
        raise UnknownNameError(f"unknown key {_printable(str(keys[-1]))!r}{more}", where=where, hint=hint) from error
    if first["type"] == "missing":
        message = f"the key {'.'.join(map(str, keys))!r} is missing{more}"
        raise InvalidValueError(message, where=document.place(*keys[:-1]), hint="add it") from error
    given = repr(first.get("input"))
    shown = given if len(given) <= 80 else given[:77] + "..."
    raise InvalidValueError(f"{shown}: {first['msg']}{more}", where=where) from error


def _keys_of(loc: tuple[str | int, ...], data: object, *, ends_outside: bool) -> KeyPath:
    """The keys among the parts of pydantic's location; the others name branches of unions and validators."""
    keys: list[str | int] = []
    for number, part in enumerate(loc):
        inside = (
            part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            keys.append(part)
            data = data[part]  # type: ignore[index]
        elif ends_outside and number == len(loc) - 1:
            keys.append(part)
    return tuple(keys)


def _fields_at(record: type[pydantic.BaseModel], keys: tuple[str | int, ...]) -> list[str]:
    """Names of the fields of the record nested at `keys` (best effort: the outer record's where it is a union)."""
    import pydantic

    current = record
    for key in (k for k in keys if isinstance(k, str)):
        field = current.model_fields.get(key)
        found = [t for t in _record_types(field.annotation if field else None) if issubclass(t, pydantic.BaseModel)]
        if not found:
            break
        current = found[0]
    return [f.alias or name for name, f in current.model_fields.items()]


def _record_types(annotation: object) -> list[type]:
    import typing

    if isinstance(annotation, type):
        return [annotation]
    return [t for part in typing.get_args(annotation) for t in _record_types(part)]
