"""Jobs that were enqueued with SQL, in a transaction of the application: the leader takes them from the inbox."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from bilinq.errors import BadInput, Busy, Refused, Unavailable
from bilinq.live.keys import Identity
from bilinq.live.service.outbox import from_text
from bilinq.live.store.inbox_tables import Enqueued, oldest_enqueued, remove_enqueued
from bilinq.live.wire.messages import BATCH, NewJob

if TYPE_CHECKING:
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.submissions import Submissions

log = logging.getLogger("bilinq.live")

AGAIN = 1.0  # seconds after which the inbox is looked at again without a notification


class Inbox:
    """Submits the jobs of the inbox, oldest first, and deletes them there.

    A job is submitted under its key before it is deleted from the inbox, so a crash in between submits it once.
    """

    def __init__(self, replica: Replica, submissions: Submissions) -> None:
        self._replica, self._submissions = replica, submissions

    async def run(self) -> None:
        """Empty the inbox at the start, after each notification, and from time to time, until cancelled."""
        while True:
            try:
                async with aclosing(self._replica.store.notifications(AGAIN)) as notifications:
                    async for _ in notifications:
                        if self._replica.ready:
                            await self.empty()
            except Unavailable:
                await asyncio.sleep(AGAIN)

    async def empty(self) -> None:
        """Submit all jobs of the inbox for which there is room."""
        while found := await self._replica.store.read(lambda tx: oldest_enqueued(tx, BATCH)):
            taken = [
                id
                for _, some in itertools.groupby(found, lambda one: one.namespace)
                for id in await self._take([*some])
            ]
            if taken:
                await self._replica.write(lambda tx, ids=taken: remove_enqueued(tx, ids))  # type: ignore[misc]
            if len(taken) < len(found):
                return

    async def _take(self, jobs: Sequence[Enqueued]) -> list[int]:
        """Submit jobs of one namespace, together or else one by one; return those that are done with."""
        who = Identity("sql", jobs[0].namespace, frozenset({"submit"}))
        try:
            new = [NewJob(one.job_class, from_text(one.payload), one.key, one.units) for one in jobs]
            await self._submissions.submit(who, new)
        except Unavailable:
            raise
        except (Refused, BadInput) as error:
            if len(jobs) > 1:
                return [id for one in jobs for id in await self._take([one])]
            if isinstance(error, Busy):
                return []  # until there is room
            log.error("a job that SQL enqueued is refused: namespace=%s key=%s: %s", who.namespace, jobs[0].key, error)
        return [one.id for one in jobs]
