"""A database that several processes share: a model of PostgreSQL's sessions and of the lock that the leader has.

Rows are in the real SQLite. The model has what matters for who leads: a session ends when its process does, after five
silent seconds between two transactions, and never by itself within one. A process that waits for the lock ends the session
of a leader that was silent for a dozen polls.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from os import PathLike
from pathlib import Path
from typing import Any

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store.sqlite import SqliteConnection
from bilinq.live.store.store import Store
from bilinq.live.store.transaction import DatabaseConnection
from simulator.world import World

IDLE = 5.0  # seconds of silence between two transactions after which a session ends
FROZEN = 12  # polls in a row at which the leader has sent nothing until its session is ended


class Database:
    """The server: the file with its rows, and the session that has the lock."""

    ends_frozen_leaders = True
    """Whether a process that waits for the lock ends the session of a leader that is silent."""

    def __init__(self, world: World, path: Path) -> None:
        self.world, self.path = world, path
        self.holder: Session | None = None

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
        self._database, self.spoke, self.ended = database, database.world.now, False
        super().__init__(database.path, writes=writes)
        database.world.process.on_kill.append(self.end)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is in progress."""
        return not self.ended and self._db.in_transaction

    def end(self) -> None:
        """Disconnect, and release the lock."""
        if not self.ended:
            self.ended = True
            self._db.close()  # which rolls back
        if self._database.holder is self:
            self._database.holder = None

    def begin(self) -> None:
        super().begin()
        self.spoke = self._database.world.now

    def commit(self) -> None:
        super().commit()
        self.spoke = self._database.world.now

    def run(self, sql: str, /, **params: Any) -> int:
        self.spoke = self._database.world.now
        return super().run(sql, **params)

    def rollback(self) -> None:
        if not self.ended:
            super().rollback()

    def tidy(self) -> None:
        pass  # the server does that

    def check(self) -> None:
        self.rows("SELECT 1")
        self.spoke = self._database.world.now

    def fault(self, error: Exception) -> str | None:
        if self.ended:
            self.lost = True
            return "the connection to the database was lost"
        return super().fault(error)

    def close(self) -> None:
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
        if candidate.ended:
            raise Unavailable("the connection to the database was lost")
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
