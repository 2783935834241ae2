"""Jobs that end, as a stream from the database: who was away gets what it missed, as long as it is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from bilinq.errors import Busy, Unavailable
from bilinq.live.service.ended import find
from bilinq.live.service.entities import number
from bilinq.live.store.admin_tables import largest_ids
from bilinq.live.watch.feed import QUIET, event
from bilinq.live.wire.queries import BadField
from bilinq.live.wire.samples import Position

if TYPE_CHECKING:
    from bilinq.live.service.ended import EndedFilter
    from bilinq.live.service.replica import Replica

READERS = 100  # most streams at a time
TICK = 0.1  # seconds between two looks whether jobs have ended


class EndedJobs:
    """Streams of jobs that end. Only what is on disk is sent, in the order of the ends."""

    def __init__(self, core: Replica) -> None:
        self._core, self._readers = core, 0
        self._over = False

    def end(self) -> None:
        """End all streams, and begin no more."""
        self._over = True

    async def start(self, after: str | None) -> int:
        """Return the number of the end with an id, or of the last one on disk; raise if there is no such id."""
        assert self._core.memory is not None  # raises while there is none
        last = (await self._core.store.read(largest_ids)).end
        if after is None:
            return last
        found = 0 if after == "e0" else number("e", after)
        if found is None or found > last:
            rule = "must be the id of an event of this service, such as e12, or e0 for the first"
            raise BadField("after", f"{rule}; got {after[:40]!r}, and the last is e{last}")
        return found

    async def follow(self, wanted: EndedFilter, after: str | None) -> AsyncGenerator[bytes, None]:
        """Yield jobs that match as events: those after the one with an id, then new ones; and now and then the position."""
        if self._over:
            raise Unavailable("the service is stopping", retry_after=1.0)
        if self._readers >= READERS:
            raise Busy(f"there are {READERS} streams of ended jobs, the most allowed; try again later", retry_after=5.0)
        last = await self.start(after)
        self._readers += 1
        sent, first = time.monotonic(), True
        try:
            while first or not self._is_over:
                found = await self._core.store.read(partial(find, wanted=wanted, after=last))
                last = found.last
                news = b"".join(event("job", job, job.event) for job in found.jobs)
                if news or first or time.monotonic() - sent > QUIET:
                    yield news + event("position", Position(f"e{last}"), f"e{last}")
                    sent, first = time.monotonic(), False
                if not found.more:
                    await self._wait(last, sent + QUIET)
        except Unavailable:
            if first:
                raise
            # else the reader connects again, and continues after the last position
        finally:
            self._readers -= 1

    @property
    def _is_over(self) -> bool:
        """Whether the service stops, or another process leads, to which readers must go."""
        return self._over or self._core.following

    async def _wait(self, last: int, until: float) -> None:
        """Return when another job has ended, at a time, or when the stream is to end."""
        await asyncio.sleep(TICK)
        while not self._is_over and time.monotonic() < until:
            if self._core.ready and self._core.memory.ids.last_end > last:
                return
            await asyncio.sleep(TICK)
