"""Server-sent events for any number of viewers; what is new is put into bytes once, and all get the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import msgspec

from bilinq.errors import Away, Busy

VIEWERS = 500
"""Most viewers at a time."""
QUIET = 15.0
"""Seconds without news after which a comment shows that the connection lives."""
COMMENT = b":\n\n"


def event(name: str, body: bytes | msgspec.Struct, id: str | None = None) -> bytes:
    """Return an event in the format of text/event-stream; the JSON in it has no line breaks."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"event: {name}\n" if id is None else f"id: {id}\nevent: {name}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


class Feed:
    """Passes on news. There is no queue for each viewer: who is behind is told everything since what it has seen."""

    def __init__(self) -> None:
        self.viewers = 0
        self._epoch = self._number = 0
        self._news, self._id = b"", ""
        self._next: asyncio.Future[None] | None = None
        self._over = asyncio.Event()

    def publish(self, id: str, news: bytes) -> None:
        """Give all viewers news, the moment of `id` among them."""
        self._number += 1
        self._news, self._id = news, id
        self._wake()

    def let_go(self) -> None:
        """End the streams of all who watch now."""
        self._epoch += 1
        self._wake()

    def end(self) -> None:
        """End all streams, and let nobody watch any more."""
        self._over.set()
        self.let_go()

    async def follow(self, after: str | None, catch_up: Callable[[str | None], bytes]) -> AsyncGenerator[bytes, None]:
        """Yield news: first all since the moment of id `after`, as `catch_up` returns it, then those that come."""
        if self._over.is_set():
            raise Away("the service is stopping", retry_after=1.0)
        if self.viewers >= VIEWERS:
            raise Busy(f"there are {self.viewers} viewers, as many as there may be", retry_after=5.0)
        self.viewers += 1
        try:
            epoch, seen = self._epoch, self._number
            news = catch_up(after)
            while epoch == self._epoch:
                after = self._id
                yield news
                if epoch != self._epoch:  # let go while the news were on their way
                    break
                if self._number == seen and not await self._wait():
                    news = COMMENT
                else:
                    news = self._news if self._number == seen + 1 else catch_up(after)
                seen = self._number
        finally:
            self.viewers -= 1

    async def until_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, for instance hand on a stream from elsewhere, until it is done or all streams end."""
        working, over = asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((working, over), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            over.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _wait(self) -> bool:
        """Return when there are news, or False if there are none for a while."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait((self._next,), timeout=QUIET)
        return bool(done)

    def _wake(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None
