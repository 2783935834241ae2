"""A store in PostgreSQL: the process with the advisory lock leads, and the connection that writes has the lock."""

import contextlib
import logging
import select
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import lru_cache
from math import inf
from os import PathLike
from typing import Any

import msgspec

from bilinq.errors import BadInput, Unavailable
from bilinq.extras import optional_imports
from bilinq.live.store.admin_tables import skip_used_ids
from bilinq.live.store.inbox_tables import CHANNEL
from bilinq.live.store.store import Store
from bilinq.live.store.transaction import PARAMETER, Bulk, DatabaseConnection, R, Row

with optional_imports():
    import psycopg
    from psycopg.abc import RV, PQGen
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.types.numeric import Int8Dumper

log = logging.getLogger("bilinq.live")

DEFAULTS = {
    "application_name": "bilinq",
    "connect_timeout": 3,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 4000,
    "target_session_attrs": "read-write",
}
"""A broken network is noticed within 4 s; the URL may override these."""
KEY = "hashtextextended('bilinq ' || current_schema(), 0)"
LOCK = f"SELECT pg_try_advisory_lock({KEY})"
"""One leader for each schema of each database."""
SIGN = "session.pid || ' ' || session.query_start"
SILENT = f"""
    FROM pg_locks AS held JOIN pg_stat_activity AS session USING (pid)
    WHERE held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted AND session.wait_event_type = 'Client'
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (held.classid::bigint << 32 | held.objid::bigint) = {KEY}"""
"""The session that has the lock, if PostgreSQL waits for its client; a leader sends something twice a second."""
FROZEN = 12
"""Polls in a row, at least 0.25 s apart, at which a leader has sent nothing new until another process ends its session.
Polls count, not seconds: a process that was frozen itself, or waited for the database, has not looked in the meantime."""
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
"""A leader that froze or is disconnected loses its lock, also where nobody waits for it. The writer finds rows by key: plans
that were made and cached while a table was empty must not scan all of it once it is full."""
READING = "SET plan_cache_mode = force_custom_plan"  # readers run many kinds of queries, and plan each time
LARGEST = 1 << 24
"""Bytes of rows in one statement. PostgreSQL accepts up to 256 MiB of JSON, and reads it slowly: a larger row is sent alone,
as it is."""
PAUSE = 0.1  # seconds after which psycopg looks up while it waits
ENDING = ("FATAL", "PANIC")  # severities of errors after which PostgreSQL closes the connection
STANDBY = "25006"  # the error code of a write to a server that became read-only: it is no longer the primary


class Silent(psycopg.OperationalError):
    """The database has not answered in time."""


