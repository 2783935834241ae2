"""The last hour of samples, and the feed that viewers follow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from bilinq.errors import Busy, Unavailable
from bilinq.live.wire.samples import Layout, Sample

BY_JOB = ("queued", "leased", "submitted", "finished", "reward")
BY_SERVER = ("idle", "busy")


class Kept(NamedTuple):
    """A moment as JSON, with its id."""

    id: str
    json: bytes


class Ring:
    """The newest `size` moments of a `start` of the service, numbered from one."""

    def __init__(self, start: str, size: int) -> None:
        self.start = start
        self.last = 0
        self._kept: deque[Kept] = deque(maxlen=size)

    @property
    def next_id(self) -> str:
        """Id for the next moment."""
        return f"{self.start}-{self.last + 1}"

    def add(self, moment: Sample) -> Kept:
        """Keep the next moment and return it as JSON."""
        kept = Kept(moment.id, msgspec.json.encode(moment))
        self.last += 1
        self._kept.append(kept)
        return kept

    def after(self, id: str | None, limit: int | None = None) -> list[Kept]:
        """Return the moments after that of `id`, all if it is not known, oldest first; with a limit the newest of them."""
        count = min(self.last - self._number(id), len(self._kept), len(self._kept) if limit is None else limit)
        return list(islice(self._kept, len(self._kept) - count, None))

    def rearrange(self, before: Layout, after: Layout) -> None:
        """Bring what is kept into the order of other classes; a class that was not there had nothing."""
        if (before.job_classes, before.server_classes) == (after.job_classes, after.server_classes):
            return  # only a knob was turned
        jobs = _places(before.job_classes, after.job_classes)
        servers = _places(before.server_classes, after.server_classes)
        for place, kept in enumerate(self._kept):
            moment = msgspec.json.decode(kept.json)
            for name in BY_JOB:
                moment[name] = _moved(moment[name], jobs)
            for name in BY_SERVER:
                moment[name] = _moved(moment[name], servers)
            self._kept[place] = Kept(kept.id, msgspec.json.encode(moment))

    def _number(self, id: str | None) -> int:
        """Return the number in the id of a moment; zero if there was no such moment."""
        start, _, number = (id or "").rpartition("-")
        known = start == self.start and number.isascii() and number.isdigit() and len(number) < 18
        return int(number) if known and int(number) <= self.last else 0


def _places(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    known = {name: place for place, name in enumerate(before)}
    return [known.get(name) for name in after]


def _moved(values: list[float], places: Sequence[int | None]) -> list[float]:
    return [0 if place is None else values[place] for place in places]


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
            raise Unavailable("the service is stopping", retry_after=1.0)
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
