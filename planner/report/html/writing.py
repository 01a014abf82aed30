"""Files written whole or not at all: all of them beside their places first, then each renamed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shardwright.errors import ConflictError, InvalidValueError


def check_target(place: Path, *, force: bool, where: str) -> None:
    """Sees to it, before any work is done, that a file may be written.

    Raises:
        InvalidValueError: it is a folder, or cannot be looked at.
        ConflictError: it exists and may not be replaced.
    """
    try:
        if place.is_dir():
            raise InvalidValueError(f"{place} is a folder", where=where, hint="name a file, such as report.html")
        taken = place.exists()
    except OSError as error:
        raise _unusable(place, error, where) from error
    if taken and not force:
        raise ConflictError(f"{place} exists already", where=where, hint="add --force to replace it, or name another")


def check_folder(folder: Path, *, where: str) -> None:
    """Sees to it that a folder of pictures is one, or can be made.

    Raises:
        InvalidValueError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"{folder} is a file", where=where, hint="name a folder; it is made if need be")


def write_files(files: Mapping[Path, bytes], where: str) -> None:
    """Writes all files.

    Raises:
        InvalidValueError: one of them cannot be written; then none is.
    """
    drafts: dict[Path, Path] = {}
    try:
        for place, content in files.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".shardwright-", dir=place.parent, delete=False) as draft:
                drafts[place] = Path(draft.name)
                draft.write(content)
            drafts[place].chmod(0o644)
        for place, written in drafts.items():
            written.replace(place)
    except OSError as error:
        raise _unusable(place, error, where) from error
    finally:
        for written in drafts.values():
            with suppress(OSError):
                written.unlink(missing_ok=True)


def _unusable(place: Path, error: OSError, where: str) -> InvalidValueError:
    message = f"cannot write {place}: {error.strerror or error}"
    return InvalidValueError(message, where=where, hint="name a place you may write to")
