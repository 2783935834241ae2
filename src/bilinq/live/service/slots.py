"""Slots: when they run, what happens in one, and how leases reach the workers that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, cast

from bilinq.errors import Unavailable
from bilinq.live.service import tenants
from bilinq.live.service.fallback import Fallback
from bilinq.live.service.outbox import Changes, Payloads, from_text
from bilinq.live.service.shadow import Shadows
from bilinq.live.wire.messages import ANSWER_BYTES, Lease, LeasedJob

if TYPE_CHECKING:
    from bilinq.live.service.entities import LiveLease, Poll
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.store.job_tables import LeaseRow
    from bilinq.scheduler.scheduler import Assignment, Scheduler

log = logging.getLogger("bilinq.live")

GAP = 0.005  # least seconds between two slots: requests that arrive meanwhile share a slot, a commit and a response
LOOK = 0.2  # seconds between two looks for jobs that no server may serve
REPEAT = 0.05  # most seconds for which a job lets others take the server that has just failed it
SHARE = 3.0
"""Slots that run early leave at least this many times the CPU time that they use to everything else. It is CPU time, not
elapsed time, in which other processes may have run."""


class Slots:
    """Runs slots on a clock, and early where that can start a job sooner."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._unserved, self._looked = set[tuple[str, tuple[str, ...]]](), -LOOK
        self._fallback, self._shadows = Fallback(replica), Shadows(replica)
        self._paused: dict[tuple[str, Hashable], None] = {}

    def hurry(self) -> None:
        """Run the next slot early, if it can bring a job and a server together."""
        replica = self._replica
        if replica.ready and replica.memory.waiting and self._useful(replica.memory.servers.anyone_idle()):
            replica.slot_due.set()

    def _useful(self, idle: bool) -> bool:
        """Tell whether a slot changes anything: a policy with a row for each job must see jobs in the order of arrival."""
        scheduler = self._replica.memory.scheduler
        return idle or (scheduler is not None and scheduler.by_job)

    async def run(self) -> None:
        """Run slots until cancelled."""
        replica, slot = self._replica, self._replica.settings.slot
        due = time.monotonic() + slot
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due - time.monotonic(), 0.0)):
                    await replica.slot_due.wait()
            early = replica.slot_due.is_set()
            replica.slot_due.clear()
            began = time.thread_time()
            self.try_slot()
            spent, now = time.thread_time() - began, time.monotonic()
            if not early or now >= due:
                due = max(due + slot, now)
            await asyncio.sleep(max(GAP, SHARE * spent) if early else 0.0)

    def try_slot(self) -> None:
        """Run a slot if there is memory that can be trusted; if it fails, which is a bug, memory is loaded again."""
        try:
            if self._replica.ready:
                self.run_slot()
        except Exception as error:
            log.exception("a slot failed")
            self._replica.fail(f"a slot failed: {error}")
        self._replica.flush()

    def run_slot(self) -> None:
        """Run one slot now: expire leases, let the scheduler choose, and write the new leases."""
        began = time.monotonic()
        memory = self._replica.memory
        self._expire(memory, began)
        idle = memory.servers.idle()
        if memory.scheduler is None or not memory.waiting or not self._replica.ready:  # what expired may not be stored
            return
        if not self._useful(bool(idle)):
            self._wait(memory.scheduler, began)
            return
        elapsed, alone = self._elapsed(memory.scheduler, began), memory.waiting == 1
        asked = time.monotonic()
        tasks = self._fallback.decide(memory, idle, elapsed, began)
        solver = time.monotonic() - asked
        if memory.counters["failed"] or memory.counters["expired"]:
            tasks = memory.refuse_repeats(tasks, began, min(self._replica.settings.slot, REPEAT))
        tasks = _fitting(memory, tasks)
        if tasks:
            polls = memory.servers.polls_of(tasks)
            rows = memory.grant(tasks, time.time(), began, self._replica.settings.lease)
            self._shadows.compare(memory, idle, rows, alone)
            for poll in polls.values():
                poll.expect()
                memory.servers.withdraw(poll)  # else it would wait for leases of later slots, and delay these
            self._replica.spawn(self._deliver(memory, rows, polls, self._replica.save(Changes(), rows)))
        self._replica.meters.slot(time.monotonic() - began, solver, len(tasks))

    def _elapsed(self, scheduler: Scheduler, now: float) -> float:
        """Return the time since the scheduler's clock last moved: seconds, or for a policy a part of a slot, at most one."""
        seconds, self._replica.last_slot = now - self._replica.last_slot, now
        return seconds if scheduler.policy is None else min(max(seconds / self._replica.settings.slot, 1e-3), 1.0)

    def _wait(self, scheduler: Scheduler, now: float) -> None:
        """Let jobs that have come meanwhile be seen to wait, although no server is idle."""
        if scheduler.policy is None:
            scheduler.advance(self._elapsed(scheduler, now))

    def _expire(self, memory: Memory, now: float) -> None:
        """End what is over: leases, waits for a start, and waits that were too long."""
        changes, wall = Changes(), time.time()
        for lease in memory.expired(now):
            memory.fail(lease, "expired", "the lease expired", wall, now, changes)
        if memory.agenda:
            memory.release(now, wall, self._replica.settings.late == "drop", changes)
        if memory.bound and now - self._looked >= LOOK:
            self._looked = now
            self._report_unserved(memory)
        if self._paused or memory.counters["failed"] or memory.counters["expired"]:
            self._report_paused(memory)
        if changes:
            self._replica.spawn(_saved(self._replica.save(changes)))

    def _report_paused(self, memory: Memory) -> None:
        """Log each change of which servers are paused."""
        paused = {} if memory.scheduler is None else dict.fromkeys(memory.scheduler.paused)
        for one in paused:
            if one not in self._paused:
                log.warning("%s is paused: it fails more often than others", _called(*one))
        for one in self._paused:
            if one not in paused:
                log.info("%s is no longer paused", _called(*one))
        self._paused = paused

    def _report_unserved(self, memory: Memory) -> None:
        """Log once for each namespace and classes that its jobs wait for servers that are not there."""
        unserved = tenants.unserved(memory, None, self._replica.absent)
        for (namespace, names), many in unserved.items():
            if (namespace, names) not in self._unserved:
                classes = ", ".join(names)
                log.warning(
                    "%d jobs wait for server classes without a server: %s; namespace=%s", many, classes, namespace
                )
        self._unserved = set(unserved)

    async def _deliver(self, memory: Memory, rows: Sequence[LeaseRow], polls: dict[int, Poll], saved: Payloads) -> None:
        """Hand leases that are on disk to the calls that wait for them; return those whose caller has gone."""
        try:
            payloads = await saved
        except Exception as error:
            for poll in polls.values():
                poll.end()
            if isinstance(error, Unavailable):
                return
            raise
        changes = Changes()
        for row in rows:
            poll, lease = polls[row.server], memory.leases.get(row.id)
            if lease is None or not self._replica.uses(memory):
                poll.miss()
            elif poll.abandoned:
                memory.return_unused(lease, time.time(), changes)
            else:
                poll.deliver(_message(memory, lease, payloads[row.job]))
        if changes:
            await _saved(self._replica.save(changes))


