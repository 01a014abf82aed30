"""Finished points, kept in SQLite: by the digest of everything a result depends on, as the text of the result.

    Store.open(path)     a file: every point is durable once `put` returns (write-ahead log, full synchronisation)
    Store.temporary()    nothing outlives the process

A file is looked at before SQLite is: by its header it is new (missing or empty), a store of this version, of another
version, or something else; the last two are refused untouched. Several processes may use one store: writers wait for each
other, and a point two of them computed is stored once.

The header fields are at fixed offsets (https://www.sqlite.org/fileformat.html, section 1.3).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.errors import DamagedFileError, InvalidValueError, UnsupportedError

APPLICATION = 0x53685764
"""`application_id` of our files: "ShWd"."""

VERSION = 1
"""`user_version`: raised whenever the tables change."""

WHERE = "--store"
PATIENCE_S = 60.0
_MAGIC = b"SQLite format 3\0"
_HEADER, _USER_VERSION, _APPLICATION_ID = 100, slice(60, 64), slice(68, 72)
_TABLES = "CREATE TABLE IF NOT EXISTS points (digest TEXT PRIMARY KEY, result TEXT NOT NULL) WITHOUT ROWID"


class Store:
    """Results by digest. Made by `Store.open` or `Store.temporary`; to be closed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store in a file, made if it is not there.

        Raises:
            DamagedFileError: something else than a store, or damaged.
            UnsupportedError: a store of another version.
            InvalidValueError: a folder, or a place that cannot be written.
        """
        _refuse_others(path)
        with _explained(path):
            connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
            try:
                _create(connection)
                _write_ahead(connection)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("SELECT digest FROM points LIMIT 1").fetchone()
            except BaseException:
                connection.close()
                raise
        return cls(connection)

    @classmethod
    def temporary(cls) -> Store:
        """A store that is gone with the process; what does not fit into memory is on disk meanwhile."""
        connection = sqlite3.connect("", isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_TABLES)
        return cls(connection)

    def get(self, digest: str) -> str | None:
        """The result of a point, or None."""
        row = self._connection.execute("SELECT result FROM points WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def has(self, digest: str) -> bool:
        """Whether the result of a point is there."""
        return self._connection.execute("SELECT 1 FROM points WHERE digest = ?", (digest,)).fetchone() is not None

    def results(self) -> Iterator[str]:
        """All results, in the order of their digests."""
        yield from (str(row[0]) for row in self._connection.execute("SELECT result FROM points ORDER BY digest"))

    def put(self, digest: str, result: str) -> None:
        """Keeps a result; one that is there already stays.

        Raises:
            InvalidValueError: the disk is full, or the store stays locked.
        """
        try:
            self._connection.execute("INSERT OR IGNORE INTO points VALUES (?, ?)", (digest, result))
        except sqlite3.Error as error:
            raise InvalidValueError(
                f"the store cannot be written: {error}", where=WHERE, hint="free space, or name another"
            ) from error

    def close(self) -> None:
        """Ends the use of the file."""
        self._connection.close()


def _refuse_others(path: Path) -> None:
    """Refuses what is neither missing, nor empty, nor a store of this version, without touching it."""
    try:
        if path.is_dir():
            raise InvalidValueError(f"{path} is a folder", where=WHERE, hint="name a file; it is made if need be")
        if not path.exists():
            if not path.parent.is_dir():
                raise InvalidValueError(f"{path.parent} is no folder", where=WHERE, hint="name a file in an existing folder")
            return
        if not path.is_file():
            raise InvalidValueError(f"{path} is no regular file", where=WHERE, hint="name another file")
        with path.open("rb") as file:
            head = file.read(_HEADER)
    except OSError as error:
        raise InvalidValueError(f"cannot read {path}: {error.strerror}", where=WHERE, hint="name another file") from error
    if not head:
        return
    if not head.startswith(_MAGIC) or int.from_bytes(head[_APPLICATION_ID], "big") != APPLICATION:
        raise DamagedFileError(f"{path} is no store of sweeps; it is left as it is", where=WHERE, hint="name a new file")
    version = int.from_bytes(head[_USER_VERSION], "big")
    if version != VERSION:
        message = f"{path} is a store of version {version}; this program reads version {VERSION} and leaves it as it is"
        raise UnsupportedError(message, where=WHERE, hint="use the version that wrote it, or name a new file")


def _create(connection: sqlite3.Connection) -> None:
    """Tables and header in one transaction, before the write-ahead log, so that the header is in the file itself.

    Where a process was killed while it did this, SQLite has undone its part when the file is opened, and it is done again.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        foreign = connection.execute("SELECT count(*) FROM sqlite_master WHERE name <> 'points'").fetchone()[0]
        if foreign:  # written by someone else meanwhile
            raise sqlite3.DatabaseError("it holds other tables")
        connection.execute(_TABLES)
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches the write-ahead log on; for this SQLite does not wait while another process uses the file."""
    until = time.monotonic() + PATIENCE_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InvalidValueError(
            f"cannot use {path} as a store: {error}", where=WHERE, hint="name a file you may write"
        ) from error
    except sqlite3.DatabaseError as error:
        raise DamagedFileError(f"{path} is no usable store: {error}", where=WHERE, hint="name a new file") from error
