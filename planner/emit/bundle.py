"""The folder `emit -o DIR` writes: whole or not at all.

Everything is written beside its place and renamed. An existing folder is replaced only with `force`, and only if it was
written by `emit` (it holds `MARK`): somebody's own folder is never removed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.emit.base import File

MARK = "plan.json"
WHERE = "-o"


def check_folder(folder: Path, *, force: bool) -> None:
    """Sees to it, before any work is done, that a bundle may be written there.

    Raises:
        InvalidValueError: it is a file, or cannot be looked at.
        ConflictError: it exists and may not be replaced.
    """
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InvalidValueError(f"{folder} is no folder", where=WHERE, hint="name a folder; it is made if need be")
        if not folder.is_dir() or not any(folder.iterdir()):
            return
        ours = (folder / MARK).is_file()
    except OSError as error:
        raise _unusable(folder, error) from error
    if not ours:
        message = f"{folder} is not empty and holds no earlier bundle"
        raise ConflictError(message, where=WHERE, hint="name a new or empty folder")
    if not force:
        raise ConflictError(f"{folder} holds a bundle already", where=WHERE, hint="add --force to replace it, or name another")


def write_bundle(folder: Path, files: Mapping[str, File], *, force: bool) -> tuple[str, ...]:
    """Writes the files and gives their paths within the folder.

    Raises:
        ShardwrightError: as `check_folder`; the folder cannot be written.
    """
    check_folder(folder, force=force)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".shardwright-", dir=folder.parent))
        try:
            _fill(draft, files)
            _put(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    return tuple(sorted(files))


def _fill(draft: Path, files: Mapping[str, File]) -> None:
    draft.chmod(0o755)
    for name, file in files.items():
        place = draft / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(file.text, encoding="utf-8", newline="\n")
        place.chmod(0o755 if file.executable else 0o644)


def _put(draft: Path, folder: Path) -> None:
    """Renames the draft to its place; the folder that was there comes back if that fails."""
    if not folder.is_dir():
        draft.rename(folder)
        return
    old = draft.with_name(draft.name + "-old")
    folder.rename(old)
    try:
        draft.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _unusable(folder: Path, error: OSError) -> InvalidValueError:
    message = f"cannot write {folder}: {error.strerror or error}"
    return InvalidValueError(message, where=WHERE, hint="name a folder you may write to")