def _fitting(memory: Memory, tasks: list[Assignment]) -> list[Assignment]:
    """Return assignments without those whose payloads are too many bytes for one response; these jobs wait on."""
    sizes = [memory.jobs[cast(int, task.job)].size for task in tasks]
    if sum(sizes) <= ANSWER_BYTES:
        return tasks
    assert memory.scheduler is not None
    polls, given = memory.servers.polls_of(tasks), Counter[object]()
    kept: list[Assignment] = []
    back: list[Assignment] = []
    for task, size in zip(tasks, sizes, strict=True):
        poll = polls[cast(int, task.server)]
        (back if poll in given and given[poll] + size > ANSWER_BYTES else kept).append(task)
        given[poll] += size
    for task in reversed(back):  # each becomes the first of its queue
        memory.scheduler.give_back(task.job)
    return kept


def _called(server_class: str, server: Hashable) -> str:
    return f"server class {server_class}" if server is None else f"server s{server} of class {server_class}"


def _message(memory: Memory, lease: LiveLease, payload: str) -> Lease:
    job, left = memory.jobs[lease.row.job], max(lease.deadline - time.monotonic(), 0.0)
    leased = LeasedJob(f"j{lease.row.job}", job.job_class, from_text(payload), job.units_left, job.attempts)
    return Lease(
        lease=f"l{lease.row.id}", fence=lease.row.id, server=f"s{lease.row.server}", deadline=time.time() + left,
        seconds=left, job=leased,
    )  # fmt: skip


async def _saved(saved: Payloads) -> None:
    """Wait until changes are on disk; if that fails, memory is loaded again anyway."""
    with contextlib.suppress(Unavailable):
        await saved
