"""A connection to PostgreSQL. Many rows travel as one JSON text, which costs the least on both sides."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus
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
STANDBY = "25006"
"""The code of a write to a server that became read-only: it is no more the one to write to."""


class PostgresConnection(Connection):
    """A connection, for writing or for reading only."""

    dialect = "postgresql"

    def __init__(self, conninfo: str, *, writes: bool) -> None:
        super().__init__()
        self._writes = writes
        self._db = psycopg.connect(conninfo)
        self._db.adapters.register_dumper(int, Int8Dumper)  # one type for all numbers: one prepared statement
        if writes:
            self._db.execute(WRITING)
            self._db.commit()
        else:
            self._db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._db.read_only = True
        self._cursor = self._db.cursor(binary=True)

    def begin(self) -> None:
        """Do nothing: the first statement begins a transaction."""

    def commit(self) -> None:
        """Commit; raise if a statement failed and nobody minded, for then PostgreSQL would undo all and not say so."""
        if self._db.info.transaction_status == TransactionStatus.INERROR:
            raise RuntimeError("a statement failed, and the operation hid the error")
        self._db.commit()

    def rollback(self) -> None:
        """Undo."""
        if not self.lost:
            self._db.rollback()

    def check(self) -> None:
        """Ask for a sign of life."""
        self._cursor.execute("SELECT 1")
        self._db.commit()

    def fault(self, error: Exception) -> str | None:
        """Tell when the connection is gone, the server cannot serve, or it has become a standby."""
        if self._db.closed or getattr(error, "sqlstate", None) == STANDBY:
            self.lost = True
            return f"the connection to the database was lost: {first_line(error)}"
        if not self._writes and isinstance(error, psycopg.errors.UndefinedTable):
            return f"the database has no tables yet: {first_line(error)}"
        return f"the database fails: {first_line(error)}" if isinstance(error, psycopg.OperationalError) else None

    def close(self) -> None:
        """Close, which undoes what is under way."""
        with contextlib.suppress(psycopg.Error):
            self._db.close()

    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        """Return the rows that a query finds."""
        return self._cursor.execute(_named(sql), params).fetchall()

    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        """Return the rows whose column is one of `values`, handed over as an array."""
        return self.rows(sql.replace("{among}", "= ANY(:among)"), among=list(values), **params)

    def run(self, sql: str, /, **params: Any) -> int:
        """Carry out a statement; return how many rows it changed."""
        self.wrote = True
        return self._cursor.execute(_named(sql), params).rowcount

    def many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Carry out a statement for each set of parameters."""
        self.wrote = True
        self._cursor.executemany(_named(sql), rows)

    def each(self, bulk: Bulk, rows: Sequence[Row]) -> int:
        """Carry out `bulk` for all rows in one statement."""
        self.wrote = True
        sql, names = _at_once(bulk)
        texts = msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows]).decode()
        return self._cursor.execute(sql, {"rows": texts}).rowcount


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@lru_cache(1024)
def _named(sql: str) -> bytes:
    """Return the statement with its parameters written as psycopg wants them."""
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).encode()


@lru_cache
def _at_once(bulk: Bulk) -> tuple[bytes, tuple[str, ...]]:
    """Return the statement that takes rows from a JSON text, and the names by which it knows their fields."""
    types = bulk.types()
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    source = f"FROM json_to_recordset(%(rows)s::json) AS given({columns})"
    return PARAMETER.sub(r"given.\1", bulk.sql).replace("{rows}", source).encode(), tuple(types)
