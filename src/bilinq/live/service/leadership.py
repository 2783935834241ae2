"""Which process leads, and what the leader does in the background: slots, checkpoints, deletion of expired rows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from bilinq.errors import Unavailable
from bilinq.live.service.configuration import SchedulerClasses, new_scheduler
from bilinq.live.store.class_tables import remove_servers
from bilinq.live.store.job_tables import count_awaited, purge_jobs
from bilinq.scheduler.classes import JobClass, ServerClass

if TYPE_CHECKING:
    from bilinq.live.service.inbox import Inbox
    from bilinq.live.service.recovery import Recovery
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.settings import ServiceSettings

log = logging.getLogger("bilinq.live")

DELETE_EVERY = 10.0  # seconds between two deletions of expired rows
DELETE_LIMIT = 5000  # jobs deleted with one commit


class Leadership:
    """Starts and stops the service: one process leads, the others follow until it is gone."""

    def __init__(self, replica: Replica, slots: Slots, recovery: Recovery, inbox: Inbox) -> None:
        self._replica, self._slots, self._recovery, self._inbox = replica, slots, recovery, inbox

    async def start(self, address: str | None = None) -> None:
        """Lead if no other process does, else follow; `address` is where other processes reach this one."""
        replica = self._replica
        replica.address = address
        await asyncio.to_thread(warm, replica.settings)
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
        replica.spawn(
            self._repeat("deletion of expired rows", DELETE_EVERY, lambda: delete_expired(replica, time.time()))
        )
        replica.spawn(self._recovery.watch_connection())
        if replica.store.shared:
            replica.spawn(self._inbox.run())
        await self._recovery.load()
        self._replica.following = False

    async def _follow(self) -> None:
        async with self._replica.finding_leader():
            await self._replica.store.lead()
        await self._lead()
        log.warning("this process leads now")

    async def _repeat(self, what: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every)
            if self._replica.ready:
                with _tolerating(what):
                    await work()


async def delete_expired(replica: Replica, now: float) -> None:
    """Delete jobs that ended, and servers that were offline, longer ago than the settings allow."""
    await _delete_servers(replica, now - replica.settings.server_retention)
    if replica.settings.retention is not None:
        delete = partial(purge_jobs, before=now - replica.settings.retention, limit=DELETE_LIMIT)
        while await replica.write(delete) == DELETE_LIMIT:
            pass
        memory = replica.memory
        memory.set_awaited(await replica.write(count_awaited))


async def _delete_servers(replica: Replica, before: float) -> None:
    """Delete servers that were offline since `before`; what happened before memory was loaded is not known."""
    if replica.loaded > before:
        return
    memory = replica.memory
    gone = memory.absent_since(before)
    for id in gone:
        memory.dismiss(id)
    if gone:
        log.info("deleting servers that were offline for too long: %d", len(gone))
        await replica.write(lambda tx: remove_servers(tx, *gone))


@contextlib.contextmanager
def _tolerating(what: str) -> Iterator[None]:
    """Continue after a failure, which is logged; that the database is unavailable was logged before."""
    try:
        yield
    except Unavailable:
        pass
    except Exception:
        log.exception("%s failed", what)


def warm(settings: ServiceSettings) -> None:
    """Run slots of a small scheduler, so that the first real one does not wait until kernels are loaded."""
    classes = SchedulerClasses([JobClass("job", [1.0])], [ServerClass("server", [1.0])])
    scheduler = new_scheduler(classes, structs.replace(settings, target_wait=None, V=1e-6))
    for _ in range(2):
        scheduler.submit("job")
        for task in scheduler.assign({"server": 1}):
            scheduler.report(task.job, reward=settings.reward.low)