class Session(psycopg.Connection[Row]):
    """A connection of psycopg that raises `Silent` when nothing arrives, or can be sent, for `allowed` seconds."""

    allowed = inf

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        return super().wait(self._limited(gen), *args, **options)

    def _limited(self, gen: PQGen[RV]) -> PQGen[RV]:
        """Do as `gen` does, which psycopg resumes every 0.1 s; such pauses count, so that a frozen process waits no less."""
        silent = 0
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                silent = 0 if ready else silent + 1
                if silent * PAUSE > self.allowed:
                    raise Silent(f"no answer for {self.allowed:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result


class PostgresConnection(DatabaseConnection):
    """A connection, for writing or for reading only.

    The writer sends a statement before it has the response to the one before, unless it reads something: an error may
    appear later than its statement, at the latest with the commit. There is no BEGIN or COMMIT: PostgreSQL takes all
    statements up to a Sync as one transaction, so that a transaction is one round trip. Many rows are sent as one JSON
    text, which costs the least on both sides.
    """

    dialect = "postgresql"

    def __init__(self, conninfo: str, *, writes: bool, timeout: float = inf) -> None:
        super().__init__()
        self._writes, self._failed = writes, False
        self._db = Session.connect(conninfo, autocommit=writes)
        self._db.allowed = timeout
        self._db.adapters.register_dumper(int, Int8Dumper)  # one type for all numbers: one prepared statement
        if writes:
            self._db.execute(WRITING)
        else:
            self._db.execute(READING)
            self._db.commit()
            self._db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._db.read_only = True
        self._life = contextlib.ExitStack()  # leaving a pipeline earlier would stop the timer of idle_session_timeout
        self._pipeline = self._life.enter_context(self._db.pipeline()) if writes else None

    def allow(self, seconds: float) -> None:
        self._db.allowed = seconds

    def begin(self) -> None:
        pass  # the first statement begins a transaction

    def commit(self) -> None:
        """Commit; raise if a statement failed and the operation hid it: PostgreSQL has rolled back everything."""
        if self._failed:
            raise RuntimeError("a statement failed, and the operation hid the error")
        if self._pipeline is None:
            self._db.commit()
        else:
            self._pipeline.sync()

    def rollback(self) -> None:
        if self.lost:
            return
        if self._pipeline is not None:
            with contextlib.suppress(psycopg.Error):
                self._send(b"ROLLBACK")
                self._pipeline.sync()
            self._db.execute("BEGIN")  # so that psycopg forgets statements that were to be prepared and are not
        self._db.rollback()
        self._failed = False

    def check(self) -> None:
        self.rows("SELECT 1")
        self.commit()

    def fault(self, error: Exception) -> str | None:
        """Return a message if the connection is lost, the server cannot serve, or it has become a standby."""
        severity = error.diag.severity_nonlocalized if isinstance(error, psycopg.Error) else None
        if isinstance(error, Silent):
            self.lost = self.stalled = True
            return str(error)
        if self._db.closed or severity in ENDING or getattr(error, "sqlstate", None) == STANDBY:
            self.lost = True
            return f"the connection to the database was lost: {_first_line(error)}"
        if not self._writes and isinstance(error, psycopg.errors.UndefinedTable):
            return f"the database has no tables yet: {_first_line(error)}"
        if isinstance(error, psycopg.errors.PipelineAborted):  # after an earlier error that an operation hid
            return None
        return f"the database fails: {_first_line(error)}" if isinstance(error, psycopg.OperationalError) else None

    def close(self) -> None:
        """Roll back and close; the lock is released when this returns, not some time later."""
        try:
            self.rollback()
            if self._writes and not self.lost:
                self.rows("SELECT pg_advisory_unlock_all()")
                self.commit()
        except psycopg.Error as error:
            self.fault(error)
        if self.stalled:  # do not wait for the end of the pipeline
            self._db.pgconn.finish()
        with contextlib.suppress(psycopg.Error):
            self._life.close()
        with contextlib.suppress(psycopg.Error):
            self._db.close()

    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        return self._fetched(self._send(_named(sql), params))

    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        return self.rows(sql.replace("{among}", "= ANY(:among)"), among=list(values), **params)

    def run(self, sql: str, /, **params: Any) -> int:
        """Run a statement, with a plan for the tables as they are now; return the number of rows that it changed."""
        self.wrote = True
        sent = self._send(_named(sql), params, keep_plan=False)
        self._fetched(sent)
        return sent.rowcount

    def each(self, bulk: Bulk[R], rows: Sequence[R]) -> None:
        self.wrote = True
        texts = msgspec.json.encode(rows)
        if len(texts) <= LARGEST:
            sql, key = _at_once(bulk)
            keys = {} if key is None else {"keys": [row[key] for row in rows]}
            self._send(sql, {"rows": texts.decode(), **keys})
        elif len(rows) > 1:
            half = len(rows) // 2
            self.each(bulk, rows[:half])
            self.each(bulk, rows[half:])
        else:
            self._send(_alone(bulk), dict(zip(bulk.types(), rows[0], strict=True)), keep_plan=False)

    def _send(self, sql: bytes, params: Mapping[str, Any] | None = None, keep_plan: bool = True) -> psycopg.Cursor[Row]:
        """Send a whole statement, on a cursor of its own, so that its response is not taken for that of another.

        Without the flush, psycopg would keep what the socket does not accept at once, and wait for a response to it.
        """
        cursor = self._db.cursor(binary=True)
        try:
            cursor.execute(sql, params, prepare=None if keep_plan else False)
        except psycopg.Error:  # of this statement or an earlier one
            self._failed = True
            raise
        while self._pipeline is not None and self._db.pgconn.flush():
            writable = select.poll()
            writable.register(self._db.fileno(), select.POLLOUT)
            if not writable.poll(None if self._db.allowed == inf else 1000.0 * self._db.allowed):
                raise Silent(f"no answer for {self._db.allowed:g} s")
        return cursor

    def _fetched(self, cursor: psycopg.Cursor[Row]) -> list[Row]:
        """Wait for the response to a statement and return its rows; an empty list if it is of a kind without rows."""
        try:
            return cursor.fetchall()
        except psycopg.Error as error:
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:  # psycopg's own error: no rows
                return []
            self._failed = True
            raise


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@lru_cache(1024)
def _named(sql: str) -> bytes:
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).encode()


