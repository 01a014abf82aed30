"""Reading and writing the documents users hand over: JSON and YAML, never executed, always bounded.

Every reader turns whatever is wrong with a file into one of our errors with the place: too large, not
text, not JSON or YAML, a key given twice, NaN or Infinity, nested too deeply. `validate` checks a
document against a pydantic record and names the line of the offending key and the nearest right word.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError

if TYPE_CHECKING:
    import pydantic

CONFIG_LIMIT_BYTES = 8 * 2**20
RESULT_LIMIT_BYTES = 256 * 2**20
MAX_DEPTH = 64

RecordT = TypeVar("RecordT", bound="pydantic.BaseModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed document and where it came from.

    Attributes:
        data: the top-level mapping.
        source: the path as given, or a name for text that came from elsewhere.
        text: the text it was parsed from (to find the line of a key).
    """

    data: dict[str, Any]
    source: str
    text: str

    def place(self, *keys: str | int) -> str:
        """``source:line: a.b.c`` for a key path; the line is left out where it cannot be found."""
        names = [str(k) for k in keys]
        position = 0
        for name in (k for k in keys if isinstance(k, str)):
            found = re.compile(rf"""(?m)(?:^|[\s{{,"'\-]){re.escape(name)}["']?\s*:""").search(self.text, position)
            if not found:
                return f"{self.source}: {'.'.join(names)}"
            position = found.end()
        if not names:
            return self.source
        return f"{self.source}:{self.text.count(chr(10), 0, position) + 1}: {'.'.join(names)}"


def read_text(path: Path, *, limit_bytes: int = CONFIG_LIMIT_BYTES) -> str:
    """The text of a file.

    Raises:
        DamagedFileError: it does not exist, is no file, is empty, larger than the limit, or not UTF-8.
    """
    try:
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "no such file"
            raise DamagedFileError(f"cannot read {path}: {kind}", where=str(path), hint="give the path of an existing file")
        size = path.stat().st_size
        if size > limit_bytes:
            raise DamagedFileError(
                f"{path} has {size / 1e6:.0f} MB; at most {limit_bytes / 1e6:.0f} MB are read",
                where=str(path),
                hint="is this the right file? configuration files have a few kB",
            )
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path} is not UTF-8 text", where=str(path), hint=f"byte {error.start} cannot be decoded") from error
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"cannot read {path}: {error}", where=str(path)) from error
    if not text.strip():
        raise DamagedFileError(f"{path} is empty", where=str(path))
    return text


def parse_json(text: str, source: str) -> Document:
    """Parses a JSON object.

    Raises:
        DamagedFileError: not JSON, nested too deeply, or not an object at the top.
        InvalidValueError: NaN, Infinity, or a key given twice.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise DamagedFileError(f"{source} is not JSON: {error.msg}", where=f"{source}:{error.lineno}:{error.colno}") from error
    except RecursionError as error:
        raise DamagedFileError(f"{source} is nested too deeply", where=source) from error
    except ShardwrightError as error:
        error.where = source
        raise
    except ValueError as error:  # integers of more than 4,300 digits
        raise DamagedFileError(f"{source}: {error}", where=source) from error
    return _checked(data, text, source)


def parse_yaml(text: str, source: str) -> Document:
    """Parses a YAML 1.2 mapping, without tags and without aliases.

    Raises:
        DamagedFileError: not YAML, nested too deeply, tagged, aliased, or not a mapping at the top.
        InvalidValueError: not-a-number values, or a key given twice.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import AliasEvent

    reader = YAML(typ="safe", pure=True)
    try:
        for event in reader.parse(io.StringIO(text)):
            if isinstance(event, AliasEvent):
                raise DamagedFileError(f"{source} uses a YAML alias", where=f"{source}:{event.start_mark.line + 1}", hint="write the value out")
        data = reader.load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidValueError(f"{source}: a key is given twice", where=f"{source}:{line}", hint="keep one of them") from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DamagedFileError(f"{source} is not YAML: {error.problem}", where=f"{source}:{line}") from error
    except RecursionError as error:
        raise DamagedFileError(f"{source} is nested too deeply", where=source) from error
    except (YAMLError, ValueError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{source} is not YAML: {error}", where=source) from error
    return _checked(data, text, source)


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
    """The same structure with every float rounded to a number of significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v, digits) for v in value]
    return value


def _checked(data: object, text: str, source: str) -> Document:
    if not isinstance(data, dict):
        raise DamagedFileError(f"{source} holds {_kind(data)}, not a mapping of keys to values", where=source)
    _check_values(data, source, 0)
    return Document(data=data, source=source, text=text)


def _check_values(value: object, source: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise DamagedFileError(f"{source} is nested more than {MAX_DEPTH} levels deep", where=source)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValueError(f"{source} holds {value}, which is no number", where=source, hint="write a finite number")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise DamagedFileError(f"{source}: the key {key!r} is no text", where=source, hint="put it in quotes")
            _check_values(item, source, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, source, depth + 1)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise InvalidValueError(f"the key {twice!r} is given twice", hint="keep one of them")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidValueError(f"the file holds {name}, which is no number", hint="write a finite number")


def _kind(value: object) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def _explain(error: pydantic.ValidationError, record: type[pydantic.BaseModel], document: Document) -> NoReturn:
    first = error.errors()[0]
    keys = tuple(k for k in first["loc"] if isinstance(k, (str, int)) and not _is_union_tag(k))
    where = document.place(*keys)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(record, keys[:-1])
        near = difflib.get_close_matches(str(keys[-1]), known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(sorted(known))
        raise UnknownNameError(f"unknown key {keys[-1]!r}{more}", where=where, hint=hint) from error
    if first["type"] == "missing":
        raise InvalidValueError(f"the key {'.'.join(map(str, keys))!r} is missing{more}", where=document.place(*keys[:-1])) from error
    given = repr(first.get("input"))
    shown = given if len(given) <= 80 else given[:77] + "..."
    raise InvalidValueError(f"{shown}: {first['msg']}{more}", where=where) from error


def _is_union_tag(key: str | int) -> bool:
    return isinstance(key, str) and ("[" in key or key[:1].isupper())


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
