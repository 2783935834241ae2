"""Jobs as clients see them: submit, look up, cancel, retry."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from bilinq.errors import Busy, Conflict, NotFound, Unavailable
from bilinq.live.service.bulk import requeue, requeue_dead
from bilinq.live.service.configuration import check_size
from bilinq.live.service.entities import number
from bilinq.live.service.memory import Memory
from bilinq.live.service.namespaces import check_limits
from bilinq.live.service.options import check_job, is_plain, new_options, options_of
from bilinq.live.service.outbox import Changes, Payloads, digest, from_text, to_text
from bilinq.live.store import job_tables as tables
from bilinq.live.store.admin_tables import add_audit
from bilinq.live.store.threads import Batcher
from bilinq.live.wire.messages import ANSWER_BYTES, Event, Job, JobPage, JobRef, NewJob, Retried, Submitted
from bilinq.live.wire.queries import BadField

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.store import Transaction
    from bilinq.scheduler.scheduler import Scheduler

Key = tuple[str, str]  # a namespace, and the key of a job in it


class Claims:
    """Keys of jobs that are being stored: each is used by one call at a time."""

    def __init__(self) -> None:
        self._taken: dict[Key, asyncio.Event] = {}

    async def take(self, keys: Collection[Key]) -> Callable[[], None]:
        """Wait until no other call uses one of `keys`, then claim all; call the returned function to release them."""
        while other := next((self._taken[key] for key in keys if key in self._taken), None):
            await other.wait()
        free = asyncio.Event()
        self._taken |= dict.fromkeys(keys, free)

        def release() -> None:
            for key in keys:
                del self._taken[key]
            free.set()

        return release


class Submissions:
    """Submits, returns, cancels and retries jobs."""

    def __init__(self, replica: Replica, slots: Slots) -> None:
        self._replica, self._slots = replica, slots
        self._claims = Claims()
        self._gathered = Batcher(replica.store.read, _known)

    async def submit(self, who: Identity, new: Sequence[NewJob]) -> Submitted:
        """Store jobs, all or none; a key that was used before returns the job submitted with it.

        Jobs are queued before they are on disk, so that one commit can store them with their leases; no response mentions
        either before that.
        """
        memory = self._replica.memory
        self._check_classes(job.job_class for job in new)
        self._check_options(new)
        keys = {(who.namespace, job.key) for job in new if job.key is not None}
        if not keys:
            self._check_room(who.namespace, (job.job_class for job in new))
        rows = [self._row(who, job, next(memory.ids.job)) for job in new]
        if keys:
            return await self._submit_once(memory, new, rows, keys)
        await self._queue(rows)
        return Submitted([JobRef(f"j{row.id}", "queued") for row in rows])

    async def _submit_once(
        self, memory: Memory, new: Sequence[NewJob], rows: Sequence[tables.JobRow], keys: set[Key]
    ) -> Submitted:
        release = await self._claims.take(keys)
        try:
            stored = _settle(rows, await self._look_up(keys))
            if memory is not self._replica.memory:
                raise Unavailable("the service has lost its database meanwhile; try again", retry_after=1.0)
            fresh = [row for row, job in zip(rows, stored, strict=True) if row.id == job.id]
            self._check_room(rows[0].namespace, (row.job_class for row in fresh))
            self._check_options(new)  # other jobs may have come meanwhile
            saved = self._queue(fresh, release) if fresh else None
        except BaseException:
            release()
            raise
        if saved is None:
            release()
        else:
            await saved
        return Submitted([JobRef(f"j{job.id}", job.state) for job in stored])  # type: ignore[arg-type]

    async def _look_up(self, keys: set[Key]) -> dict[Key, tables.KnownJob]:
        """Return the jobs that were stored with some of `keys`; many calls share one query to a database server."""
        store = self._replica.store
        return await self._gathered(keys) if store.shared else store.look_up(lambda tx: _known(tx, [keys]))[0]

    def _queue(self, rows: Sequence[tables.JobRow], then: Callable[[], None] | None = None) -> Payloads:
        """Queue jobs and store them; await the returned future until they are on disk."""
        memory, wall, now = self._replica.memory, time.time(), time.monotonic()
        books = memory.books(rows[0].namespace)
        check_limits(books, rows)
        for row in rows:
            memory.add(row, wall, now)
            memory.meters.submit(row.job_class, row.units)
            books.meters.submit(row.job_class, row.units)
        memory.counters["submitted"] += len(rows)
        books.counters["submitted"] += len(rows)
        if not _awaits_slot(memory.scheduler):
            self._slots.hurry()
        tags = [tables.TagRow(tag, row.id) for row in rows if row.options for tag in options_of(row.options).tags]
        return self._replica.save(Changes(new=list(rows), tags=tags), then=then)

    async def job(self, who: Identity, id: str) -> Job:
        """Return a job with its history, as far as that is on disk."""
        row, history = await self._replica.store.read(lambda tx: self._find(tx, who, id))
        return _message(row, history)

    async def jobs(
        self, who: Identity, state: str | None, job_class: str | None, after: str | None, limit: int,
        key: str | None = None, tag: str | None = None,
    ) -> JobPage:  # fmt: skip
        """Return the matching jobs of the caller's namespaces, newest first; fewer than `limit` if they are large."""
        before = None if after is None else number("j", after)
        if key is not None:
            page = await self._with_key(who, key, state, job_class, before, limit)
            return page if tag is None else JobPage([job for job in page.jobs if tag in job.tags], page.after)
        wanted = who.reach, state, job_class, before

        def find(tx: Transaction) -> JobPage:
            fits = tables.page_length(tx, *wanted, limit, tag, ANSWER_BYTES)
            return _page(tables.list_jobs(tx, *wanted, fits, tag), fits)

        return await self._replica.store.read(find)

    async def _with_key(
        self, who: Identity, key: str, state: str | None, job_class: str | None, before: int | None, limit: int
    ) -> JobPage:
        """Return the matching jobs that were submitted with a key: at most one of each namespace."""
        every = {row.namespace for row in self._replica.memory.keys.values()} | self._replica.memory.tenants.keys()
        spaces = sorted(every if who.reach is None else who.reach)
        found = await self._replica.store.read(lambda tx: tables.jobs_with_key(tx, key, spaces))
        fitting = [row for row in found if state in (None, row.state) and job_class in (None, row.job_class)]
        rows = [row for row in fitting if before is None or row.id < before][:limit]
        return _page(rows, limit)

    async def dead(self, who: Identity, after: str | None, limit: int) -> JobPage:
        """Return jobs that failed too often, newest first."""
        return await self.jobs(who, "dead", None, after, limit)

    async def cancel(self, who: Identity, id: str) -> Job:
        """Cancel a job that has not ended."""
        row, _ = await self._replica.write(lambda tx: self._find(tx, who, id))
        memory, changes = self._replica.memory, Changes()
        if row.id not in memory.jobs:
            now, _ = await self._replica.write(lambda tx: self._find(tx, who, id))
            if now.state in ("queued", "leased"):
                raise Unavailable(f"job {id} is still being stored; try again")
            raise Conflict(f"job {id} has ended: it is {now.state}")
        memory.cancel(row.id, time.time(), changes)
        await self._replica.save(changes)
        return await self.job(who, id)

    async def retry(self, who: Identity, id: str) -> Retried:
        """Queue a dead job again, with all its attempts and without a deadline."""

        def again(tx: Transaction) -> list[tables.JobRow]:
            row, _ = self._find(tx, who, id)
            if row.state != "dead":
                raise Conflict(f"job {id} must be dead to be retried; it is {row.state}")
            add_audit(tx, time.time(), who.prefix, "retry", id, row.namespace)
            return requeue_dead(tx, [row])

        await requeue(self._replica, self._slots, again)
        return Retried(id, "queued")

    def _check_classes(self, wanted: Iterable[str]) -> None:
        memory = self._replica.memory
        for name in dict.fromkeys(wanted):
            if ("job", name) not in memory.classes or memory.scheduler is None:
                known = ", ".join(sorted(key[1] for key in memory.classes if key[0] == "job")) or "none yet"
                raise NotFound(f"there is no job class {name!r}; known are {known}")

    def _check_options(self, new: Sequence[NewJob]) -> None:
        """Raise unless the service can schedule jobs by what they have of their own."""
        scheduler, classes = self._replica.memory.scheduler, self._replica.memory.classes
        assert scheduler is not None
        size, named = self._replica.memory.own_features, any(job.servers for job in new)
        known = {name for kind, name in classes if kind == "server"} if named else ()
        for k, job in enumerate(new):
            if is_plain(job):
                continue
            check_job(f"jobs[{k}]", job, known, scheduler.policy is None)
            if job.features is not None:
                if not size:
                    size = len(job.features)
                    check_size(classes.values(), self._replica.settings, size, f"jobs[{k}].features")
                if len(job.features) != size:
                    rule = f"must have length {size}, as those of earlier jobs; got {len(job.features)}"
                    raise BadField(f"jobs[{k}].features", rule)

    def _check_room(self, namespace: str, coming: Iterable[str]) -> None:
        """Raise unless there is room in classes; jobs of other namespaces take none of it."""
        memory = self._replica.memory
        queued = memory.books(namespace).queued
        for name, many in Counter(coming).items():
            room = (memory.classes["job", name].backlog or self._replica.settings.backlog) - queued[name]
            if many > room:
                raise Busy(f"class {name!r} has room for {max(room, 0)} more jobs; got {many}", retry_after=1.0)

    def _row(self, who: Identity, job: NewJob, id: int) -> tables.JobRow:
        payload, wall = to_text(job.payload), time.time()
        options = None if is_plain(job) else new_options(job, wall).text
        mark = None
        if job.key is not None:
            own = () if options is None else (new_options(job, 0.0).text,)
            mark = digest(job.job_class, payload, job.units, *own)
        return tables.JobRow(
            id=id, namespace=who.namespace, job_class=job.job_class, state="queued", key=job.key, digest=mark,
            payload=payload, units=job.units, units_left=job.units, attempts=0, submitted=wall, options=options,
        )  # fmt: skip

    def _find(self, tx: Transaction, who: Identity, id: str) -> tuple[tables.JobRow, list[tables.LeaseRow]]:
        """Return a job that `who` may see, with its leases."""
        found = number("j", id)
        row = None if found is None else tables.get_job(tx, found)
        if row is None or not who.sees(row.namespace):
            raise NotFound(f"there is no job {id!r}")
        return row, tables.leases_of_job(tx, row.id)


