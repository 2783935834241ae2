"""What the leader keeps in memory: jobs that have not ended, servers, active leases, and the scheduler.

It has no clock and does no I/O: each method that changes something returns or collects the rows to write. Memory is ahead
of the database by what is being written; if a write fails, memory is dropped and loaded again.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, cast

from bilinq.live.metrics import Meters
from bilinq.live.service.decision_record import record
from bilinq.live.service.entities import Agenda, Ids, LiveJob, LiveLease, epoch_of
from bilinq.live.service.options import PLAIN, JobOptions, options_of
from bilinq.live.service.outbox import to_text
from bilinq.live.service.servers import Servers
from bilinq.live.service.tenants import NO_LIMITS, RECENT, SHOWN, Books
from bilinq.live.store.job_tables import (
    FailedOn,
    JobEnd,
    JobRow,
    LeaseEnd,
    LeaseRow,
    ObservationRow,
    QueuedJob,
    RequeuedJob,
)

if TYPE_CHECKING:
    from bilinq.live.service.outbox import Changes
    from bilinq.live.service.retries import Retries
    from bilinq.live.service.shadow import Shadow
    from bilinq.live.store.admin_tables import KeyRow
    from bilinq.live.store.class_tables import ClassRow
    from bilinq.live.wire.access import NamespaceInfo
    from bilinq.live.wire.messages import JobState
    from bilinq.scheduler.scheduler import Assignment, Scheduler

SPARE = 1000  # entries of leases and jobs that have ended that may stay in a heap
SHORTEST = 1e-3  # seconds that a service takes at least
FOR_SCHEDULER = ("features", "servers", "weight")  # options of a job that count in decisions
NEW = 0.1  # seconds after which a job that is given to the scheduler has waited before


class Memory:
    """Jobs, servers and leases by id. `scheduler` is None until there are classes of both kinds.

    `queued` counts the jobs of each class that wait, and `waiting` those of them that may start now. `bound` counts the
    waiting jobs that only some server classes may serve, by these. While a scheduler stands in for one that has failed,
    `missed` has what it did not learn; otherwise it is None. `shadow` is a second policy that is compared, None without one.
    `own_features` is the length of the features of single jobs, also of those that a stand-in has not seen; 0 without any.

    `tenants` has the books of each namespace, and `limits` their settings. `pooled` is the scheduler that knows all of this,
    with the number of changes of servers at that time; None after another change.
    """

    def __init__(self, ids: Ids, scheduler: Scheduler | None, retries: Retries) -> None:
        self.ids, self.scheduler, self.retries = ids, scheduler, retries
        self.classes: dict[tuple[str, str], ClassRow] = {}
        self.keys: dict[str, KeyRow] = {}
        self.jobs: dict[int, LiveJob] = {}
        self.servers = Servers()
        self.leases: dict[int, LiveLease] = {}
        self.tenants: dict[str, Books] = {}
        self.limits: dict[str, NamespaceInfo] = {}
        self.pooled: tuple[Scheduler, int] | None = None
        self.queued: Counter[str] = Counter()
        self.waiting = 0
        self.bound: Counter[tuple[str, ...]] = Counter()
        self.agenda = Agenda()
        self.leased: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.recent: deque[LiveLease] = deque(maxlen=SHOWN)
        self.waits: dict[str, deque[float]] = {}
        self.counters: Counter[str] = Counter()
        self.reward_total = 0.0
        self.awaited = 0
        self.missed: list[ObservationRow] | None = None
        self.shadow: Shadow | None = None
        self.dead = 0
        self.own_features = 0 if scheduler is None else scheduler.own_features
        self.meters = Meters()
        self._deadlines: list[tuple[float, int]] = []

    def books(self, namespace: str) -> Books:
        """Return the books of a namespace."""
        found = self.tenants.get(namespace)
        if found is None:
            limits = self.limits.get(namespace, NO_LIMITS)
            found = self.tenants[namespace] = Books(namespace, self.meters.of(namespace), limits)
            self.pooled = None
        return found

    def set_limits(self, one: NamespaceInfo) -> None:
        """Change the settings of a namespace."""
        self.limits[one.name] = self.books(one.name).limits = one
        self.pooled = None

    def count_in(self, meters: Meters) -> None:
        """Use meters that were there before this memory was loaded."""
        self.meters = meters
        for namespace, books in self.tenants.items():
            books.meters = meters.of(namespace)

    def add(self, job: QueuedJob | JobRow, wall: float, now: float, failed: Sequence[FailedOn] = ()) -> None:
        """Queue a job, which has `failed` before; the times are those of both clocks."""
        came, books = now - max(wall - job.submitted, 0.0), self.books(job.namespace)
        live = LiveJob(job.job_class, job.units_left, job.attempts, job.submitted, came, books, job.size)
        self.jobs[job.id] = live
        if job.options is not None:
            self._set_options(live, options_of(job.options), wall, now)
        if failed:
            self._set_failed(live, failed, wall, now)
        self._enqueue(job.id, live)
        if live.start > now:
            self._hold_back(job.id, live)
        else:
            self._schedule(job.id, live, now)

    def adopt(self, row: LeaseRow, job: JobRow, began: float, deadline: float, wall: float, now: float) -> None:
        """Add a lease that was granted before memory was loaded."""
        assert self.scheduler is not None
        came, books = now - max(wall - job.submitted, 0.0), self.books(job.namespace)
        live = LiveJob(job.job_class, job.units_left, job.attempts, job.submitted, came, books, job.size, started=True)
        self.jobs[job.id] = live
        self._set_options(live, options_of(job.options), wall, now)
        server_class = self.servers[row.server].row.server_class
        known = self._known(live.options) | {"pool": job.namespace}
        self.scheduler.place(job.job_class, server_class, job.id, server=row.server, **known)
        self.leased[job.job_class] += 1
        self._hold(LiveLease(row, began, deadline, job.job_class, server_class))

    def _set_options(self, job: LiveJob, options: JobOptions, wall: float, now: float) -> None:
        job.options = options
        if options.features is not None:
            self.own_features = self.own_features or len(options.features)
        if options.deadline is not None:
            job.deadline = now + options.deadline - wall
        if options.not_before is not None:
            job.start = now + options.not_before - wall

    def _set_failed(self, job: LiveJob, failed: Sequence[FailedOn], wall: float, now: float) -> None:
        """Let a job that was loaded wait on after its last failure, and avoid the server that has failed it."""
        retries, last = (
            self.retries.of_class(self.classes["job", job.job_class]),
            max(failed, key=lambda one: one.ended),
        )
        ago = max(wall - last.ended, 0.0)
        job.failed_on = frozenset(one.server for one in failed)
        job.avoid, job.avoid_until = last.server, now + retries.longest - ago
        job.start = max(job.start, now + retries.pause(job.attempts) - ago)

    def _enqueue(self, id: int, job: LiveJob) -> None:
        """Count a job that waits, and note when it leaves."""
        self.queued[job.job_class] += 1
        job.books.queue(job)
        if job.options.servers is not None:
            self.bound[tuple(job.options.servers)] += 1
        if job.deadline < inf:
            self._plan(job.deadline, id)

    def _dequeue(self, job: LiveJob) -> None:
        """Count a job less that waits."""
        self.queued[job.job_class] -= 1
        job.books.unqueue(job)
        if not job.held:
            self.waiting -= 1
        job.held = False
        if job.options.servers is not None:
            self.bound[tuple(job.options.servers)] -= 1

    def _hold_back(self, id: int, job: LiveJob) -> None:
        """Keep a job that waits out of the scheduler until its start."""
        job.held = True
        if job.start < inf:
            self._plan(job.start, id)

    def _plan(self, at: float, id: int) -> None:
        """Note a time for a job; entries are made again once more than half of them are of jobs that have gone on."""
        self.agenda.add(at, id)
        if len(self.agenda) > 4 * len(self.jobs) + SPARE:
            waiting = [(one, job) for one, job in self.jobs.items() if job.lease is None]
            times = ((at, one) for one, job in waiting for at in (job.deadline, job.start if job.held else inf))
            self.agenda.replace((at, one) for at, one in times if at < inf)

    def _schedule(self, id: int, job: LiveJob, now: float, ahead: bool = False) -> None:
        """Hand a job to the scheduler; a policy by classes knows no eligible servers, so a job with some waits on."""
        assert self.scheduler is not None
        if self._hold_for_policy(id, job):
            return
        own = self._known(job.options)
        waited = (now - job.came) if now - job.came > NEW else 0.0
        self.scheduler.submit(
            job.job_class, job=id, avoid=job.avoid, waited=waited, ahead=ahead, pool=job.books.name, **own
        )
        job.offered = self.scheduler.slot
        self.waiting += 1

    def _hold_for_policy(self, id: int, job: LiveJob) -> bool:
        """Keep back a job with servers if the present policy knows nothing of servers; return whether it is one."""
        assert self.scheduler is not None
        if job.options.servers is None or self.scheduler.policy is None:
            return False
        job.start = inf
        self._hold_back(id, job)
        return True

    def replace_scheduler(self, scheduler: Scheduler, now: float) -> None:
        """Give all jobs to another scheduler, which has none, and use it from now on, unless it raises."""
        before, self.scheduler = self.scheduler, scheduler
        try:
            for id, job in self.jobs.items():
                if job.lease is not None:
                    lease = self.leases[job.lease]
                    known = self._known(job.options) | {"pool": job.books.name}
                    scheduler.place(job.job_class, lease.server_class, id, server=lease.row.server, **known)
                elif not job.held:
                    self._schedule(id, job, now)
        except BaseException:
            self.scheduler = before
            raise
        finally:
            self.waiting = sum(job.lease is None and not job.held for job in self.jobs.values())

    def _known(self, options: JobOptions) -> dict[str, Any]:
        """Return the options that the scheduler can use: all, or none for a policy by classes."""
        if options is PLAIN or self.scheduler is None or self.scheduler.policy is not None:
            return {}
        return {name: getattr(options, name) for name in FOR_SCHEDULER}

    def release(self, now: float, wall: float, drops: bool, changes: Changes) -> None:
        """Let jobs start whose time has come, and end those whose deadline has passed, if `drops`."""
        for id in self.agenda.due(now):
            job = self.jobs.get(id)
            if job is None or job.lease is not None:
                continue
            if drops and job.deadline <= now:
                self._leave_queue(id, job)
                self._end_job(id, "expired", wall, changes, error="the deadline has passed")
            elif job.held and job.start <= now:
                job.held = False
                self._schedule(id, job, now, ahead=job.attempts > 0)

    def _leave_queue(self, id: int, job: LiveJob) -> None:
        """Take a job that waits out of its queue."""
        assert self.scheduler is not None
        if not job.held:
            self.scheduler.cancel(id)
        self._dequeue(job)

    def grant(self, tasks: Iterable[Assignment], wall: float, now: float, seconds: float) -> list[LeaseRow]:
        """Lease the jobs that the scheduler chose; return the leases to write, with the reasons."""
        assert self.scheduler is not None
        ids, rows = [self.classes["server", one.name].id for one in self.scheduler.server_classes], []
        for task in tasks:
            job, job_class, server_class, server = cast(tuple[int, str, str, int], task)
            decision = self.scheduler.decision(job)
            row = LeaseRow(
                id=next(self.ids.lease), job=job, server=server, job_class_id=self.classes["job", job_class].id,
                server_class_id=self.classes["server", server_class].id, granted=wall, deadline=wall + seconds,
                decision=None if decision is None else record(decision, ids),
            )  # fmt: skip
            self._hold(LiveLease(row, now, now + seconds, job_class, server_class))
            self._dequeue(self.jobs[job])
            books = self.jobs[job].books
            books.counters["leased"] += 1
            books.meters.granted[job_class, server_class] += 1
            self.leased[job_class] += 1
            self.meters.granted[job_class, server_class] += 1
            self._note_wait(self.jobs[job], wall)
            rows.append(row)
        self.counters["leased"] += len(rows)
        return rows

    def finish(
        self, lease: LiveLease, reward: float | None, done: bool | None, result: str | None, digest: str, wall: float,
        now: float, changes: Changes,
    ) -> JobState:  # fmt: skip
        """End a lease as finished; return the new state of the job. A bad reward raises before anything changes."""
        assert self.scheduler is not None
        job, seconds = self.jobs[lease.row.job], max(now - lease.began, SHORTEST)
        over = job.units_left <= 1 if done is None else done
        reward = (
            None if reward is None else reward + 0.0
        )  # SQLite drops the sign of zero; a replay must see the same value
        self.scheduler.report(lease.row.job, reward, over, seconds)
        self._end_lease(lease, job, LeaseEnd(lease.row.id, "finished", wall, reward, digest), changes)
        self._log(lease, changes, value=reward, duration=seconds)
        job.units_left = max(job.units_left - 1, 0 if over else 1)
        if reward is not None:
            self.reward_total += reward
            self.counters["rewards"] += 1
        self.counters["finished"] += 1
        self.meters.finish(job.job_class, seconds, reward)
        job.books.finish(job.job_class, seconds, reward)
        if not over:
            self._queue_again(lease.row.job, job, None, changes)
            return "queued"
        self.awaited += reward is None
        job.books.awaited += reward is None
        self._end_job(lease.row.job, "done", wall, changes, result=result, reward=reward)
        return "done"

    def count_late(self, job: JobRow, value: float, before: float | None) -> None:
        """Count a reward that came after the end of a job, or another than the one `before`."""
        change, first = value - (before or 0.0), before is None
        for counts in (self, self.books(job.namespace)):
            counts.reward_total += change
            counts.meters.late(job.job_class, change, first=first)
            counts.counters["rewards" if first else "corrections"] += 1
            counts.awaited -= first and job.state == "done"

    def set_awaited(self, number: Mapping[str, int]) -> None:
        """Set how many jobs of each namespace are done and have no reward."""
        for namespace in {*number, *self.tenants}:
            self.books(namespace).awaited = number.get(namespace, 0)
        self.awaited = sum(number.values())

    def fail(self, lease: LiveLease, state: str, error: str, wall: float, now: float, changes: Changes) -> JobState:
        """End a lease as "failed" or "expired"; return the new state of the job, which waits for a while before a retry."""
        assert self.scheduler is not None
        id, server, job = lease.row.job, lease.row.server, self.jobs[lease.row.job]
        self.scheduler.report(id, failed=True, done=True)
        self._end_lease(lease, job, LeaseEnd(lease.row.id, state, wall, detail=error), changes)
        self._log(lease, changes, failed=1)
        job.attempts += 1
        job.failed_on |= {server}
        self.counters[state] += 1
        job.books.counters[state] += 1
        retries = self.retries.of_class(self.classes["job", job.job_class])
        if retries.gives_up(job, self.untried(job)):
            self.dead += 1
            self._end_job(id, "dead", wall, changes, error=error)
            return "dead"
        job.avoid, job.avoid_until = server, now + retries.longest
        job.lease, job.start = None, now + retries.pause(job.attempts)
        self._enqueue(id, job)
        changes.queued.append(RequeuedJob(id, job.units_left, job.attempts, error))
        if job.start > now:
            self._hold_back(id, job)
        else:
            self._schedule(id, job, now, ahead=True)
        return "queued"

    def untried(self, job: LiveJob) -> bool:
        """Tell whether a job has failed on one server, or on servers of one class, and another could serve it."""
        assert self.scheduler is not None
        tried = {self.servers[id].row.server_class for id in job.failed_on if id in self.servers}
        usable = self.servers.usable(job, self.scheduler, but=tried if len(job.failed_on) > 1 else ())
        return any(id not in job.failed_on for id in usable)

    def refuse_repeats(self, tasks: Sequence[Assignment], now: float, pause: float) -> list[Assignment]:
        """Return assignments without those to the server that has just failed the job, if another can serve it.

        Such a job waits for a `pause`, in which others may take the server.
        """
        assert self.scheduler is not None
        kept = []
        for task in tasks:
            id, server = cast(tuple[int, int], (task.job, task.server))
            job = self.jobs[id]
            avoids = job.avoid == server and job.avoid_until > now
            if not avoids or all(id == server for id in self.servers.usable(job, self.scheduler)):
                kept.append(task)
                continue
            self.scheduler.cancel(id)
            self.waiting -= 1
            job.start = now + pause
            self._hold_back(id, job)
        return kept

    def return_unused(self, lease: LiveLease, wall: float, changes: Changes) -> None:
        """Return the job of a lease that reached no worker to its queue; this is not an attempt."""
        assert self.scheduler is not None
        job = self.jobs[lease.row.job]
        self._end_lease(lease, job, LeaseEnd(lease.row.id, "revoked", wall, detail="returned unused"), changes)
        self.scheduler.give_back(lease.row.job)
        self._queue_again(lease.row.job, job, None, changes)

    def cancel(self, id: int, wall: float, changes: Changes) -> None:
        """Cancel a job, and end its lease if it has one."""
        assert self.scheduler is not None
        job = self.jobs[id]
        if job.lease is None:
            self._leave_queue(id, job)
        else:
            self.scheduler.cancel(id)
            end = LeaseEnd(job.lease, "revoked", wall, detail="the job was cancelled")
            self._end_lease(self.leases[job.lease], job, end, changes)
        self._end_job(id, "cancelled", wall, changes)

    def extend(self, lease: LiveLease, deadline: float) -> None:
        """Set a later deadline of a lease."""
        lease.deadline = deadline
        self._note_deadline(lease)

    def expired(self, now: float) -> list[LiveLease]:
        """Return the leases whose deadline has passed, each once: one that was extended is in the heap several times."""
        found: dict[int, LiveLease] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, id = heapq.heappop(self._deadlines)
            lease = self.leases.get(id)
            if lease is not None and lease.deadline <= now:
                found[id] = lease
        return list(found.values())

    def _hold(self, lease: LiveLease) -> None:
        id, server = lease.row.id, self.servers[lease.row.server]
        self.leases[id] = lease
        self.jobs[lease.row.job].lease = id
        self.servers.set_lease(server, id)
        self.servers.keep_back(server)
        self._note_deadline(lease)
        self.busy[lease.server_class] += 1
        self.recent.append(lease)
        self.jobs[lease.row.job].books.hold(lease)

    def _note_deadline(self, lease: LiveLease) -> None:
        """Add a deadline to the heap, which is built again once more than half of it is of leases that ended."""
        heapq.heappush(self._deadlines, (lease.deadline, lease.row.id))
        if len(self._deadlines) > 2 * len(self.leases) + SPARE:
            self._deadlines = [(one.deadline, one.row.id) for one in self.leases.values()]
            heapq.heapify(self._deadlines)

    def _end_lease(self, lease: LiveLease, job: LiveJob, end: LeaseEnd, changes: Changes) -> None:
        del self.leases[lease.row.id]
        self.leased[job.job_class] -= 1
        self.busy[lease.server_class] -= 1
        server = self.servers.get(lease.row.server)
        if server is not None and server.lease == lease.row.id:
            self.servers.set_lease(server, None)
        lease.end = end
        changes.leases.append(end)
        self.meters.leases_ended[job.job_class, end.state] += 1
        job.books.release(job.job_class, end.state)

    def _log(
        self, lease: LiveLease, changes: Changes, *, value: float | None = None, duration: float | None = None,
        failed: int = 0,
    ) -> None:  # fmt: skip
        """Append to the log what the scheduler was told about a lease that ends."""
        assert self.scheduler is not None
        row, features = lease.row, self.jobs[lease.row.job].options.features
        self.observe(
            changes,
            ObservationRow(
                seq=self.ids.next_seq(), lease=row.id, revision=0, job_class_id=row.job_class_id,
                server_class_id=row.server_class_id, value=value, duration=duration, failed=failed,
                epoch=epoch_of(self.scheduler, lease.server_class), features=None if features is None else to_text(features),
            )
        )  # fmt: skip

    def observe(self, changes: Changes, row: ObservationRow) -> None:
        """Append an observation to the log."""
        changes.observations.append(row)
        if self.missed is not None:
            self.missed.append(row)
        if self.shadow is not None:
            self.shadow.observe(row)

    def _end_job(
        self, id: int, state: str, wall: float, changes: Changes, result: str | None = None,
        reward: float | None = None, error: str | None = None,
    ) -> None:  # fmt: skip
        job = self.jobs.pop(id)
        self.counters[state] += 1
        self.meters.jobs_ended[job.job_class, state] += 1
        job.books.end(job.job_class, state)
        changes.ended.append(
            JobEnd(
                id=id, state=state, ended=wall, units_left=job.units_left, attempts=job.attempts, result=result,
                reward=reward, error=error, number=self.ids.next_end(),
            )
        )  # fmt: skip

    def _queue_again(self, id: int, job: LiveJob, error: str | None, changes: Changes) -> None:
        assert self.scheduler is not None
        job.lease = None
        self._enqueue(id, job)
        if self._hold_for_policy(id, job):
            self.scheduler.cancel(id)  # which has it again
        else:
            self.waiting += 1
        changes.queued.append(RequeuedJob(id, job.units_left, job.attempts, error))

    def _note_wait(self, job: LiveJob, wall: float) -> None:
        if not job.started:
            job.started = True
            waited = max(wall - job.submitted, 0.0)
            self.waits.setdefault(job.job_class, deque(maxlen=RECENT)).append(waited)
            self.meters.wait(job.job_class, waited)
            job.books.wait(job.job_class, waited)
