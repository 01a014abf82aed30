"""The zip archive that `torch.export.save` writes, read without unpickling anything.

    NAME/archive_format                "pt2"
    NAME/archive_version               "0"
    NAME/models/MODEL.json             the serialised program; one model an archive is read
    NAME/data/weights/...              never opened: shapes stand in the program

`read_program` takes members by name only and inflates at most `MAX_PROGRAM_BYTES`, whatever the directory claims.
Layout: torch.export.pt2_archive.constants, torch 2.8 and later.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from shardwright.errors import DamagedFileError, UnsupportedError

MAX_PROGRAM_BYTES = 512 << 20
MAX_RATIO = 200
"""A serialised program compresses about ten-fold; beyond this ratio a member is a bomb."""
MAX_MEMBERS = 200_000
FORMAT, VERSIONS = "pt2", ("0",)
_AGAIN = "save it again by torch.export.save(program, 'model.pt2')"


def read_program(path: Path) -> dict[str, Any]:
    """The serialised program of an archive.

    Raises:
        DamagedFileError: no zip, damaged, or no torch.export archive.
        UnsupportedError: another version, several models, a program that is too large.
    """
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _program(archive, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise DamagedFileError(f"cannot read {path}: {error.strerror}", where=where) from error
        raise DamagedFileError(f"{path} is no whole torch.export archive ({error})", where=where, hint=_AGAIN) from error


def _program(archive: zipfile.ZipFile, where: str) -> dict[str, Any]:
    names = archive.namelist()
    if len(names) > MAX_MEMBERS:
        raise UnsupportedError(f"{len(names)} members", where=where, hint=f"at most {MAX_MEMBERS:,} are read")
    root = _root(names, where)
    if root is None:
        raise DamagedFileError("a zip file, but no archive of torch.export", where=where, hint=_AGAIN)
    _check_words(archive, root, where)
    models = [n for n in names if n.startswith(f"{root}models/") and n.endswith(".json")]
    if len(models) != 1:
        said = f"the archive holds {len(models)} programs"
        raise UnsupportedError(said, where=where, hint="save one program an archive")
    text = _inflated(archive, models[0], where)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = f"{models[0]} is no JSON ({type(error).__name__})"
        raise DamagedFileError(said, where=where, hint=_AGAIN) from error
    if not isinstance(data, dict):
        raise DamagedFileError(f"{models[0]} holds no program", where=where, hint=_AGAIN)
    return data


def _root(names: list[str], where: str) -> str | None:
    """The folder of the archive; the layout before torch 2.8 is named where it is met."""
    if "serialized_exported_program.json" in names:
        raise UnsupportedError(
            "an archive of torch before 2.8, whose program is laid out otherwise",
            where=where,
            hint=f"with torch 2.8 or later {_AGAIN}",
        )
    found = [n.removesuffix("archive_format") for n in names if n == "archive_format" or n.endswith("/archive_format")]
    return found[0] if len(found) == 1 else None


def _check_words(archive: zipfile.ZipFile, root: str, where: str) -> None:
    given = _inflated(archive, f"{root}archive_format", where).decode("utf-8", "replace").strip()
    if given != FORMAT:
        raise UnsupportedError(
            f"an archive of format {given[:40]!r}", where=where, hint=f"the format {FORMAT} is read; {_AGAIN}"
        )
    version = f"{root}archive_version"
    if version in archive.namelist():
        said = _inflated(archive, version, where).decode("utf-8", "replace").strip()
        if said not in VERSIONS:
            raise UnsupportedError(f"archive version {said[:40]!r}", where=where, hint="version 0 is read")


def _inflated(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    """One member, its size and ratio checked while it is read."""
    info = archive.getinfo(name)
    with archive.open(info) as stream:
        return _bounded(stream, name, info.compress_size, where)


def _bounded(stream: IO[bytes], name: str, stored: int, where: str) -> bytes:
    limit = min(MAX_PROGRAM_BYTES, max(stored, 1024) * MAX_RATIO)
    data = stream.read(limit + 1)
    if len(data) > limit:
        said = f"{name} inflates from {stored:,} to more than {limit:,} bytes"
        raise UnsupportedError(said, where=where, hint=f"programs of at most {MAX_PROGRAM_BYTES >> 20} MiB are read")
    return data
