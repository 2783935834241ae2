"""The threads of a store: one that writes, with group commit, one that reads, and reads that share a transaction."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from bilinq.errors import BadInput, Refused, Unavailable
from bilinq.live.metrics import CommitMeter
from bilinq.live.store.transaction import DatabaseConnection, Transaction

T = TypeVar("T")
Operation = Callable[[Transaction], Any]
Task = tuple[Operation, asyncio.Future[Any]]
Result = tuple[Any, Exception | None]

LONGEST = 0.05  # seconds after which a batch is committed although more operations wait
BEAT = 0.5  # seconds without work after which the connection is checked; others take the lead where it is not for long
READERS = 2  # threads that read
LOOKS = 10
"""How often the same transaction is seen in progress until it counts as stalled. Looks count, not seconds: a process that
was frozen has not looked in the meantime."""


class Writer:
    """The only thread that writes: it runs operations and returns durable results, as long as its connection lasts.

    While a commit is in progress further operations queue up, and the next transaction runs them all; so the disk
    limits the rate of commits, not of operations. If an operation fails unexpectedly, its batch is rolled back, the
    others are run again, and the failed one is run alone. So an operation must change nothing but the database, and
    must let its errors through. If the database itself fails, the writer ends: read again what you rely on. If a
    transaction takes longer than `timeout` seconds, callers learn that at once, and the writer ends as soon as it can.
    """

    def __init__(
        self, connection: DatabaseConnection, on_lost: Callable[[], None], meter: CommitMeter, timeout: float
    ) -> None:
        self.commits = 0
        self._connection, self._on_lost, self._meter, self._timeout = connection, on_lost, meter, timeout
        self._loop = asyncio.get_running_loop()
        self._ended, self._over = asyncio.Event(), asyncio.Event()  # over: ended, or stalled
        self._waiting: list[Task] = []
        self._batch: list[Task] | None = None  # in progress
        self._turn = 0
        self._closed = ""
        self._changed = threading.Condition()
        self._look(self._turn, 0)
        threading.Thread(target=self._run, name="bilinq-writer", daemon=True).start()

    @property
    def reason(self) -> str:
        """Why it accepts no more operations; empty as long as it does."""
        return self._closed

    def submit(self, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Return a future of the operation's result, set once it is on disk; operations keep their order."""
        future: asyncio.Future[T] = self._loop.create_future()
        with self._changed:
            if self._closed:
                raise Unavailable(self._closed)
            self._waiting.append((operation, future))
            self._changed.notify()
        return future

    async def stop(self, reason: str, *, patient: bool = True) -> None:
        """Accept no more operations, finish those that wait, close the connection; wait for a stalled one if `patient`."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify()
        await (self._ended if patient else self._over).wait()

    def _look(self, turn: int, seen: int) -> None:
        """Notice a transaction that is still the one of the last looks."""
        if self._over.is_set():
            return
        seen = seen + 1 if self._batch is not None and self._turn == turn else 0
        if seen > LOOKS:
            self._abandon()
        else:
            self._loop.call_later(self._timeout / LOOKS, self._look, self._turn, seen)

    def _abandon(self) -> None:
        """Refuse what is in progress and what waits; the thread, which may be stuck in the kernel, ends when it returns."""
        reason = f"no answer for {self._timeout:g} s; it is not known whether this was stored"
        self._connection.lost = self._connection.stalled = True
        with self._changed:
            self._closed = self._closed or reason
            rest, self._waiting = [*(self._batch or ()), *self._waiting], []
        self._note_stall()
        _settle(rest, [(None, Unavailable(reason)) for _ in rest])
        self._on_lost()

    def _note_stall(self) -> None:
        if not self._over.is_set():
            self._meter.stalls += 1
        self._over.set()

    def _run(self) -> None:
        try:
            while not self._connection.lost and (batch := self._next()) is not None:
                self._batch, self._turn = batch, self._turn + 1
                self._serve(batch)
                self._connection.tidy()
                self._batch = None
        finally:
            self._end()

    def _next(self) -> list[Task] | None:
        """Return all waiting tasks; an empty list to check the connection, None when it is time to end."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(BEAT)
            if not self._waiting and self._closed:
                return None
            batch, self._waiting = self._waiting, []
        return batch

    def _serve(self, batch: list[Task]) -> None:
        results = self._results(batch) if batch else self._check()
        done, rest = batch[: len(results)], batch[len(results) :]
        if rest:
            with self._changed:
                self._waiting[:0] = rest
        if done:
            self._call(_settle, done, results)

    def _check(self) -> list[Result]:
        try:
            self._connection.check()
        except Exception as error:
            cause = self._undo(error)
            if self._connection.lost:
                self._give_up(cause or str(error))
        return []

    def _results(self, batch: list[Task]) -> list[Result]:
        """Return the results of the first tasks of the batch: of all, unless time ran out or one failed."""
        results: list[Result] = []
        try:
            self._run_together(batch, results)
        except Exception as error:
            cause = self._undo(error)
            if cause:
                self._give_up(cause)
                return [(None, Unavailable(cause)) for _ in batch]
            if len(batch) == 1:
                return [(None, error)]
            some = len(results) if 0 < len(results) < len(batch) else 1
            return self._results(batch[:some])  # those before the failed one, which is then the first of the rest
        return results

    def _run_together(self, batch: list[Task], results: list[Result]) -> None:
        """Run tasks in one transaction until all are done or time runs out; append their results."""
        began = time.monotonic()
        enough = began + LONGEST
        self._connection.begin()
        for operation, _ in batch:
            results.append(self._attempt(operation))
            if time.monotonic() > enough:
                break
        self._commit()
        self._meter.note(len(results), time.monotonic() - began)

    def _attempt(self, operation: Operation) -> Result:
        """Return an operation's result, or the error with which it refused before it wrote."""
        self._connection.wrote = False
        try:
            return operation(self._connection), None
        except (Refused, BadInput) as error:
            if self._connection.wrote:
                raise
            return None, error

    def _commit(self) -> None:
        if self._connection.lost:
            raise _InDoubt(self._closed)  # its callers were refused meanwhile
        try:
            self._connection.commit()
        except Exception as error:
            cause = self._connection.fault(error)
            if self._connection.lost:
                raise _InDoubt(f"{cause}; it is not known whether this was stored") from error
            raise
        self.commits += 1

    def _give_up(self, reason: str) -> None:
        """Accept no more operations: those that wait may build on what has failed."""
        self._connection.lost = True
        with self._changed:
            self._closed = self._closed or reason

    def _undo(self, error: Exception) -> str | None:
        """Roll back; return what is wrong with the database, or None if the operation caused the error."""
        cause = str(error) if isinstance(error, _InDoubt) else self._connection.fault(error)
        try:
            self._connection.rollback()
        except Exception as second:
            cause = cause or self._connection.fault(second) or f"cannot undo: {second}"
            self._connection.lost = True
        return cause

    def _end(self) -> None:
        """Refuse whatever waits, now and later, and report that the writer has ended."""
        lost = self._connection.lost or not self._closed
        with self._changed:
            self._closed = self._closed or "the connection to the database was lost"
            rest, self._waiting = self._waiting, []
        self._connection.close()
        self._call(_settle, rest, [(None, Unavailable(self._closed)) for _ in rest])
        if self._connection.stalled:
            self._call(self._note_stall)
        if lost:
            self._call(self._on_lost)
        self._call(self._over.set)
        self._call(self._ended.set)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop; if the loop is closed, nobody waits for it any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class _InDoubt(Exception):
    """The connection was lost while it committed."""


