"""Jobs that were enqueued with SQL, in a transaction of the application: the leader takes them from the inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from bilinq.errors import BadInput, Busy, Refused, Unavailable
from bilinq.live.keys import Identity
from bilinq.live.service.outbox import from_text
from bilinq.live.service.tenants import NO_LIMITS
from bilinq.live.store.inbox_tables import Enqueued, inbox_parts, oldest_enqueued, remove_enqueued
from bilinq.live.wire.messages import BATCH, NewJob

if TYPE_CHECKING:
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.submissions import Submissions

log = logging.getLogger("bilinq.live")

AGAIN = 1.0  # seconds after which the inbox is looked at again without a notification
NESTING = 100  # deepest nesting of lists and objects in a payload, as in the body of a request


class Inbox:
    """Submits the jobs of the inbox, oldest first in each class of a namespace, and deletes them there.

    A job is submitted under its key before it is deleted from the inbox, so a crash in between submits it once. What the API
    would refuse is refused with a line in the log. A job that makes the service fail is set aside until the next start.
    """

    def __init__(self, replica: Replica, submissions: Submissions) -> None:
        self._replica, self._submissions = replica, submissions
        self._aside: set[int] = set()

    async def run(self) -> None:
        """Empty the inbox at the start, after each notification, and from time to time, until cancelled."""
        while True:
            try:
                async with aclosing(self._replica.store.notifications(AGAIN)) as notifications:
                    async for _ in notifications:
                        if self._replica.ready and self._replica.memory.scheduler is not None:
                            await self.empty()
            except Unavailable:
                await asyncio.sleep(AGAIN)
            except Exception:
                log.exception("the inbox cannot be emptied")
                await asyncio.sleep(AGAIN)

    async def empty(self) -> None:
        """Submit all jobs of the inbox for which there is room; where there is none, jobs of others do not wait for it."""
        over = set[tuple[str, str]]()
        while parts := set(await self._replica.store.read(inbox_parts)) - over:
            for part in sorted(parts):
                if not await self._take_some(*part):
                    over.add(part)

    async def _take_some(self, namespace: str, job_class: str) -> bool:
        """Take the oldest jobs of one class of a namespace; return whether there may be more for which there is room."""
        limit = BATCH + len(self._aside)
        every = await self._replica.store.read(lambda tx: oldest_enqueued(tx, limit, namespace, job_class))
        found = [one for one in every if one.id not in self._aside][:BATCH]
        taken = await self._take(found) if found else []
        if taken:
            await self._replica.write(lambda tx: remove_enqueued(tx, taken))
        return bool(found) and len(taken) == len(found)

    async def _take(self, jobs: Sequence[Enqueued]) -> list[int]:
        """Submit jobs together, or else in halves, until there is no room; return those that are done with."""
        todo, taken = [jobs], list[int]()
        while todo:
            some = todo.pop()
            try:
                await self._submit(some)
            except Unavailable:
                raise
            except Exception as error:
                if len(some) > 1:
                    todo += [some[len(some) // 2 :], some[: len(some) // 2]]
                elif isinstance(error, Busy) and not self._too_large(some[0]):
                    break  # until there is room
                elif isinstance(error, Refused | BadInput):
                    one = some[0]
                    log.error(
                        "a job that SQL enqueued is refused: namespace=%s key=%s: %s", one.namespace, one.key, error
                    )
                    taken.append(some[0].id)
                else:
                    one = some[0]
                    log.error(
                        "a job that SQL enqueued is set aside: namespace=%s key=%s: %s", one.namespace, one.key, error
                    )
                    self._aside.add(some[0].id)
            else:
                taken += [one.id for one in some]
        return taken

    async def _submit(self, jobs: Sequence[Enqueued]) -> None:
        new = [NewJob(one.job_class, self._payload(one), one.key, one.units) for one in jobs]
        await self._submissions.submit(Identity("sql", jobs[0].namespace, frozenset({"submit"})), new)

    def _payload(self, job: Enqueued) -> Any:
        most = self._replica.settings.max_body
        if len(job.payload) > most:
            raise BadInput(f"payload must have at most {most} characters; got {len(job.payload)}")
        try:
            payload = from_text(job.payload)
        except (RecursionError, ValueError) as error:
            raise BadInput(f"payload must be JSON that is not nested deeply: {error}") from None
        if _deeper(payload, NESTING):
            raise BadInput(f"payload must not nest lists and objects more than {NESTING} deep")
        return payload

    def _too_large(self, job: Enqueued) -> bool:
        """Tell whether there will never be room for a job."""
        most = self._replica.memory.limits.get(job.namespace, NO_LIMITS).payload_bytes
        return most is not None and len(job.payload.encode()) > most


def _deeper(value: Any, most: int) -> bool:
    """Tell whether lists and objects are nested more than `most` deep, level by level and so without recursion."""
    level = [value]
    for _ in range(most + 1):
        level = [one for one in level if isinstance(one, list | dict)]
        if not level:
            return False
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True
