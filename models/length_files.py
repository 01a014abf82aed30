"""Reading a histogram of document lengths: CSV or JSON.

    CSV    one `length,count` a line; a first line of words is a header that may name the columns in either order
    JSON   {"512": 100, "2048": 7}, or a list of [length, count] or {"length": …, "count": …}

`read_lengths` reads either; blank lines and lines that begin with # are passed over, equal lengths are added up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwright.documents import read_text
from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError
from shardwright.models.lengths import MAX_LENGTHS, WHERE, Lengths, pair

COLUMNS = ("length", "count")
LIMIT_BYTES = 16_000_000
_FORM = "give rows of length,count"


def read_lengths(path: Path) -> Lengths:
    """The histogram of a file.

    Args:
        path: of a CSV or JSON file.

    Raises:
        DamagedFileError: it cannot be read, or a line is no pair of whole numbers.
        InvalidValueError: a length or count that cannot be, or all counts are 0.
    """
    text = read_text(path, limit_bytes=LIMIT_BYTES)
    rows = _json_rows(text, path) if path.suffix.lower() == ".json" else list(_csv_rows(text, path))
    if not rows:
        raise DamagedFileError(f"{path} holds no lengths", where=str(path), hint=_FORM)
    counts: dict[int, int] = {}
    for place, length, count in rows:
        try:
            pair((length, count))
        except ShardwrightError as error:
            raise InvalidValueError(error.message, where=place, hint=error.hint) from error
        counts[length] = counts.get(length, 0) + count
    if len(counts) > MAX_LENGTHS:
        raise InvalidValueError(f"{len(counts):,} lengths", where=str(path), hint=f"at most {MAX_LENGTHS:,} are read")
    if not any(counts.values()):
        raise InvalidValueError("all counts are 0", where=f"{WHERE} {path}", hint="count at least one document")
    return Lengths(rows=tuple(sorted(counts.items())))


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, Any, Any]]:
    turned = False
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if number == 1 and sorted(cell.lower() for cell in cells) == sorted(COLUMNS):
            turned = cells[0].lower() == "count"
            continue
        place = f"{path}:{number}"
        if len(cells) != 2:
            raise DamagedFileError(f"{line.strip()[:60]!r} is no pair", where=place, hint=_FORM)
        length, count = (_number(cell, place) for cell in (reversed(cells) if turned else cells))
        yield place, length, count


def _number(cell: str, place: str) -> int:
    digits = cell.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise DamagedFileError(f"{cell[:60]!r} is no whole number", where=place, hint=_FORM)
    return int(cell)


def _json_rows(text: str, path: Path) -> list[tuple[str, Any, Any]]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFileError(f"{path} is no JSON: {error.msg}", where=f"{path}:{error.lineno}", hint=_FORM) from error
    except (RecursionError, ValueError) as error:
        raise DamagedFileError(f"{path} is no histogram", where=str(path), hint=_FORM) from error
    entries = list(data.items()) if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise DamagedFileError(f"{path} is no histogram", where=str(path), hint='give {"512": 100, "2048": 7}')
    return [(f"{path}: entry {i}", *_json_pair(entry, f"{path}: entry {i}")) for i, entry in enumerate(entries, start=1)]


def _json_pair(entry: Any, place: str) -> tuple[int, int]:
    if isinstance(entry, dict) and set(entry) == set(COLUMNS):
        entry = (entry["length"], entry["count"])
    if not isinstance(entry, (list, tuple)) or len(entry) != 2:
        raise DamagedFileError("an entry is no pair of length and count", where=place, hint=_FORM)
    return _number(str(entry[0]), place), _number(str(entry[1]), place)
