"""A database that several processes share: a model of PostgreSQL's sessions and of the lock that the leader has.

Rows are in the real SQLite. The model has what matters for who leads: a session ends when its process does, after five
silent seconds between two transactions, and never by itself within one. A process that waits for the lock ends the session
of a leader that was silent for a dozen polls.

The server itself may be slow, hang or be gone. While it hangs, a client gives up after a while, but its session lives on:
what it sent last, also a COMMIT, is carried out when the server goes on. When the server is gone, so are all sessions.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store.sqlite import SqliteConnection
from bilinq.live.store.store import Store
from bilinq.live.store.transaction import Bulk, DatabaseConnection, R, Row
from simulator.world import World

IDLE = 5.0  # seconds of silence between two transactions after which a session ends
FROZEN = 12  # polls in a row at which the leader has sent nothing until its session is ended
CONNECT, ANSWER = 3.0, 10.0  # seconds after which a client gives up to connect, and to wait for an answer


class Silent(sqlite3.OperationalError):
    """The server has not answered in time."""


class Database:
    """The server: the file with its rows, the sessions, and the one that has the lock.

    Until the time `hung` it answers nobody, and until `gone` it accepts no connection.
    """

    ends_frozen_leaders = True
    """Whether a process that waits for the lock ends the session of a leader that is silent."""

    def __init__(self, world: World, path: Path) -> None:
        self.world, self.path = world, path
        self.holder: Session | None = None
        self.sessions: dict[Session, None] = {}
        self.hung, self.gone = 0.0, 0.0

    def hang(self, until: float) -> None:
        """Answer nobody for a while."""
        self.hung = max(self.hung, until)

    def leave(self, until: float) -> None:
        """End all sessions, and accept no connection for a while."""
        self.gone = max(self.gone, until)
        for session in list(self.sessions):
            session.end()

    def answer(self, longest: float) -> None:
        """Let the client wait while the server hangs; raise `Silent` if that takes too long."""
        left = self.hung - self.world.now
        if left > 0.0:
            self.world.pause(min(left, longest))
        if left > longest:
            raise Silent(f"no answer for {longest:g} s")

    def lock(self, session: Session) -> bool:
        """Give a session the lock if no other has it."""
        holder = self.holder
        if holder is not None and not holder.in_transaction and self.world.now > holder.spoke + IDLE:
            holder.end()
        if self.holder is None:
            self.holder = session
        return self.holder is session


class Session(SqliteConnection):
    """A connection to the server; it also sees that its client is silent, and may be ended by the server."""

    def __init__(self, database: Database, *, writes: bool) -> None:
        self._database, self.spoke, self.ended, self._commits = database, database.world.now, False, False
        database.answer(CONNECT)
        super().__init__(database.path, writes=writes)
        database.sessions[self] = None
        database.world.process.on_kill.append(self.end)
        if database.gone > database.world.now:
            self.end()
            raise sqlite3.OperationalError("connection refused")

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is in progress."""
        return not self.ended and self._db.in_transaction

    def end(self) -> None:
        """Disconnect, and release the lock."""
        if not self.ended:
            self.ended = True
            self._db.close()  # which rolls back
            del self._database.sessions[self]
        if self._database.holder is self:
            self._database.holder = None

    def speak(self) -> None:
        """Send something, and wait for the answer if the server hangs."""
        self.spoke = self._database.world.now
        self._database.answer(ANSWER)

    def begin(self) -> None:
        self.speak()
        super().begin()

    def commit(self) -> None:
        self._commits = True
        self.speak()
        super().commit()
        self._commits, self.spoke = False, self._database.world.now

    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        self.speak()
        return super().rows(sql, **params)

    def run(self, sql: str, /, **params: Any) -> int:
        self.speak()
        return super().run(sql, **params)

    def each(self, bulk: Bulk[R], rows: Sequence[R]) -> None:
        self.speak()
        super().each(bulk, rows)

    def rollback(self) -> None:
        if not self.ended and not self.stalled:
            self._commits = False
            super().rollback()

    def tidy(self) -> None:
        pass  # the server does that

    def check(self) -> None:
        self.rows("SELECT 1")

    def fault(self, error: Exception) -> str | None:
        if isinstance(error, Silent):
            self.lost = self.stalled = True
            return str(error)
        if self.ended:
            self.lost = True
            return "the connection to the database was lost"
        return super().fault(error)

    def close(self) -> None:
        if self.stalled:  # the server does not know yet that its client has gone
            self._database.world.at(self._database.hung, self._leave)
        else:
            self.end()

    def _leave(self) -> None:
        """End, after what was sent last."""
        if self._commits and not self.ended:
            sqlite3.Connection.execute(self._db, "COMMIT")
        self.end()


class SharedStore(Store):
    """A store in such a database."""

    shared = True

    def __init__(self, database: Database) -> None:
        self._database, self._candidate = database, None
        self._sign: tuple[Session, float] | None = None
        self._polls = 0
        super().__init__(lead=True, timeout=10.0)

    _candidate: Session | None

    def _connect_writer(self) -> DatabaseConnection | None:
        candidate = self._candidate or self._connect(writes=True)
        self._candidate = None
        try:
            candidate.check()
        except sqlite3.Error as error:
            candidate.fault(error)
            candidate.close()
            raise Unavailable(f"the database cannot be locked: {error}") from error
        if self._database.lock(candidate):
            return candidate
        self._candidate = candidate
        self._end_frozen_leader()
        return None

    def _end_frozen_leader(self) -> None:
        holder = self._database.holder
        sign = None if holder is None else (holder, holder.spoke)
        self._sign, self._polls = sign, self._polls + 1 if sign == self._sign else 0
        if self._polls >= FROZEN and holder is not None and self._database.ends_frozen_leaders:
            holder.end()

    def _connect(self, *, writes: bool) -> Session:
        try:
            return Session(self._database, writes=writes)
        except sqlite3.Error as error:
            raise Unavailable(f"the database cannot be reached: {error}") from error

    def _release(self) -> None:
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None

    async def notifications(self, every: float) -> AsyncGenerator[None, None]:
        await asyncio.Event().wait()  # no SQL enqueues jobs here
        yield

    async def backup(self, path: str | PathLike[str]) -> None:
        raise BadInput("not simulated")

    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        raise BadInput("not simulated")
