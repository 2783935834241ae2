"""The store: everything that must outlive the process. One process leads and writes, every process reads."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from functools import partial
from math import inf
from os import PathLike
from pathlib import Path
from typing import TypeVar

from bilinq.errors import BadInput, Unavailable
from bilinq.live.metrics import CommitMeter
from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.schema import migrate
from bilinq.live.store.threads import Reader, Writer
from bilinq.live.store.transaction import DatabaseConnection, Transaction

T = TypeVar("T")
Leadership = tuple[DatabaseConnection, int]  # the connection that writes, with the lock, and the epoch before this one
POLL, REST = 0.25, 0.1  # least seconds from the begin of an attempt to take the lock to the next, and from its end


class Store(ABC):
    """A database with one writing connection, which the leader has, and a few that read.

    `lost` is set when the writing connection is lost; `reconnect` clears it. `epoch` counts leaders: each adds one.
    A database that does not answer for `timeout` seconds counts as lost.
    """

    shared = False
    """Whether other processes may wait for the lock and take over."""

    def __init__(self, lead: bool, timeout: float) -> None:
        self.timeout = timeout
        self.lost = asyncio.Event()
        self.epoch = 0
        self.meter = CommitMeter()
        self._leads = lead
        self._closed = "this process does not lead"
        self._writer: Writer | None = None
        self._reader = Reader(partial(self._connect, writes=False))

    @property
    def commits(self) -> int:
        """The number of commits on the current writing connection."""
        return self._writer.commits if self._writer else 0

    @property
    def reason(self) -> str:
        """Why nothing can be written; empty as long as it can."""
        return self._writer.reason if self._writer else self._closed

    async def start(self, *, wait: bool = True) -> None:
        """Connect; if this process is to lead, take the lock and bring the tables up to date.

        If another process has the lock, PostgreSQL with `wait` waits for it; otherwise `Unavailable` is raised.
        """
        if self._leads:
            await self._take_lead(wait=wait, retry=False)
        else:
            await self.read(lambda tx: tx.rows("SELECT 1"))

    async def lead(self) -> None:
        """Wait until the lock is free, without a time limit, and lead. May be cancelled."""
        await self._take_lead(wait=True, retry=True)

    async def reconnect(self) -> bool:
        """Try until there is a connection with the lock again; return whether another process led in between.

        What was in progress when the connection broke may be stored or not, so read again what you rely on.
        """
        epoch = self.epoch
        if self._writer is not None:
            await self._writer.stop("the database is being reconnected")
        return await self._take_lead(wait=True, retry=True) != epoch

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Return the operation's result once all that it wrote is on disk.

        The operation checks first and writes afterwards: a `Refused` or `BadInput` raised before it wrote costs
        nothing. It runs in another thread, possibly more than once, even if the caller is cancelled while it waits.
        `Unavailable` means that the database failed; the message says so if it is not known whether the operation
        was stored.
        """
        return await self.submit(operation)

    def submit(self, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Queue an operation now, behind those before it, and return the future of what `write` returns."""
        if self._writer is None:
            raise Unavailable(self._closed)
        return self._writer.submit(operation)

    async def read(self, operation: Callable[[Transaction], T], *, patient: bool = False) -> T:
        """Return the result of an operation that only reads, from one snapshot of what is committed.

        A `patient` caller waits as long as there are answers to single statements.
        """
        late = asyncio.timeout(None if patient else self.timeout)
        try:
            async with late:
                return await self._reader.read(operation)
        except TimeoutError as error:
            if not late.expired():
                raise
            raise Unavailable(f"the database is unavailable: no answer for {self.timeout:g} s") from error

    def look_up(self, operation: Callable[[Transaction], T]) -> T:
        """Return the result of an operation that reads a few rows by their key, each query from a snapshot of its own.

        Without a database server this is quicker than waiting for another thread.
        """
        return self._reader.read_now(operation)

    async def notifications(self, every: float) -> AsyncGenerator[None, None]:
        """Yield at once, after each job that SQL has enqueued, and at least `every` so many seconds; SQLite never does.

        Raise `Unavailable` if the connection for it is lost.
        """
        return
        yield

    async def stop(self) -> None:
        """Finish the operations in progress, close all connections, release the lock."""
        self._closed = "the store is stopped"
        await self._reader.stop()
        if self._writer is not None:
            await self._writer.stop(self._closed, patient=False)
            self._writer = None
        await asyncio.to_thread(self._release)

    async def _take_lead(self, *, wait: bool, retry: bool) -> int:
        """Become the leader; return the epoch before."""
        try:
            connection, before = await self._win(wait=wait, retry=retry)
        except BaseException:
            self._release()
            raise
        self.epoch = before + 1
        self._writer = Writer(connection, self.lost.set, self.meter, self.timeout)
        self.lost.clear()
        return before

    async def _win(self, *, wait: bool, retry: bool) -> Leadership:
        """Try until the lock is taken; with `retry`, also while no connection can be made.

        Attempts begin at equal times: on a busy machine each takes as long as the pause, and a leader that is frozen is
        replaced after a number of them.
        """
        while True:
            due = time.monotonic() + POLL
            try:
                won = await self._attempt()
            except Unavailable:
                if not retry:
                    raise
            else:
                if won is not None:
                    return won
                if not wait:
                    raise Unavailable("another process leads on this database")
            await asyncio.sleep(max(due - time.monotonic(), REST))

    async def _attempt(self) -> Leadership | None:
        """Try once; if cancelled meanwhile, close the connection that the attempt makes."""
        attempt = asyncio.get_running_loop().run_in_executor(None, self._enter)
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                if won := await attempt:
                    won[0].close()
            raise

    def _enter(self) -> Leadership | None:
        connection = self._connect_writer()
        if connection is None:
            return None
        connection.allow(inf)  # an upgrade of large tables takes its time
        before = _raise_epoch(connection)
        connection.allow(self.timeout)
        return connection, before

    @abstractmethod
    def _connect_writer(self) -> DatabaseConnection | None:
        """Return a writing connection with the lock, or None to wait for it; raise `Unavailable` if neither helps."""

    @abstractmethod
    def _connect(self, *, writes: bool) -> DatabaseConnection:
        """Return a connection that can write or only read; raise `Unavailable` if there is none."""

    @abstractmethod
    def _release(self) -> None:
        """Release the lock, once the connection is closed."""

    @abstractmethod
    async def backup(self, path: str | PathLike[str]) -> None:
        """Copy a snapshot of the database to a new file."""

    @abstractmethod
    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        """Replace the database by a backup; call it instead of `start`."""


def _raise_epoch(connection: DatabaseConnection) -> int:
    """Bring the tables up to date and add one to the epoch; return the epoch before."""
    try:
        connection.begin()
        migrate(connection)
        before = int(get_meta(connection, "epoch") or 0)
        put_meta(connection, "epoch", str(before + 1))
        connection.commit()
    except Exception as error:
        cause = connection.fault(error)
        connection.close()
        if cause is None:
            raise
        raise Unavailable(cause) from error
    return before


def open_store(url: str, *, lead: bool = True, timeout: float = 10.0) -> Store:
    """Return the store at `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://...`, not yet started.

    With `lead`, `start` takes the lock that allows one process to write; without, the store only reads until `lead()`.
    A database that does not answer for `timeout` seconds is unavailable.
    """
    scheme, colon, rest = url.partition("://")
    if colon and scheme == "sqlite" and len(rest) > 1 and rest[0] == "/" and rest[-1] != "/" and rest != "/:memory:":
        from bilinq.live.store.sqlite import SqliteStore

        return SqliteStore(Path(rest[1:]), lead=lead, timeout=timeout)
    if colon and scheme in ("postgresql", "postgres"):
        from bilinq.live.store.postgres import PostgresStore

        return PostgresStore(url, lead=lead, timeout=timeout)
    shown = url.partition("@")[2] or url  # the part before an @ may contain a password
    raise BadInput(f"database must be sqlite:///FILE or postgresql://...; got {shown!r}")