def _settle(tasks: list[Task], results: list[Result]) -> None:
    for (_, future), (result, error) in zip(tasks, results, strict=True):
        if future.done():  # the caller was cancelled meanwhile
            continue
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # which no future can carry
            future.set_exception(RuntimeError("the operation raised StopIteration"))
        else:
            future.set_exception(error)


class Reader:
    """A few threads, each with a connection that cannot write; an operation reads one snapshot of what is committed."""

    def __init__(self, connect: Callable[[], DatabaseConnection]) -> None:
        self._connect = connect
        self._idle: list[DatabaseConnection] = []
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="bilinq-reader")
        self._closed = False

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        """Return the operation's result."""
        if self._closed:
            raise Unavailable("the store is stopped")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, operation)

    def read_now(self, operation: Callable[[Transaction], T]) -> T:
        """Return the operation's result from the calling thread; each query reads a snapshot of its own."""
        if self._closed:
            raise Unavailable("the store is stopped")
        return self._run(operation, one_snapshot=False)

    async def stop(self) -> None:
        """Finish the reads in progress and close the connections."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _run(self, operation: Callable[[Transaction], T], one_snapshot: bool = True) -> T:
        while self._idle:
            try:
                return self._read_with(self._idle.pop(), operation, one_snapshot)
            except (IndexError, _Lost):  # another thread was faster, or the database was unavailable meanwhile
                continue
        try:
            return self._read_with(self._connect(), operation, one_snapshot)
        except _Lost as error:
            raise Unavailable(str(error)) from error

    def _read_with(
        self, connection: DatabaseConnection, operation: Callable[[Transaction], T], one_snapshot: bool
    ) -> T:
        try:
            if one_snapshot:
                connection.begin()
            return operation(connection)
        except StopIteration as error:  # which no future can carry
            raise RuntimeError("the operation raised StopIteration") from error
        except Exception as error:
            cause = connection.fault(error)
            if cause is None:
                raise
            connection.lost = True
            raise (Unavailable if connection.stalled else _Lost)(cause) from error
        finally:
            self._return(connection)

    def _return(self, connection: DatabaseConnection) -> None:
        try:
            connection.rollback()
        except Exception:
            connection.lost = True
        if connection.lost:
            connection.close()
        else:
            self._idle.append(connection)


class _Lost(Exception):
    """The database failed on a connection."""


Item = TypeVar("Item")
Write = Callable[[Callable[[Transaction], Any]], Awaitable[Any]]  # `Store.write`, `Store.read` or a substitute
MOST = 100  # most items of one operation


class Batcher(Generic[Item, T]):
    """An operation on many items that is called with one item at a time, and run by `write`.

    `operation` returns a result for each item, in order; a result that is a `Refused` or `BadInput` is raised in its
    caller. While one operation is in progress, the items for the next one queue up. If an operation fails on several
    items, each is tried alone.
    """

    def __init__(
        self, write: Write, operation: Callable[[Transaction, list[Item]], Sequence[T | Refused | BadInput]]
    ) -> None:
        self._write, self._operation = write, operation
        self._waiting: list[tuple[Item, asyncio.Future[T]]] = []
        self._work: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> T:
        """Return the result for `item` once the operation is complete."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._work is None:
            self._work = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            await self._serve(batch)
        self._work = None

    async def _serve(self, batch: list[tuple[Item, asyncio.Future[T]]]) -> None:
        items = [item for item, _ in batch]
        results: Sequence[T | Exception]
        try:
            results = await self._write(lambda tx: self._results(tx, items))
        except Unavailable as error:
            results = [Unavailable(str(error), error.retry_after) for _ in batch]
        except Exception as error:
            if len(batch) > 1:
                await asyncio.gather(*(self._serve([one]) for one in batch))
                return
            results = [error]
        for (_, future), result in zip(batch, results, strict=True):
            _settle_reads(future, result)

    def _results(self, tx: Transaction, items: list[Item]) -> Sequence[T | Refused | BadInput]:
        results = self._operation(tx, items)
        if len(results) != len(items):
            raise RuntimeError(f"the operation must return {len(items)} results; got {len(results)}")
        return results


def _settle_reads(future: asyncio.Future[T], result: T | Exception) -> None:
    if future.done():  # the caller was cancelled meanwhile
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
