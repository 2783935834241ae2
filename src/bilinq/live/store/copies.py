"""Copies of a SQLite database: made while it is in use, and put back in its place."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store import audit, meta
from bilinq.live.store.connection import Connection
from bilinq.live.store.schema import check_version
from bilinq.live.store.transaction import Transaction

GAP = 10**10
"""Numbers that are left out after a restore: more than can have been used since the backup was made."""


def backup(source: Path, target: Path) -> None:
    """Copy a database with a connection that only reads, as it is at one moment, to a new file, and check the copy."""
    if target.exists():
        raise BadInput(f"path must be a new file; {target} exists")
    if not source.is_file():
        raise BadInput(f"database must exist to be copied; {source} does not")
    part = target.with_name(f"{target.name}.part")
    try:
        _copy(source, part)
        check(part)
        part.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error, BadInput) as error:
        part.unlink(missing_ok=True)
        raise Unavailable(f"the backup to {target} failed: {error}") from error


def check(path: Path) -> None:
    """Raise `BadInput` unless a file is a whole database of bilinq, of a version that is known here."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            version = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    except sqlite3.Error as error:
        raise BadInput(f"a backup must be a database of bilinq; {path}: {error}") from None
    if found != "ok":
        raise BadInput(f"a backup must be whole; {path}: {' '.join(found.split())}")
    if version is None:
        raise BadInput(f"a backup must be a database of bilinq; {path} has no version")
    check_version(int(version[0]))


def restore(path: Path, target: Path, connect: Callable[[Path], Connection]) -> None:
    """Put a backup in the place of a database that nobody uses, at once or not at all; `connect` opens one to write."""
    check(path)
    part = target.with_name(f"{target.name}.part")
    try:
        _copy(path, part)
        with contextlib.closing(connect(part)) as copy:
            copy.begin()
            leave_gap(copy, path.name)
            copy.commit()
        _clear_away(target, connect)
        part.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        raise Unavailable(f"{path} could not be restored to {target}: {error}") from error


def leave_gap(tx: Transaction, what: str) -> None:
    """Let new jobs, leases and servers have numbers that were never used, not even after the backup was made.

    A worker with a lease from after that moment must be refused by its fence, and not end the lease of another.
    """
    for table in ("job", "lease", "server"):
        meta.skip_ids(tx, table, GAP)
    audit.add(tx, time.time(), audit.LOCAL, "restore", what)


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as reader,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        reader.backup(copy)
        copy.execute(
            "PRAGMA journal_mode = DELETE"
        )  # a file that stands alone, and can be read from a disk that is read-only


def _clear_away(target: Path, connect: Callable[[Path], Connection]) -> None:
    """Leave no log beside a database that is replaced: SQLite would take it for part of the new one."""
    if target.exists():
        with contextlib.suppress(sqlite3.Error):  # closing brings what is in the log to the file, if that is sound
            connect(target).close()
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Let a new name in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
