"""A store in one SQLite file: WAL, synchronous=FULL, one connection that writes and checkpoints."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store import copies
from bilinq.live.store.connection import Connection
from bilinq.live.store.store import Store
from bilinq.live.store.transaction import PARAMETER, Bulk, Row

AT_ONCE = 64
"""Most rows that one statement takes; it takes 1, 2, 4, ... so that few statements are kept."""
STATEMENTS = 256
"""Statements that are kept, ready to be carried out."""
AMONG = "IN (SELECT value FROM json_each(:among))"
FAULTS = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
"""Errors of the database itself, whatever the operation."""
TIDY_EVERY = 3000
"""Changed rows after which the WAL is copied to the file as soon as nobody waits; at 8,000 pages a commit does so itself."""
WRITING = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA wal_autocheckpoint = 8000",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -65536",
)


class SqliteConnection(Connection):
    """A connection to a file, for writing or for reading only."""

    dialect = "sqlite"

    def __init__(self, path: Path, *, writes: bool) -> None:
        super().__init__()
        self._path = path
        self._writes, self._tidied = writes, 0
        uri = f"{path.as_uri()}?mode={'rw' if writes else 'ro'}"
        self._db = sqlite3.connect(
            uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
        )
        for pragma in WRITING if writes else ("PRAGMA query_only = ON",):
            self._db.execute(pragma)

    def begin(self) -> None:
        """Begin, the writer with the lock that only it takes."""
        self._db.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")

    def commit(self) -> None:
        """Write the WAL to disk."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Undo, unless SQLite has done so itself after an error."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def tidy(self) -> None:
        """Copy the WAL to the file, if much was written; otherwise a commit would have to, before it is answered."""
        if self._db.total_changes >= self._tidied + TIDY_EVERY:
            self._tidied = self._db.total_changes
            with contextlib.suppress(sqlite3.Error):  # what is wrong will show in the next transaction
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def check(self) -> None:
        """Do nothing: a file does not go away."""

    def fault(self, error: Exception) -> str | None:
        """Return the message of an error that no operation is to blame for."""
        if not self._writes and str(error).startswith("no such table"):
            return f"the database {self._path.name} has no tables yet: {error}"
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        return f"the database {self._path.name} fails: {error}" if code in FAULTS else None

    def close(self) -> None:
        """Close, the writer with all that is in the WAL copied to the file."""
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
            if self._writes:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        """Return the rows that a query finds."""
        return self._db.execute(sql, params).fetchall()

    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        """Return the rows whose column is one of `values`, handed over as a JSON list if they are several."""
        if len(values) == 1:
            return self.rows(sql.replace("{among}", "= :among"), among=values[0], **params)
        return self.rows(sql.replace("{among}", AMONG), among=msgspec.json.encode(values).decode(), **params)

    def run(self, sql: str, /, **params: Any) -> int:
        """Carry out a statement; return how many rows it changed."""
        self.wrote = True
        return self._db.execute(sql, params).rowcount

    def many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Carry out a statement for each set of parameters."""
        self.wrote = True
        self._db.executemany(sql, rows)

    def each(self, bulk: Bulk, rows: Sequence[Row]) -> None:
        """Carry out `bulk` for many rows at a time; for each statement other threads get, and may keep, their turn."""
        self.wrote = True
        done = 0
        while done < len(rows):
            some = min(1 << (len(rows) - done).bit_length() - 1, AT_ONCE)
            self._db.execute(_at_once(bulk, some), list(chain.from_iterable(rows[done : done + some])))
            done += some


class SqliteStore(Store):
    """A store in the file at `path`; the file `path`.lock tells who leads."""

    def __init__(self, path: Path, *, lead: bool) -> None:
        if not path.parent.is_dir():
            raise BadInput(f"database must be in a folder that exists; got {path}")
        self._path = path.resolve()
        self._lock: int | None = None
        super().__init__(lead)

    async def backup(self, path: str | PathLike[str]) -> None:
        """Copy the database, as it is at one moment, to a file that does not exist yet."""
        await asyncio.to_thread(copies.backup, self._path, Path(path).resolve())

    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        """Put the backup at `path` in the place of the database, of one that is there only with `force`."""
        if path is None:
            raise BadInput("file must be given: the backup to restore")
        if self._path.exists() and not force:
            raise BadInput(f"database must not exist; {self._path} does; use --force to replace it")
        self._take_lock()
        try:
            connect = partial(SqliteConnection, writes=True)
            await asyncio.to_thread(copies.restore, Path(path).resolve(), self._path, connect)
        finally:
            self._release()

    def _connect_writer(self) -> Connection:
        self._take_lock()
        with contextlib.suppress(FileExistsError):  # closing a file in use would drop SQLite's locks on it
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return self._connect(writes=True)

    def _connect_reader(self) -> Connection:
        return self._connect(writes=False)

    def _connect(self, *, writes: bool) -> Connection:
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


@lru_cache(STATEMENTS)
def _at_once(bulk: Bulk, rows: int) -> str:
    """Return the statement that takes so many rows, with their fields as parameters one after the other."""
    names, sql = list(bulk.types()), bulk.sql.replace("{key}", bulk.key)
    if rows == 1:
        return PARAMETER.sub(lambda match: f"?{names.index(match[1]) + 1}", sql.replace("{rows}", ""))
    row = f"({', '.join('?' * len(names))})"
    statement = PARAMETER.sub(r"given.\1", sql).replace("{rows}", "FROM given")
    return f"WITH given({', '.join(names)}) AS (VALUES {', '.join([row] * rows)}) {statement}"
