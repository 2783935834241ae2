"""Reads beside the writer: a few threads, each with a connection that cannot write."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bilinq.errors import Unavailable
from bilinq.live.store.connection import Connection
from bilinq.live.store.transaction import Transaction

T = TypeVar("T")
THREADS = 2


class Reader:
    """Runs operations that only read; each sees one moment of what is committed."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._idle: list[Connection] = []
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bilinq-reader")
        self._closed = False

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        """Return the operation's result."""
        if self._closed:
            raise Unavailable("the store is stopped")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, operation)

    def read_now(self, operation: Callable[[Transaction], T]) -> T:
        """Return the operation's result, while this thread waits; each query of it sees a moment of its own."""
        if self._closed:
            raise Unavailable("the store is stopped")
        return self._run(operation, together=False)

    async def stop(self) -> None:
        """Finish what is being read and close the connections."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _run(self, operation: Callable[[Transaction], T], together: bool = True) -> T:
        while self._idle:
            try:
                return self._with(self._idle.pop(), operation, together)
            except (IndexError, _Lost):  # another thread was faster, or the database was away meanwhile
                continue
        try:
            return self._with(self._connect(), operation, together)
        except _Lost as error:
            raise Unavailable(str(error)) from error

    def _with(self, connection: Connection, operation: Callable[[Transaction], T], together: bool) -> T:
        try:
            if together:
                connection.begin()
            return operation(connection)
        except StopIteration as error:  # which no future can carry
            raise RuntimeError("the operation raised StopIteration") from error
        except Exception as error:
            cause = connection.fault(error)
            if cause is None:
                raise
            connection.lost = True
            raise _Lost(cause) from error
        finally:
            self._put_back(connection)

    def _put_back(self, connection: Connection) -> None:
        """Keep a connection for the next read, if it is still good."""
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
