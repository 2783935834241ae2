"""Many jobs at once: cancel or retry those that match a filter, one batch and one commit for each call."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from bilinq.live.service.entities import number
from bilinq.live.service.options import options_of
from bilinq.live.service.outbox import Changes
from bilinq.live.store import job_tables as tables
from bilinq.live.store.admin_tables import add_audit, keep_ids
from bilinq.live.wire.messages import Changed

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.store import Transaction

OPEN = ("queued", "leased")  # states of a job that has not ended


class JobFilter(NamedTuple):
    """Which jobs to change; None matches all. `after` and `limit` are those of a page."""

    state: str | None = None
    job_class: str | None = None
    tag: str | None = None
    after: str | None = None
    limit: int = 1000

    @property
    def words(self) -> str:
        """What it asks for, as the audit log shows it."""
        asked = {"state": self.state, "class": self.job_class, "tag": self.tag}
        return ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)


class BulkChanges:
    """Cancels and retries many jobs; each batch is in the audit log of its namespaces."""

    def __init__(self, replica: Replica, slots: Slots) -> None:
        self._replica, self._slots = replica, slots

    async def cancel_jobs(self, who: Identity, wanted: JobFilter) -> Changed:
        """Cancel the newest matching jobs that have not ended; jobs that end meanwhile stay as they are."""
        ids = await self._matching(who, wanted, OPEN if wanted.state is None else (wanted.state,))
        memory, changes, wall = self._replica.memory, Changes(), time.time()
        found = [id for id in ids if _is_open(memory, id, wanted.state)]
        spaces = [memory.jobs[id].books.name for id in found]
        for id in found:
            memory.cancel(id, wall, changes)

        def store(tx: Transaction) -> None:
            changes.write(tx)
            _audit(tx, who, "cancel jobs", spaces, wanted)

        if found:
            await self._replica.write(store)
        return _changed(len(found), ids, wanted)

    async def retry_jobs(self, who: Identity, wanted: JobFilter) -> Changed:
        """Queue the newest matching dead jobs again, each as a single retry does."""
        ids = await self._matching(who, wanted, ("dead",))

        def store(tx: Transaction) -> list[tables.JobRow]:
            rows = requeue_dead(tx, tables.dead_jobs(tx, ids))
            _audit(tx, who, "retry jobs", [row.namespace for row in rows], wanted)
            return rows

        rows = await requeue(self._replica, self._slots, store) if ids else []
        return _changed(len(rows), ids, wanted)

    async def _matching(self, who: Identity, wanted: JobFilter, states: Sequence[str]) -> list[int]:
        before = None if wanted.after is None else number("j", wanted.after)
        return await self._replica.store.read(
            lambda tx: tables.list_ids(tx, who.reach, states, wanted.job_class, before, wanted.limit, wanted.tag)
        )


async def requeue(
    replica: Replica, slots: Slots, store: Callable[[Transaction], list[tables.JobRow]]
) -> list[tables.JobRow]:
    """Queue the dead jobs that `store` returns, which it has stored as queued; also if nobody waits for it any more."""
    memory = replica.memory

    def follow(rows: list[tables.JobRow]) -> None:
        if replica.uses(memory):
            _queue_again(memory, rows)
            slots.hurry()

    return await replica.write(store, then=follow)


def requeue_dead(tx: Transaction, rows: Sequence[tables.JobRow]) -> list[tables.JobRow]:
    """Store dead jobs as queued, with all their attempts and without deadlines; return them as they are stored."""
    keep_ids(tx, "end")  # these jobs lose the numbers of their ends, which a reader may have seen
    tables.requeue_jobs(tx, [tables.RequeuedJob(row.id, row.units_left, 0) for row in rows])
    return [_timeless(tx, row)._replace(attempts=0) for row in rows]


def _timeless(tx: Transaction, row: tables.JobRow) -> tables.JobRow:
    if row.options is None:
        return row
    options = structs.replace(options_of(row.options), deadline=None, not_before=None).text
    tables.set_options(tx, row.id, options)
    return row._replace(options=options)


def _queue_again(memory: Memory, rows: Iterable[tables.JobRow]) -> None:
    """Queue jobs in memory that were stored as no longer dead; their wait begins now."""
    wall, now = time.time(), time.monotonic()
    for row in rows:
        if row.id not in memory.jobs:
            memory.add(row._replace(submitted=wall), wall, now)
            memory.dead -= 1
            memory.books(row.namespace).dead -= 1


def _is_open(memory: Memory, id: int, state: str | None) -> bool:
    """Tell whether a job has not ended and is in a state; None: in any."""
    job = memory.jobs.get(id)
    return job is not None and state in (None, "queued" if job.lease is None else "leased")


def _audit(tx: Transaction, who: Identity, what: str, spaces: Iterable[str], wanted: JobFilter) -> None:
    """Add an entry for each namespace, so that its admins see it."""
    for namespace, many in sorted(Counter(spaces).items()):
        add_audit(tx, time.time(), who.prefix, what, f"{many} with {wanted.words}", namespace)


def _changed(many: int, ids: Sequence[int], wanted: JobFilter) -> Changed:
    return Changed(many, f"j{ids[-1]}" if len(ids) == wanted.limit else None)
