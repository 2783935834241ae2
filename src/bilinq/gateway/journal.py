"""The log of the gateway in SQLite or PostgreSQL: requests with what they cost, what was learnt, feedback, checkpoints.

One thread writes, all that waits in one commit. The gateway reads only when it starts, and for requests that are no longer
in its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import re
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bilinq.errors import BadInput, Unavailable
from bilinq.scheduler import Observation

log = logging.getLogger("bilinq.gateway")

PARAMETER = re.compile(r":([a-z]\w*)")
MOST_WAITING = 200_000  # rows that wait for a database that fails; more are dropped, with a warning
FLUSH = 0.02  # seconds that rows wait for others, so that the writing thread does not take its turn for each of them
RETRY = 0.5  # seconds until a failed commit is tried again
LOCK = 0x62696C696E71  # of PostgreSQL, so that two gateways do not use one log
TABLES = (
    """CREATE TABLE IF NOT EXISTS gateway_request (
        id TEXT NOT NULL, attempt BIGINT NOT NULL, tenant TEXT NOT NULL, day TEXT NOT NULL, at DOUBLE PRECISION NOT NULL,
        backend TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, cost DOUBLE PRECISION NOT NULL,
        detail {bytes} NOT NULL, PRIMARY KEY (id, attempt))""",
    "CREATE INDEX IF NOT EXISTS gateway_request_day ON gateway_request (day, tenant)",
    "CREATE TABLE IF NOT EXISTS gateway_learnt (seq BIGINT PRIMARY KEY, request TEXT NOT NULL, body {bytes} NOT NULL)",
    """CREATE TABLE IF NOT EXISTS gateway_feedback (
        seq BIGINT PRIMARY KEY, request TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, body {bytes} NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS gateway_checkpoint (
        id BIGINT PRIMARY KEY, seq BIGINT NOT NULL, features TEXT NOT NULL, state {bytes} NOT NULL,
        extra {bytes} NOT NULL)""",
)
WRITE_REQUEST = """INSERT INTO gateway_request (id, attempt, tenant, day, at, backend, kind, state, cost, detail)
    VALUES (:id, :attempt, :tenant, :day, :at, :backend, :kind, :state, :cost, :detail)
    ON CONFLICT (id, attempt) DO UPDATE SET state = excluded.state, cost = excluded.cost, detail = excluded.detail"""
WRITE_LEARNT = "INSERT INTO gateway_learnt (seq, request, body) VALUES (:seq, :request, :body)"
WRITE_FEEDBACK = "INSERT INTO gateway_feedback (seq, request, at, body) VALUES (:seq, :request, :at, :body)"
WRITE_CHECKPOINT = """INSERT INTO gateway_checkpoint (id, seq, features, state, extra)
    VALUES (1, :seq, :features, :state, :extra)
    ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, features = excluded.features, state = excluded.state,
    extra = excluded.extra"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request at a back end. `state` is started, done, failed or left; `cost` is what is reserved until it has ended."""

    id: str
    attempt: int
    tenant: str
    day: str
    at: float
    backend: str
    kind: str
    state: str
    cost: float
    detail: dict[str, Any]


Statement = tuple[str, dict[str, Any], Callable[[], None] | None]
"""SQL, its parameters, and a function to call in the writing thread when it is stored."""


class Checkpoint(NamedTuple):
    """What was learnt up to observation `seq`, from features of one making, and means beside it."""

    seq: int
    features: str
    state: bytes
    extra: dict[str, Any]


class Database(ABC):
    """A connection; SQL names its parameters `:name`."""

    bytes: str

    @abstractmethod
    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""

    @abstractmethod
    def write(self, statements: list[tuple[str, dict[str, Any]]]) -> None:
        """Run statements in one transaction."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class Sqlite(Database):
    """A file that one process uses at a time."""

    bytes = "BLOB"

    def __init__(self, path: str) -> None:
        try:
            self._db = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(AttributeError):
                self._db.close()
            rule = "database must be a file that can be written and that no other gateway uses"
            raise BadInput(f"{rule}; {path}: {error}") from None

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(sql, values).fetchall()

    def write(self, statements: list[tuple[str, dict[str, Any]]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                self._db.execute(sql, values)
            self._db.execute("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._db.close()


class Postgres(Database):
    """A server; a lock keeps other gateways away from the same log, and a lost connection is opened again."""

    bytes = "BYTEA"

    def __init__(self, url: str) -> None:
        import psycopg

        self._url, self._psycopg = url, psycopg
        try:
            self._db = self._connect()
        except psycopg.Error as error:
            raise BadInput(f"database must be a PostgreSQL that can be reached; {str(error).splitlines()[0]}") from None
        if not self.rows("SELECT pg_try_advisory_lock(:lock)", lock=LOCK)[0][0]:
            self.close()
            raise BadInput("database must not be in use by another gateway; it holds the lock of its log")

    def _connect(self) -> Any:
        return self._psycopg.connect(self._url, autocommit=True, connect_timeout=5)

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = self._db.execute(PARAMETER.sub(r"%(\1)s", sql), values)
        found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        return found

    def write(self, statements: list[tuple[str, dict[str, Any]]]) -> None:
        if self._db.closed:
            self._db = self._connect()
            self.rows("SELECT pg_try_advisory_lock(:lock)", lock=LOCK)
        with self._db.transaction():
            for sql, values in statements:
                self._db.execute(PARAMETER.sub(r"%(\1)s", sql), values)

    def close(self) -> None:
        self._db.close()


class Nowhere(Database):
    """Keeps nothing."""

    bytes = "BLOB"

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return []

    def write(self, statements: list[tuple[str, dict[str, Any]]]) -> None:
        pass

    def close(self) -> None:
        pass


def open_database(url: str | None) -> Database:
    """Open a database and create what is missing; None keeps nothing."""
    if url is None:
        return Nowhere()
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        database: Database = Sqlite(path)
    else:
        database = Postgres(url)
    database.write([(sql.format(bytes=database.bytes), {}) for sql in TABLES])
    return database


class Journal:
    """Writes the log, in the order of the calls, and reads it.

    `seq` is the number of the last observation. Calls return at once; `reserve` can be awaited until it is stored.
    """

    def __init__(self, url: str | None) -> None:
        self._database = open_database(url)
        self._lock = threading.Lock()  # between the writing thread and reads
        self._rows_to_write: list[Statement] = []
        self._flush: asyncio.TimerHandle | None = None
        self._waiting: queue.SimpleQueue[list[Statement] | None] = queue.SimpleQueue()
        self.dropped = self.failures = 0
        self.seq, self._feedback = self._last("gateway_learnt"), self._last("gateway_feedback")
        self._thread = threading.Thread(target=self._run, name="gateway journal", daemon=True)
        self._thread.start()

    # Writing

    def write(self, row: RequestRow) -> None:
        """Write a request, or what has become of it."""
        self._put(WRITE_REQUEST, _row(row))

    async def write_through(self, row: RequestRow, seconds: float) -> None:
        """Write a request, and return when it is stored; raise `Unavailable` if that takes too long."""
        loop, stored = asyncio.get_running_loop(), asyncio.Event()
        self._put(WRITE_REQUEST, _row(row), lambda: _call(loop, stored.set))
        self._hand_over()
        try:
            async with asyncio.timeout(seconds):
                await stored.wait()
        except TimeoutError:
            raise Unavailable(f"the database did not store a reservation within {seconds:g} s") from None

    def learn(self, request: str, observation: Observation) -> None:
        """Write an observation of the scheduler."""
        self.seq += 1
        body = msgspec.msgpack.encode(observation._asdict())
        self._put(WRITE_LEARNT, {"seq": self.seq, "request": request, "body": body})

    def feedback(self, request: str, body: dict[str, Any]) -> None:
        """Write feedback as it came."""
        self._feedback += 1
        encoded = msgspec.msgpack.encode(body)
        self._put(WRITE_FEEDBACK, {"seq": self._feedback, "request": request, "at": time.time(), "body": encoded})

    def checkpoint(self, features: str, state: bytes, extra: dict[str, Any]) -> None:
        """Write what was learnt from all observations so far."""
        values = {"seq": self.seq, "features": features, "state": state, "extra": msgspec.msgpack.encode(extra)}
        self._put(WRITE_CHECKPOINT, values)

    async def close(self) -> None:
        """Write all that waits, and close the database."""
        self._hand_over()
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, 10.0)
        with self._lock:
            self._database.close()

    def _put(self, sql: str, values: dict[str, Any], stored: Callable[[], None] | None = None) -> None:
        if len(self._rows_to_write) + self._waiting.qsize() >= MOST_WAITING:
            self.dropped += 1
            return
        self._rows_to_write.append((sql, values, stored))
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(FLUSH, self._hand_over)

    def _hand_over(self) -> None:
        """Give all rows to the writing thread."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._rows_to_write:
            self._waiting.put(self._rows_to_write)
            self._rows_to_write = []

    def _run(self) -> None:
        """Write what waits until None comes."""
        last = False
        while not last:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < 1000:
                    batch.append(self._waiting.get_nowait())
            last = None in batch
            rows = [row for rows in batch if rows is not None for row in rows]
            if not self._store([(sql, values) for sql, values, _ in rows], give_up=last):
                self.dropped += len(rows)
                continue
            for _, _, stored in rows:
                if stored is not None:
                    stored()

    def _store(self, statements: list[tuple[str, dict[str, Any]]], give_up: bool) -> bool:
        """Write statements, again and again while the database fails, or a few times before the end."""
        tries = 0
        while statements:
            try:
                with self._lock:
                    self._database.write(statements)
                return True
            except Exception as error:
                self.failures += 1
                tries += 1
                log.warning("the log cannot be written", extra={"reason": str(error)[:200], "rows": len(statements)})
                if give_up and tries >= 3:
                    return False
                time.sleep(RETRY)
        return True

    # Reading

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.rows(sql, **values)

    def _last(self, table: str) -> int:
        rows = self._rows(f"SELECT COALESCE(MAX(seq), 0) FROM {table}")
        return int(rows[0][0]) if rows else 0

    def spent(self, day: str) -> dict[str, float]:
        """Return what each tenant has spent on a day; requests that never ended count as reserved."""
        rows = self._rows("SELECT tenant, SUM(cost) FROM gateway_request WHERE day = :day GROUP BY tenant", day=day)
        return {tenant: float(cost) for tenant, cost in rows}

    def observations(self, after: int = 0) -> Iterator[Observation]:
        """Yield the observations after a number, in their order."""
        while True:
            rows = self._rows(
                "SELECT seq, body FROM gateway_learnt WHERE seq > :after ORDER BY seq LIMIT 10000", after=after
            )
            if not rows:
                return
            for seq, body in rows:
                after = seq
                yield Observation(**msgspec.msgpack.decode(bytes(body)))

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint, if there is one."""
        rows = self._rows("SELECT seq, features, state, extra FROM gateway_checkpoint WHERE id = 1")
        if not rows:
            return None
        seq, features, state, extra = rows[0]
        return Checkpoint(int(seq), features, bytes(state), msgspec.msgpack.decode(bytes(extra)))

    def find(self, request: str) -> RequestRow | None:
        """Return the last attempt of a request, if it is known."""
        names = ", ".join(RequestRow.__dataclass_fields__)
        rows = self._rows(
            f"SELECT {names} FROM gateway_request WHERE id = :id ORDER BY attempt DESC LIMIT 1", id=request
        )
        if not rows:
            return None
        values = dict(zip(RequestRow.__dataclass_fields__, rows[0], strict=True))
        return RequestRow(**values | {"detail": msgspec.msgpack.decode(bytes(values["detail"]))})


def _row(row: RequestRow) -> dict[str, Any]:
    return {
        "id": row.id, "attempt": row.attempt, "tenant": row.tenant, "day": row.day, "at": row.at, "backend": row.backend,
        "kind": row.kind, "state": row.state, "cost": row.cost, "detail": msgspec.msgpack.encode(row.detail),
    }  # fmt: skip


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function in the thread of an event loop, unless that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
