"""A store in one SQLite file: WAL, synchronous=FULL, one connection that writes; backup and restore."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store.admin_tables import skip_used_ids
from bilinq.live.store.checkpoints import Checkpoints
from bilinq.live.store.schema import migrate
from bilinq.live.store.store import Store
from bilinq.live.store.transaction import PARAMETER, Bulk, DatabaseConnection, R, Row
from bilinq.live.store.verification import limit, time_for, verify, verify_values

AT_ONCE = 64  # most rows in one statement; a statement has 1, 2, 4, ... rows, so that few statements are cached
STATEMENTS = 256  # prepared statements that are cached
AMONG = "IN (SELECT value FROM json_each(:among))"
FAULTS = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ["FULL", "IOERR", "BUSY", "LOCKED", "NOMEM", "READONLY", "CANTOPEN", "PROTOCOL", "CORRUPT", "NOTADB"]
}
"""Errors of the database itself, whatever the operation."""
WRITING = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA wal_autocheckpoint = 0",  # see `Checkpoints`
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -65536",
)


class SqliteConnection(DatabaseConnection):
    """A connection to a file, for writing or for reading only."""

    dialect = "sqlite"

    def __init__(self, path: Path, *, writes: bool) -> None:
        super().__init__()
        self._path, self._writes, self._before, self._rows = path, writes, 0, 0
        self._db = self._open()
        self._checkpoints = Checkpoints(self._open)

    def _open(self) -> sqlite3.Connection:
        uri = f"{self._path.as_uri()}?mode={'rw' if self._writes else 'ro'}"
        db = sqlite3.connect(
            uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
        )
        for pragma in WRITING if self._writes else ("PRAGMA query_only = ON",):
            db.execute(pragma)
        return db

    def begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        self._before = self._db.total_changes

    def commit(self) -> None:
        self._db.execute("COMMIT")
        self._rows += self._db.total_changes - self._before

    def rollback(self) -> None:
        """Undo, unless SQLite has done so itself after an error."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def limit(self, seconds: float) -> None:
        """Let all that is done from now on end with an error after some seconds."""
        limit(self._db, seconds)

    def tidy(self) -> None:
        """Let the WAL be copied to the file if much was written."""
        self._checkpoints.after_commit(self._rows, self._db)

    def check(self) -> None:
        pass  # a file does not disconnect

    def fault(self, error: Exception) -> str | None:
        if not self._writes and str(error).startswith("no such table"):
            return f"the database {self._path.name} has no tables yet: {error}"
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        return f"the database {self._path.name} fails: {error}" if code in FAULTS else None

    def close(self) -> None:
        """Close; the writer first copies the whole WAL to the file."""
        self._checkpoints.stop()
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
            if self._writes:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        return self._db.execute(sql, params).fetchall()

    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        if len(values) == 1:
            return self.rows(sql.replace("{among}", "= :among"), among=values[0], **params)
        return self.rows(sql.replace("{among}", AMONG), among=msgspec.json.encode(values).decode(), **params)

    def run(self, sql: str, /, **params: Any) -> int:
        self.wrote = True
        return self._db.execute(sql, params).rowcount

    def each(self, bulk: Bulk[R], rows: Sequence[R]) -> None:
        """Run `bulk` for many rows at a time: each statement releases the GIL, and other threads may keep it."""
        self.wrote = True
        done = 0
        while done < len(rows):
            some = min(1 << (len(rows) - done).bit_length() - 1, AT_ONCE)
            self._db.execute(_at_once(bulk, some), list(chain.from_iterable(rows[done : done + some])))
            done += some


