"""A connection to PostgreSQL. Many rows travel as one JSON text, which costs the least on both sides."""

import contextlib
import select
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import psycopg
from psycopg.types.numeric import Int8Dumper

from bilinq.live.store.connection import Connection
from bilinq.live.store.transaction import PARAMETER, Bulk, Row

WRITING = """
    SET synchronous_commit = on;
    SET idle_session_timeout = '5s';
    SET idle_in_transaction_session_timeout = '30s';
    SET tcp_keepalives_idle = 2;
    SET tcp_keepalives_interval = 1;
    SET tcp_keepalives_count = 2;
    SET jit = off;
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off
"""
"""A leader that froze or is cut off loses its lock. The writer finds rows by key: plans made while a table was empty, and
kept, must not read all of it once it is full."""
READING = "SET plan_cache_mode = force_custom_plan"
"""Who reads asks for all kinds of rows, and plans anew each time."""
ENDING = ("FATAL", "PANIC")
"""Errors after which PostgreSQL hangs up."""
STANDBY = "25006"
"""The code of a write to a server that became read-only: it is no more the one to write to."""


class PostgresConnection(Connection):
    """A connection, for writing or for reading only.

    Who writes does not wait for the answer to a statement before the next is sent, unless it reads something: an error may
    come up later than its statement, at the latest with the commit. Nothing says BEGIN or COMMIT: what is sent up to a
    Sync is one transaction to PostgreSQL, and so a transaction is one journey there and back.
    """

    dialect = "postgresql"

    def __init__(self, conninfo: str, *, writes: bool) -> None:
        super().__init__()
        self._writes, self._failed = writes, False
        self._db = psycopg.connect(conninfo, autocommit=writes)
        self._db.adapters.register_dumper(int, Int8Dumper)  # one type for all numbers: one prepared statement
        if writes:
            self._db.execute(WRITING)
        else:
            self._db.execute(READING)
            self._db.commit()
            self._db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._db.read_only = True
        self._life = contextlib.ExitStack()  # leaving a pipeline earlier would stop the clock of idle_session_timeout
        self._pipeline = self._life.enter_context(self._db.pipeline()) if writes else None

    def begin(self) -> None:
        """Do nothing: the first statement begins a transaction."""

    def commit(self) -> None:
        """Commit; raise if a statement failed and nobody minded, for then PostgreSQL has undone all."""
        if self._failed:
            raise RuntimeError("a statement failed, and the operation hid the error")
        if self._pipeline is None:
            self._db.commit()
        else:
            self._pipeline.sync()

    def rollback(self) -> None:
        """Undo."""
        if self.lost:
            return
        if self._pipeline is not None:
            with contextlib.suppress(psycopg.Error):
                self._send(b"ROLLBACK")
                self._pipeline.sync()
            self._db.execute("BEGIN")  # so that psycopg forgets statements which were to be prepared and are not
        self._db.rollback()
        self._failed = False

    def check(self) -> None:
        """Ask for a sign of life."""
        self.rows("SELECT 1")
        self.commit()

    def fault(self, error: Exception) -> str | None:
        """Tell when the connection is gone, the server cannot serve, or it has become a standby."""
        told = error.diag.severity_nonlocalized if isinstance(error, psycopg.Error) else None
        if self._db.closed or told in ENDING or getattr(error, "sqlstate", None) == STANDBY:
            self.lost = True
            return f"the connection to the database was lost: {first_line(error)}"
        if not self._writes and isinstance(error, psycopg.errors.UndefinedTable):
            return f"the database has no tables yet: {first_line(error)}"
        if isinstance(error, psycopg.errors.PipelineAborted):  # an error before it that an operation hid
            return None
        return f"the database fails: {first_line(error)}" if isinstance(error, psycopg.OperationalError) else None

    def close(self) -> None:
        """Undo what is under way and close; the lock is free when this returns, not some time later."""
        with contextlib.suppress(psycopg.Error):
            self.rollback()
            if self._writes and not self.lost:
                self.rows("SELECT pg_advisory_unlock_all()")
                self.commit()
        with contextlib.suppress(psycopg.Error):
            self._life.close()
        with contextlib.suppress(psycopg.Error):
            self._db.close()

    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        """Return the rows that a query finds."""
        return self._fetched(self._send(_named(sql), params))

    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        """Return the rows whose column is one of `values`, handed over as an array."""
        return self.rows(sql.replace("{among}", "= ANY(:among)"), among=list(values), **params)

    def run(self, sql: str, /, **params: Any) -> int:
        """Carry out a statement, by a plan for the tables as they are now; return how many rows it changed."""
        self.wrote = True
        sent = self._send(_named(sql), params, keep_plan=False)
        self._fetched(sent)
        return sent.rowcount

    def many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Carry out a statement for each set of parameters."""
        self.wrote = True
        for row in rows:
            self._send(_named(sql), row)

    def each(self, bulk: Bulk, rows: Sequence[Row]) -> None:
        """Carry out `bulk` for all rows in one statement."""
        self.wrote = True
        sql, key = _at_once(bulk)
        texts = msgspec.json.encode(rows).decode()
        self._send(sql, {"rows": texts} if key is None else {"rows": texts, "keys": [row[key] for row in rows]})

    def _send(self, sql: bytes, params: Mapping[str, Any] | None = None, keep_plan: bool = True) -> psycopg.Cursor[Row]:
        """Send a statement, all of it, on a cursor of its own, so that its answer is not taken for that of another.

        What a socket does not take at once psycopg would leave for later, and wait for an answer to what was never sent.
        """
        cursor = self._db.cursor(binary=True)
        try:
            cursor.execute(sql, params, prepare=None if keep_plan else False)
        except psycopg.Error:  # of this statement or one before
            self._failed = True
            raise
        while self._pipeline is not None and self._db.pgconn.flush():
            writable = select.poll()
            writable.register(self._db.fileno(), select.POLLOUT)
            writable.poll()
        return cursor

    def _fetched(self, cursor: psycopg.Cursor[Row]) -> list[Row]:
        """Wait for the answer to a statement and return its rows, none if it is of a kind that has none."""
        try:
            return cursor.fetchall()
        except psycopg.Error as error:
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:  # not PostgreSQL's: no rows
                return []
            self._failed = True
            raise


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@lru_cache(1024)
def _named(sql: str) -> bytes:
    """Return the statement with its parameters written as psycopg wants them."""
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).encode()


@lru_cache
def _at_once(bulk: Bulk) -> tuple[bytes, int | None]:
    """Return the statement that takes rows from a JSON text, a list of lists, and the place of the key in each of them.

    An update is told the keys besides: a plan that was made while the table was small, and is kept, could read all of it.
    """
    types = bulk.types()
    fields = ", ".join(f"(row->>{place})::{kind} AS {name}" for place, (name, kind) in enumerate(types.items()))
    source = f"FROM (SELECT {fields} FROM jsonb_array_elements(%(rows)s::jsonb) AS row) AS given"
    column, _, field = bulk.key.partition(" = :")
    sql = bulk.sql.replace("{key}", f"{bulk.key} AND {column} = ANY(%(keys)s)")
    place = list(types).index(field) if field else None
    return PARAMETER.sub(r"given.\1", sql).replace("{rows}", source).encode(), place
