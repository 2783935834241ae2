"""Batches of calls: many callers at the same time cost the database one operation."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from bilinq.errors import BadInput, Refused, Unavailable
from bilinq.live.store.transaction import Transaction

T = TypeVar("T")
Item = TypeVar("Item")
Write = Callable[[Callable[[Transaction], Any]], Awaitable[Any]]
"""`Store.write`, `Store.read` or a substitute."""
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
            _settle(future, result)

    def _results(self, tx: Transaction, items: list[Item]) -> Sequence[T | Refused | BadInput]:
        results = self._operation(tx, items)
        if len(results) != len(items):
            raise RuntimeError(f"the operation must return {len(items)} results; got {len(results)}")
        return results


def _settle(future: asyncio.Future[T], result: T | Exception) -> None:
    if future.done():  # the caller was cancelled meanwhile
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
