"""Where everything that must outlive the process is kept: one leader writes, everyone reads."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from typing import TypeVar

from bilinq.errors import Unavailable
from bilinq.live.metrics import CommitMeter
from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.connection import Connection
from bilinq.live.store.reader import Reader
from bilinq.live.store.schema import migrate
from bilinq.live.store.transaction import Transaction
from bilinq.live.store.writer import Writer

T = TypeVar("T")
Lead = tuple[Connection, int]
POLL = 0.25
"""Seconds between two attempts to connect and to take the lock."""


class Store(ABC):
    """A database with one writing connection, held by the leader, and a few that read.

    `lost` is set when the writing connection is gone; `reconnect` clears it. `epoch` counts leaders: each raises it by one.
    """

    shared = False
    """Whether other processes may wait for the lock and take over."""

    def __init__(self, lead: bool) -> None:
        self.lost = asyncio.Event()
        self.epoch = 0
        self.meter = CommitMeter()
        self._leads = lead
        self._away = "this process does not lead"
        self._writer: Writer | None = None
        self._reader = Reader(self._connect_reader)

    @property
    def commits(self) -> int:
        """How often the present writing connection has committed."""
        return self._writer.commits if self._writer else 0

    async def start(self, *, wait: bool = True) -> None:
        """Connect; if this process is to lead, take the lock and bring the tables up to date.

        Who finds the lock taken waits for it with PostgreSQL and `wait`, and otherwise gets `Unavailable`.
        """
        if self._leads:
            await self._take_lead(wait=wait, stubborn=False)
        else:
            await self.read(lambda tx: tx.rows("SELECT 1"))

    async def lead(self) -> None:
        """Wait, however long it takes, until the lock is free; then lead. May be cancelled."""
        await self._take_lead(wait=True, stubborn=True)

    async def reconnect(self) -> bool:
        """Try until there is a connection and the lock again; tell whether another leader was there in between.

        What was under way when the connection broke may be stored or not, so read again what you rely on.
        """
        epoch = self.epoch
        if self._writer is not None:
            await self._writer.stop("the database is being reconnected")
        return await self._take_lead(wait=True, stubborn=True) != epoch

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Return the operation's result once all that it wrote is on disk.

        The operation checks first and then writes: `Refused` or `BadInput` raised before it wrote costs nothing. It runs
        in another thread, possibly more than once, and even if the caller is cancelled while it waits. `Unavailable` means
        that the database failed; the message tells if it is not known whether the operation was stored.
        """
        return await self.submit(operation)

    def submit(self, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Hand over an operation now, behind those before it, and return the future of what `write` returns."""
        if self._writer is None:
            raise Unavailable(self._away)
        return self._writer.submit(operation)

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        """Return the result of an operation that only reads; it sees one moment of what is committed."""
        return await self._reader.read(operation)

    def look_up(self, operation: Callable[[Transaction], T]) -> T:
        """Return the result of an operation that reads a few rows by their key, each query at a moment of its own.

        Where no server has to be asked, that is quicker than to wait for another thread.
        """
        return self._reader.read_now(operation)

    async def stop(self) -> None:
        """Finish what was begun, close all connections, give the lock back."""
        self._away = "the store is stopped"
        await self._reader.stop()
        if self._writer is not None:
            await self._writer.stop(self._away)
            self._writer = None
        await asyncio.to_thread(self._release)

    async def _take_lead(self, *, wait: bool, stubborn: bool) -> int:
        """Become the leader; return the epoch that was found."""
        try:
            connection, found = await self._won(wait=wait, stubborn=stubborn)
        except BaseException:
            self._release()
            raise
        self.epoch = found + 1
        self._writer = Writer(connection, self.lost.set, self.meter)
        self.lost.clear()
        return found

    async def _won(self, *, wait: bool, stubborn: bool) -> Lead:
        """Try until the lead is won; `stubborn` goes on when there is no connection to be had."""
        while True:
            try:
                lead = await self._attempt()
            except Unavailable:
                if not stubborn:
                    raise
            else:
                if lead is not None:
                    return lead
                if not wait:
                    raise Unavailable("another process leads on this database")
            await asyncio.sleep(POLL)

    async def _attempt(self) -> Lead | None:
        """Try once; if cancelled meanwhile, close what the attempt brings."""
        attempt = asyncio.get_running_loop().run_in_executor(None, self._enter)
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                if lead := await attempt:
                    lead[0].close()
            raise

    def _enter(self) -> Lead | None:
        """Connect, take the lock, bring the tables up to date; None if another process holds the lock."""
        connection = self._connect_writer()
        return (connection, _raise_epoch(connection)) if connection else None

    @abstractmethod
    def _connect_writer(self) -> Connection | None:
        """Return a writing connection with the lock, or None if the lock is worth waiting for; `Unavailable` if neither."""

    @abstractmethod
    def _connect_reader(self) -> Connection:
        """Return a connection that cannot write."""

    @abstractmethod
    def _release(self) -> None:
        """Give the lock back, once the connection is closed."""

    @abstractmethod
    async def backup(self, path: str | PathLike[str]) -> None:
        """Copy the database, as it is at one moment, to a new file."""

    @abstractmethod
    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        """Put a copy in the place of the database; call it instead of `start`."""


def _raise_epoch(connection: Connection) -> int:
    """Bring the tables up to date and raise the epoch; return the epoch that was found."""
    try:
        connection.begin()
        migrate(connection)
        found = int(get_meta(connection, "epoch") or 0)
        put_meta(connection, "epoch", str(found + 1))
        connection.commit()
    except Exception as error:
        cause = connection.fault(error)
        connection.close()
        if cause is None:
            raise
        raise Unavailable(cause) from error
    return found
