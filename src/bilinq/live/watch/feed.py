"""The last hour of samples, and the feed that viewers follow."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from bilinq.errors import Busy, Unavailable
from bilinq.live.wire.samples import Layout, Sample

VIEWERS = 500  # most viewers at a time
QUIET = 15.0  # seconds without news after which a comment keeps the connection alive
COMMENT = b":\n\n"
BY_JOB = ("queued", "leased", "submitted", "finished", "reward")
BY_SERVER = ("idle", "busy")


class KeptSample(NamedTuple):
    """A sample as JSON, with its id."""

    id: str
    json: bytes


class Ring:
    """The newest `size` samples since a start of the service, numbered from one; `start` identifies the start."""

    def __init__(self, start: str, size: int) -> None:
        self.start = start
        self.last = 0
        self._kept: deque[KeptSample] = deque(maxlen=size)

    @property
    def next_id(self) -> str:
        """The id of the next sample."""
        return f"{self.start}-{self.last + 1}"

    def add(self, sample: Sample) -> KeptSample:
        """Keep the next sample and return it as JSON."""
        kept = KeptSample(sample.id, msgspec.json.encode(sample))
        self.last += 1
        self._kept.append(kept)
        return kept

    def after(self, id: str | None, limit: int | None = None) -> list[KeptSample]:
        """Return the samples after the one with `id`, all if it is not known, oldest first; with a limit the newest."""
        count = min(self.last - self._number(id), len(self._kept), len(self._kept) if limit is None else limit)
        return list(islice(self._kept, len(self._kept) - count, None))

    def rearrange(self, before: Layout, after: Layout) -> None:
        """Bring the kept samples into the order of other classes; a class that was not there gets zeros."""
        if (before.job_classes, before.server_classes) == (after.job_classes, after.server_classes):
            return  # only a setting was updated
        orders = dict.fromkeys(BY_JOB, (before.job_classes, after.job_classes))
        orders |= dict.fromkeys(BY_SERVER, (before.server_classes, after.server_classes))
        for place, kept in enumerate(self._kept):
            sample = msgspec.json.decode(kept.json)
            for field, (old, new) in orders.items():
                values = dict(zip(old, sample[field], strict=True))
                sample[field] = [values.get(name, 0) for name in new]
            self._kept[place] = KeptSample(kept.id, msgspec.json.encode(sample))

    def _number(self, id: str | None) -> int:
        """Return the number in the id of a sample; zero if there is no such sample."""
        start, _, number = (id or "").rpartition("-")
        known = start == self.start and number.isascii() and number.isdigit() and len(number) < 18
        return int(number) if known and int(number) <= self.last else 0


def event(name: str, body: bytes | msgspec.Struct, id: str | None = None) -> bytes:
    """Return an event in the format of text/event-stream; its JSON has no line breaks."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"event: {name}\n" if id is None else f"id: {id}\nevent: {name}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


class Feed:
    """Sends news to all viewers, without a queue for each: a slow viewer gets everything since what it has seen."""

    def __init__(self) -> None:
        self.viewers = 0
        self._epoch = self._number = 0
        self._news, self._id = b"", ""
        self._next: asyncio.Future[None] | None = None
        self._over = asyncio.Event()

    def publish(self, id: str, news: bytes) -> None:
        """Send all viewers news that end with the sample `id`."""
        self._number += 1
        self._news, self._id = news, id
        self._wake()

    def disconnect(self) -> None:
        """End the streams of all current viewers."""
        self._epoch += 1
        self._wake()

    def end(self) -> None:
        """End all streams, and accept no more viewers."""
        self._over.set()
        self.disconnect()

    async def follow(self, after: str | None, catch_up: Callable[[str | None], bytes]) -> AsyncGenerator[bytes, None]:
        """Yield news: first all since the sample with id `after`, as `catch_up` returns it, then new ones."""
        if self._over.is_set():
            raise Unavailable("the service is stopping", retry_after=1.0)
        if self.viewers >= VIEWERS:
            raise Busy(f"there are {self.viewers} viewers, the most allowed; try again later", retry_after=5.0)
        self.viewers += 1
        try:
            epoch, seen = self._epoch, self._number
            news = catch_up(after)
            while epoch == self._epoch:
                after = self._id
                yield news
                if epoch != self._epoch:  # disconnected while the news was being sent
                    break
                if self._number == seen and not await self._wait():
                    news = COMMENT
                else:
                    news = self._news if self._number == seen + 1 else catch_up(after)
                seen = self._number
        finally:
            self.viewers -= 1

    async def until_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run some work, for instance forward a stream from the leader, until it is done or all streams end."""
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
        """Return True when there is news, or False if there is none for a while."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait((self._next,), timeout=QUIET)
        return bool(done)

    def _wake(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None
