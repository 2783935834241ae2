"""Which process leads, and what the leader does in the background: slots, checkpoints, deletion of expired rows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from bilinq.errors import Unavailable
from bilinq.live.service.configuration import warm_up
from bilinq.live.service.retention import Retention

if TYPE_CHECKING:
    from bilinq.live.service.inbox import Inbox
    from bilinq.live.service.recovery import Recovery
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots

log = logging.getLogger("bilinq.live")

DELETE_EVERY = 10.0  # seconds between two deletions of expired rows


class Leadership:
    """Starts and stops the service: one process leads, the others follow until it is gone."""

    def __init__(self, replica: Replica, slots: Slots, recovery: Recovery, inbox: Inbox) -> None:
        self._replica, self._slots, self._recovery, self._inbox = replica, slots, recovery, inbox

    async def start(self, address: str | None = None) -> None:
        """Lead if no other process does, else follow; `address` is where other processes reach this one."""
        replica = self._replica
        replica.address = address
        await asyncio.to_thread(warm_up, replica.settings)
        replica.spawn(self._recovery.run())
        try:
            await replica.store.start(wait=False)
        except Unavailable:
            if not replica.store.shared:
                raise
            replica.following = True
            replica.spawn(self._follow())
        else:
            await self._lead()

    async def stop(self) -> None:
        """End polls and slots, finish writes, save what was learnt, and let another process lead."""
        replica = self._replica
        memory = replica.close()
        for task in list(replica.tasks):
            task.cancel()
        await asyncio.gather(*replica.tasks, return_exceptions=True)
        if memory is not None and not replica.following and not replica.store.lost.is_set():
            with _tolerating("the last checkpoint"):
                await self._recovery.checkpoint(memory)
        await replica.store.stop()

    async def _lead(self) -> None:
        replica, every = self._replica, self._replica.settings.checkpoint_every
        replica.spawn(self._slots.run())
        replica.spawn(self._repeat("a checkpoint", every, lambda: self._recovery.checkpoint(replica.memory)))
        retention = Retention(replica, time.time(), time.monotonic())
        replica.spawn(self._repeat("deletion of expired rows", DELETE_EVERY, retention.run))
        replica.spawn(self._recovery.watch_connection())
        if replica.store.shared:
            replica.spawn(self._inbox.run())
        await self._recovery.load()
        self._replica.following = False

    async def _follow(self) -> None:
        async with self._replica.finding_leader():
            await self._replica.store.lead()
        try:
            await self._lead()
        except Unavailable as error:  # lost again already, before recovery watched it
            self._replica.fail(str(error))
        else:
            log.warning("this process leads now")

    async def _repeat(self, what: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every)
            if self._replica.ready:
                with _tolerating(what):
                    await work()


@contextlib.contextmanager
def _tolerating(what: str) -> Iterator[None]:
    """Continue after a failure, which is logged; that the database is unavailable was logged before."""
    try:
        yield
    except Unavailable:
        pass
    except Exception:
        log.exception("%s failed", what)
