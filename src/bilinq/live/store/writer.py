"""Group commit: one thread that carries out all waiting operations in one transaction and answers after the commit."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bilinq.errors import BadInput, Refused, Unavailable
from bilinq.live.metrics import CommitMeter
from bilinq.live.store.connection import Connection
from bilinq.live.store.transaction import Transaction

T = TypeVar("T")
Operation = Callable[[Transaction], Any]
Task = tuple[Operation, asyncio.Future[Any]]
Outcome = tuple[Any, Exception | None]

LONGEST = 0.05
"""Seconds after which a batch is committed although more operations wait."""
BEAT = 1.0
"""Seconds without work after which the connection is checked."""


class Writer:
    """The only one who writes: operations in, durable results out. Lives as long as its connection.

    While a commit is under way further operations gather, and the next transaction takes them all; so the disk sets the
    pace of commits, not of operations. If an operation fails unexpectedly, its batch is undone, the others are run again
    and the one that failed is run alone: so an operation must change nothing but the database, and let its errors through.
    If the database itself fails, the writer ends: whoever relies on what was to be written must read it again.
    """

    def __init__(self, connection: Connection, on_lost: Callable[[], None], meter: CommitMeter) -> None:
        self.commits = 0
        self._meter = meter
        self._connection = connection
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._waiting: list[Task] = []
        self._closed = ""
        self._changed = threading.Condition()
        threading.Thread(target=self._live, name="bilinq-writer", daemon=True).start()

    def submit(self, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Return a future that has the operation's result once it is on disk; operations keep their order."""
        future: asyncio.Future[T] = self._loop.create_future()
        with self._changed:
            if self._closed:
                raise Unavailable(self._closed)
            self._waiting.append((operation, future))
            self._changed.notify()
        return future

    async def stop(self, reason: str) -> None:
        """Take no more operations, finish those that wait, close the connection."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify()
        await self._ended.wait()

    def _live(self) -> None:
        try:
            while not self._connection.lost and (batch := self._next()) is not None:
                self._serve(batch)
                if not self._waiting:
                    self._connection.tidy()
        finally:
            self._die()

    def _next(self) -> list[Task] | None:
        """Return all that waits, nothing when it is time to check the connection, None when it is time to end."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(BEAT)
            if not self._waiting and self._closed:
                return None
            batch, self._waiting = self._waiting, []
        return batch

    def _serve(self, batch: list[Task]) -> None:
        outcomes = self._outcomes(batch) if batch else self._check()
        done, rest = batch[: len(outcomes)], batch[len(outcomes) :]
        if rest:
            with self._changed:
                self._waiting[:0] = rest
        if done:
            self._call(_settle, done, outcomes)

    def _check(self) -> list[Outcome]:
        try:
            self._connection.check()
        except Exception as error:
            self._undo(error)
        return []

    def _outcomes(self, batch: list[Task]) -> list[Outcome]:
        """Return what became of the first tasks of the batch: of all, unless time ran out or one failed."""
        outcomes: list[Outcome] = []
        try:
            self._together(batch, outcomes)
        except Exception as error:
            away = self._undo(error)
            if away:
                self._give_up(away)
                return [(None, Unavailable(away)) for _ in batch]
            if 0 < len(outcomes) < len(batch):  # those before the one that failed, which is then the first of the rest
                return self._outcomes(batch[: len(outcomes)])
            return [self._alone(batch[0][0])]
        return outcomes

    def _together(self, batch: list[Task], outcomes: list[Outcome]) -> None:
        """Carry out tasks in one transaction until they are done or time runs out; note their outcomes."""
        began = time.monotonic()
        enough = began + LONGEST
        self._connection.begin()
        for operation, _ in batch:
            outcomes.append(self._attempt(operation))
            if time.monotonic() > enough:
                break
        self._commit()
        self._meter.note(len(outcomes), time.monotonic() - began)

    def _attempt(self, operation: Operation) -> Outcome:
        """Return an operation's result, or the reason for which it refused before it wrote."""
        self._connection.wrote = False
        try:
            return operation(self._connection), None
        except (Refused, BadInput) as error:
            if self._connection.wrote:
                raise
            return None, error

    def _alone(self, operation: Operation) -> Outcome:
        """Return what becomes of an operation in a transaction of its own."""
        began = time.monotonic()
        try:
            self._connection.begin()
            result = operation(self._connection)
            self._commit()
            self._meter.note(1, time.monotonic() - began)
        except Exception as error:
            away = self._undo(error)
            if away is None:
                return None, error
            self._give_up(away)
            return None, Unavailable(away)
        return result, None

    def _commit(self) -> None:
        try:
            self._connection.commit()
        except Exception as error:
            cause = self._connection.fault(error)
            if self._connection.lost:
                raise _InDoubt(f"{cause}; it is not known whether this was stored") from error
            raise
        self.commits += 1

    def _give_up(self, reason: str) -> None:
        """Take no more operations: those that wait may build on what has failed."""
        self._connection.lost = True
        with self._changed:
            self._closed = self._closed or reason

    def _undo(self, error: Exception) -> str | None:
        """Undo the transaction; return what is wrong with the database, or None if the operation is to blame."""
        cause = str(error) if isinstance(error, _InDoubt) else self._connection.fault(error)
        try:
            self._connection.rollback()
        except Exception as second:
            cause = cause or self._connection.fault(second) or f"cannot undo: {second}"
            self._connection.lost = True
        return cause

    def _die(self) -> None:
        """Refuse whatever waits, now and later, and tell that the writer has ended."""
        lost = self._connection.lost or not self._closed
        with self._changed:
            self._closed = self._closed or "the connection to the database was lost"
            rest, self._waiting = self._waiting, []
        self._connection.close()
        self._call(_settle, rest, [(None, Unavailable(self._closed)) for _ in rest])
        if lost:
            self._call(self._on_lost)
        self._call(self._ended.set)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop; if that is gone, so is everyone who could hear of it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class _InDoubt(Exception):
    """The connection was lost while it committed."""


def _settle(tasks: list[Task], outcomes: list[Outcome]) -> None:
    for (_, future), (result, error) in zip(tasks, outcomes, strict=True):
        if future.done():  # who asked was cancelled meanwhile
            continue
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # which no future can carry
            future.set_exception(RuntimeError("the operation raised StopIteration"))
        else:
            future.set_exception(error)