@lru_cache(STATEMENTS)
def _at_once(bulk: Bulk[R], rows: int) -> str:
    """Return the statement for a number of rows, with their fields as parameters one after the other."""
    names, sql = list(bulk.types()), bulk.sql.replace("{key}", bulk.key)
    if rows == 1:
        return PARAMETER.sub(lambda match: f"?{names.index(match[1]) + 1}", sql.replace("{rows}", ""))
    row = f"({', '.join('?' * len(names))})"
    statement = PARAMETER.sub(r"given.\1", sql).replace("{rows}", "FROM given")
    return f"WITH given({', '.join(names)}) AS (VALUES {', '.join([row] * rows)}) {statement}"


class SqliteStore(Store):
    """A store in the file at `path`; the leader locks the file `path`.lock."""

    def __init__(self, path: Path, *, lead: bool, timeout: float) -> None:
        if not path.parent.is_dir():
            raise BadInput(f"database must be in a folder that exists; got {path}")
        self._path = path.resolve()
        self._lock: int | None = None
        super().__init__(lead, timeout)

    async def backup(self, path: str | PathLike[str]) -> None:
        await asyncio.to_thread(_backup, self._path, Path(path).resolve())

    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        """Replace the database by the backup at `path`; an existing database only with `force`."""
        if path is None:
            raise BadInput("file must be given: the backup to restore")
        if self._path.exists() and not force:
            raise BadInput(f"database must not exist; {self._path} does; use --force to replace it")
        self._take_lock()
        try:
            await asyncio.to_thread(_restore, Path(path).resolve(), self._path)
        finally:
            self._release()

    def _connect_writer(self) -> DatabaseConnection:
        self._take_lock()
        with contextlib.suppress(FileExistsError):  # closing a file in use would drop SQLite's locks on it
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return self._connect(writes=True)

    def _connect(self, *, writes: bool) -> DatabaseConnection:
        try:
            return SqliteConnection(self._path, writes=writes)
        except sqlite3.Error as error:
            raise Unavailable(f"the database {self._path.name} cannot be opened: {error}") from error

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(lock, 20).decode()
            os.close(lock)
            raise Unavailable(f"the database {self._path} is in use by process {holder}; only one can write") from None
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _backup(source: Path, target: Path) -> None:
    """Copy a snapshot of a database, through a connection that only reads, to a new file, and check the copy."""
    if target.exists():
        raise BadInput(f"path must be a new file; {target} exists")
    if not source.is_file():
        raise BadInput(f"database must exist to be copied; {source} does not")
    part = target.with_name(f"{target.name}.part")
    try:
        _copy(source, part)
        verify(part, target, values=False)
        part.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error, ValueError) as error:
        part.unlink(missing_ok=True)
        raise Unavailable(f"the backup to {target} failed: {error}") from error


def _restore(path: Path, target: Path) -> None:
    """Replace a database that nobody uses by a backup, completely or not at all.

    The copy is checked, not the file: what is checked is what is used.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"a backup must be a file; {path} is not")
    part = target.with_name(f"{target.name}.part")
    try:
        try:
            _copy(path, part)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # names in messages of SQLite may be damaged, too
            raise BadInput(f"a backup must be a database of bilinq; {path}: {error}") from None
        verify(part, path)
        with contextlib.closing(SqliteConnection(part, writes=True)) as copy:
            copy.limit(time_for(part))
            _bring_up_to_date(copy, path)
        _remove_log(target)
        part.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(f"{path} could not be restored to {target}: {error}") from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)


def _bring_up_to_date(copy: SqliteConnection, path: Path) -> None:
    """Upgrade the tables of a restored copy, check its values, and leave out ids that may have been used since."""
    copy.begin()
    migrate(copy)
    verify_values(copy, path)
    skip_used_ids(copy, path.name)
    copy.commit()


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as reader,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        reader.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, which can be read from a read-only disk


def _remove_log(target: Path) -> None:
    """Remove the WAL of a database that is replaced: SQLite would apply it to the new one."""
    if target.exists():
        with contextlib.suppress(sqlite3.Error):  # closing copies the WAL to the file, if that is undamaged
            SqliteConnection(target, writes=True).close()
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