@lru_cache
def _at_once(bulk: Bulk[R]) -> tuple[bytes, int | None]:
    """Return the statement that reads rows from a JSON text, a list of lists, and the index of the key in each row.

    An update also receives the keys: a plan that was made, and cached, while the table was small could scan all of it.
    """
    types = bulk.types()
    fields = ", ".join(f"(row->>{index})::{kind} AS {name}" for index, (name, kind) in enumerate(types.items()))
    source = f"FROM (SELECT {fields} FROM jsonb_array_elements(%(rows)s::jsonb) AS row) AS given"
    column, _, field = bulk.key.partition(" = :")
    sql = bulk.sql.replace("{key}", f"{bulk.key} AND {column} = ANY(%(keys)s)")
    index = list(types).index(field) if field else None
    return PARAMETER.sub(r"given.\1", sql).replace("{rows}", source).encode(), index


@lru_cache
def _alone(bulk: Bulk[R]) -> bytes:
    """Return the statement for one row, with its fields as parameters."""
    types, sql = bulk.types(), bulk.sql.replace("{rows}", "").replace("{key}", bulk.key)
    return PARAMETER.sub(lambda match: f"%({match[1]})s::{types[match[1]]}", sql).encode()


class PostgresStore(Store):
    """A store in the database at `url`."""

    shared = True

    def __init__(self, url: str, *, lead: bool, timeout: float) -> None:
        try:
            self._parameters: dict[str, Any] = {**DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.Error:  # its message may contain a password
            raise BadInput("database must be like postgresql://user:password@host:port/name; got another URL") from None
        self._candidate: PostgresConnection | None = None
        self._sign, self._polls = "", 0
        super().__init__(lead, timeout)

    async def backup(self, path: str | PathLike[str]) -> None:
        raise BadInput(f"backup copies SQLite files only; use pg_dump to write {path}")

    async def notifications(self, every: float) -> AsyncGenerator[None, None]:
        try:
            async with await psycopg.AsyncConnection.connect(
                make_conninfo(**self._parameters), autocommit=True
            ) as listener:
                await listener.execute(f"LISTEN {CHANNEL}")
                while True:
                    yield
                    async for _ in listener.notifies(timeout=every, stop_after=1):
                        pass
        except psycopg.Error as error:
            raise Unavailable(f"the database cannot be reached: {_first_line(error)}") from error

    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        """Skip the ids that were used since the backup; pg_restore has restored the rest."""
        if path is not None:
            raise BadInput(f"file must be left out with PostgreSQL; use pg_restore to read {path} first")
        await self._take_lead(wait=False, retry=False)
        await self.write(lambda tx: skip_used_ids(tx, "by pg_restore"))

    def _connect_writer(self) -> DatabaseConnection | None:
        """Return the connection if it gets the lock; otherwise keep it for the next attempt."""
        candidate = self._candidate or self._connect(writes=True)
        self._candidate = None
        try:
            locked = candidate.rows(LOCK)[0][0]
            if not locked:
                self._end_frozen_leader(candidate)
            candidate.commit()
        except psycopg.Error as error:
            candidate.close()
            raise Unavailable(f"the database cannot be locked: {_first_line(error)}") from error
        if locked:
            return candidate
        self._candidate = candidate
        return None

    def _end_frozen_leader(self, candidate: PostgresConnection) -> None:
        """End the session of the leader if it has sent nothing since several polls: no timeout runs in its transaction.

        Should it wake up right then, it has lost its connection, as in any failure, and nothing is stored twice.
        """
        found = candidate.rows(f"SELECT {SIGN} {SILENT}")
        sign = found[0][0] if found else ""
        self._sign, self._polls = sign, self._polls + 1 if sign and sign == self._sign else 0
        if self._polls >= FROZEN:
            log.warning("the leader does not respond, so its session in the database is ended")
            candidate.rows(f"SELECT pg_terminate_backend(session.pid) {SILENT} AND {SIGN} = :sign", sign=sign)
            self._polls = 0

    def _connect(self, *, writes: bool) -> PostgresConnection:
        try:
            return PostgresConnection(make_conninfo(**self._parameters), writes=writes, timeout=self.timeout)
        except psycopg.Error as error:
            raise Unavailable(f"the database cannot be reached: {_first_line(error)}") from error

    def _release(self) -> None:
        """Close the connection that waits for the lock; the one that has the lock releases it when it closes."""
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None