def _known(tx: Transaction, asked: Sequence[Collection[Key]]) -> list[dict[Key, tables.KnownJob]]:
    """Return, for each of several calls, the jobs that were stored with its keys."""
    keys = defaultdict[str, set[str]](set)
    for namespace, key in itertools.chain.from_iterable(asked):
        keys[namespace].add(key)
    known = {
        (namespace, key): job
        for namespace in keys
        for key, job in tables.known_jobs(tx, namespace, [*keys[namespace]]).items()
    }
    return [{key: known[key] for key in some if key in known} for some in asked]


def _settle(rows: Sequence[tables.JobRow], known: Mapping[Key, tables.KnownJob]) -> list[tables.KnownJob]:
    """Return for each row of a call the job with its key: itself, if it is new, or a `known` one; raise if they differ."""
    settled: list[tables.KnownJob] = []
    own: dict[str, tables.KnownJob] = {}
    for row in rows:
        before = None if row.key is None else known.get((row.namespace, row.key)) or own.get(row.key)
        if before is not None and before.digest != row.digest:
            raise Conflict(
                f"key {row.key!r} was used for a job with another class, payload, number of units or option, j{before.id}"
            )
        job = before or tables.KnownJob(row.id, row.state, row.digest)
        if row.key is not None:
            own[row.key] = job
        settled.append(job)
    return settled


