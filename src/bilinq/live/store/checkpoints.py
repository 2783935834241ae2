"""Checkpoints of SQLite: a thread of its own copies the write-ahead log to the file, so that no commit waits for that."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable

EVERY = 250  # committed rows after which the log is copied: few, because a commit may wait behind them at the disk
LONG = 2000  # pages from which on the log should begin anew
FEW = 250  # rows that the writer copies itself so that it does
LONGEST = 32_000  # pages at which the writer copies what is left, however much that is


class Checkpoints:
    """Copies the log beside the connection that writes; `connect` opens another connection to the same file.

    A checkpoint writes all pages that have changed and waits for the disk, while commits go on. So under constant load it
    never reaches the end of the log, which would grow without limit: the log begins anew only with a transaction that
    finds it copied to the end. Once the log is long, and few rows were committed during a checkpoint, the writer copies
    the rest itself between two transactions.

    SQLite before 3.51.3 can damage the file if a transaction begins the log anew while a checkpoint runs in another thread
    (https://sqlite.org/wal.html#walresetbug). No transaction does so while a part of the log is not copied. Therefore a
    checkpoint begins only after a commit that came after the end of the checkpoint before.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._wake, self._stop = threading.Event(), False
        self._running = False
        self._pages = 0  # pages of the log when the last checkpoint began
        self._before = 0  # rows committed before it
        self._noticed: int | None = 0  # rows committed when its end was noticed; None until then

    def after_commit(self, rows: int, writer: sqlite3.Connection) -> None:
        """Begin or complete a checkpoint, if it is time; call it between two transactions with the rows committed so far."""
        if self._running:
            return
        long = self._pages >= LONG
        if self._noticed is None:
            self._noticed = rows
            if long and (rows - self._before <= FEW or self._pages >= LONGEST):
                self._copy(writer)
                self._pages = 0
        elif rows >= self._noticed + (1 if long else EVERY):
            self._before, self._noticed, self._running = rows, None, True
            self._start()

    def stop(self) -> None:
        """Wait for the checkpoint that runs, and end."""
        if self._thread is not None:
            self._stop = True
            self._wake.set()
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bilinq-checkpoints", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        connection = None
        while self._wake.wait() and not self._stop:
            self._wake.clear()
            with contextlib.suppress(sqlite3.Error):
                connection = connection or self._connect()
                self._pages = self._copy(connection)
            self._running = False
        if connection is not None:
            connection.close()

    def _copy(self, connection: sqlite3.Connection) -> int:
        """Copy the log, except for pages that a reader still needs from the file; return the length of the log in pages."""
        with contextlib.suppress(sqlite3.Error):  # the next transaction will show what is wrong
            return int(connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])
        return 0
