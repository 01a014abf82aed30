"""What `report` is given: a plan-result, an estimate, a sweep-result, or the store of a sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from shardwright.documents import RESULT_LIMIT_BYTES, Document, parse_json, read_text, validate
from shardwright.errors import DamagedFileError, InvalidValueError, UnsupportedError
from shardwright.planner.schema import SCHEMA_VERSION, read_result

SWEEP = "sweep-result"
_STORE = b"SQLite format 3\0"


def read_report_source(source: str) -> dict[str, Any]:
    """The document in a file, in the folder that `plan -o` wrote, in a store, or on standard input (`-`).

    Raises:
        DamagedFileError: it is none of the documents a report is made of.
        UnsupportedError: a document or a store of another version.
        ShardwrightError: as `read_result`.
    """
    if source == "-":
        document = parse_json(_standard_input(), "standard input")
        return _sweep(document) if document.data.get("kind") == SWEEP else read_result(document.data)
    place = Path(source)
    if place.is_file():
        if _is_store(place):
            return _stored(place)
        document = parse_json(read_text(place, limit_bytes=RESULT_LIMIT_BYTES), source)
        if document.data.get("kind") == SWEEP:
            return _sweep(document)
    return read_result(source)


def _standard_input() -> str:
    try:
        return sys.stdin.read(RESULT_LIMIT_BYTES)
    except (UnicodeDecodeError, AttributeError) as error:  # no text, or closed
        message, hint = "standard input cannot be read as text", "pipe what `plan --format json` prints"
        raise DamagedFileError(message, where="standard input", hint=hint) from error


def _sweep(document: Document) -> dict[str, Any]:
    from shardwright.planner.report.html.schema import DrawnSweep

    version = document.data.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        message = f"{document.source} has schema_version {str(version)[:60]}; this version reads {SCHEMA_VERSION}"
        raise UnsupportedError(message, where=document.place("schema_version"), hint="sweep again with this version")
    validate(DrawnSweep, document)
    return document.data


def _is_store(place: Path) -> bool:
    with place.open("rb") as file:
        return file.read(len(_STORE)) == _STORE


def _stored(place: Path) -> dict[str, Any]:
    from shardwright.planner.sweep.run import stored_points

    points = stored_points(place)
    if not points:
        hint = f"run a sweep with --store {place} first"
        raise InvalidValueError(f"{place} holds no finished point", where="RESULT", hint=hint)
    return {"schema_version": SCHEMA_VERSION, "kind": SWEEP, "points": points}