def _page(rows: Sequence[tables.JobRow], limit: int) -> JobPage:
    return JobPage([_message(row, []) for row in rows], f"j{rows[-1].id}" if len(rows) == limit else None)


def _message(row: tables.JobRow, history: Sequence[tables.LeaseRow]) -> Job:
    events = [Event(row.submitted, "submitted")]
    for lease in history:
        events.append(Event(lease.granted, "leased", f"s{lease.server}"))
        if lease.ended is not None:
            events.append(Event(lease.ended, lease.state, f"s{lease.server}", lease.detail))
    if row.ended is not None:
        events.append(Event(row.ended, row.state, None, row.error))
    return Job(
        id=f"j{row.id}", job_class=row.job_class, state=row.state, namespace=row.namespace, key=row.key,  # type: ignore[arg-type]
        units=row.units, units_left=row.units_left, attempts=row.attempts, submitted=row.submitted, started=row.started,
        ended=row.ended, payload=from_text(row.payload), result=from_text(row.result), reward=row.reward, error=row.error,
        history=events, **structs.asdict(options_of(row.options)),
    )  # fmt: skip


def _awaits_slot(scheduler: Scheduler | None) -> bool:
    """Return whether new jobs wait for the next slot: a policy that may let servers idle shares them slot by slot."""
    policy = None if scheduler is None else scheduler.policy
    return policy is not None and not getattr(policy, "work_conserving", True)
