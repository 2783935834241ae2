"""The heart of the service: memory, the clock of the slots, and what happens when the database fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from hashlib import sha256
from typing import Any, TypeVar

from bilinq.errors import BadInput, Refused, Unavailable
from bilinq.live.metrics import Meters
from bilinq.live.service.expiry import delete_past
from bilinq.live.service.loading import load
from bilinq.live.service.memory import LiveLease, Memory
from bilinq.live.service.options import Options, configure
from bilinq.live.service.outbox import Changes, Outbox, Payloads
from bilinq.live.service.pauses import Pauses
from bilinq.live.service.payloads import from_text
from bilinq.live.service.polls import Poll
from bilinq.live.settings import Settings
from bilinq.live.store import Store, Transaction
from bilinq.live.store.admin_tables import get_meta
from bilinq.live.store.class_tables import save_checkpoint
from bilinq.live.store.job_tables import LeaseRow
from bilinq.live.wire.messages import Lease, LeasedJob
from bilinq.scheduler.classes import JobClass, ServerClass
from bilinq.scheduler.scheduler import Scheduler

T = TypeVar("T")
log = logging.getLogger("bilinq.live")

GAP = 0.005
"""Least seconds between two slots: what comes meanwhile shares a slot, a commit and an answer."""
SHARE = 3.0
"""Slots that run early leave at least as many times what they spend to everything else: CPU, not time, in which other
processes may have had their turn."""
LOOK_EVERY = 0.5
"""Seconds after which a follower looks who leads."""
RETRY = 0.5
"""Seconds after which loading is tried again."""
TIDY_EVERY = 10.0
"""Seconds between two looks for what is past."""


class Core:
    """What all parts of the service share. `ready` tells that requests are served, `healthy` that the process lives."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.ready, self.healthy, self.stopping = False, True, False
        self.following = False
        self.leader: str | None = None
        self.slots, self.loaded = 0, 0.0
        self.all_slot_seconds = 0.0
        self.meters = Meters()
        self._memory: Memory | None = None
        self._options: Options | None = None
        self._seed = secrets.randbits(32) if settings.seed is None else settings.seed
        self._hurry = asyncio.Event()
        self._outbox = Outbox(self._submit, self._hurry.is_set)
        self._offered = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovering = False
        self._pauses = Pauses()
        self._address: str | None = None

    @property
    def memory(self) -> Memory:
        """Memory, or `Unavailable` while there is none that can be trusted."""
        if not self.ready or self._memory is None:
            waits = "starting" if self._memory is None else "not ready; its database is away"
            raise Unavailable(f"the service is {'stopping' if self.stopping else waits}", retry_after=1.0)
        return self._memory

    @property
    def options(self) -> Options:
        """The scheduler's options as they are now."""
        assert self._options is not None
        return self._options

    @options.setter
    def options(self, value: Options) -> None:
        self._options = value

    async def start(self, address: str | None) -> None:
        """Lead if nobody else does, else follow until the leader is gone. `address` is told to those who follow."""
        self._address = address
        await asyncio.to_thread(_warm)
        try:
            await self.store.start(wait=False)
        except Unavailable:
            if not self.store.shared:
                raise
            self.following = True
            self.spawn(self._follow())
        else:
            await self._lead()

    async def stop(self) -> None:
        """End polls and slots, finish what is being written, save what was learnt, and let others lead."""
        self.stopping = True
        memory, self.ready = self._memory, False
        self._outbox.close()
        self.end_polls()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if memory is not None and not self.following and not self.store.lost.is_set():
            with _going_on("the last checkpoint"):
                await self._checkpoint(memory)
        await self.store.stop()

    async def _lead(self) -> None:
        """Load everything and begin to run slots."""
        for work in (self._run_slots, self._keep_checkpoints, self._keep_tidy, self._watch):
            self.spawn(work())
        await self._load()
        self.following = False

    async def _follow(self) -> None:
        """Wait until the leader is gone, and lead."""
        async with self._looking_for_leader():
            await self.store.lead()
        await self._lead()
        log.warning("this process leads now")

    @contextlib.asynccontextmanager
    async def _looking_for_leader(self) -> AsyncIterator[None]:
        """Keep an eye on who leads, so that requests can be sent there."""
        looking = asyncio.get_running_loop().create_task(self._look_for_leader())
        try:
            yield
        finally:
            looking.cancel()

    async def _look_for_leader(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                self.leader = await self.store.read(lambda tx: get_meta(tx, "leader")) or None
            await asyncio.sleep(LOOK_EVERY)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside everything else until the service stops."""
        task = asyncio.get_running_loop().create_task(work, context=Context())  # it outlives the request that began it
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Return what an operation returns, once it is on disk; if it fails, memory is loaded again."""
        self._outbox.close()
        return await asyncio.shield(self._submit(operation))

    def save(
        self, changes: Changes, granted: Sequence[LeaseRow] = (), then: Callable[[], None] | None = None
    ) -> Payloads:
        """Hand on what memory has changed, now; wait for what is returned until that is on disk.

        `then` is called when it is on disk or has failed, whether or not somebody waits.
        """
        written = self._outbox.put(changes, granted)
        if then is not None:
            written.add_done_callback(lambda _: then())
        if not self.ready:  # memory may be loaded again any moment, and must find this or nothing
            self._outbox.close()
        return asyncio.shield(written)

    def _submit(self, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Hand over an operation now, so that the database changes in the order in which memory did."""
        try:
            future = self.store.submit(operation)
        except Unavailable as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            self._recover(str(error))
        else:
            future.add_done_callback(self._check)
        return future

    def _check(self, written: asyncio.Future[Any]) -> None:
        """Load memory again if an operation has failed, whether or not somebody waits: memory is ahead for good then."""
        error = None if written.cancelled() else written.exception()
        if error is not None and (isinstance(error, Unavailable) or not isinstance(error, Refused | BadInput)):
            self._recover(str(error) or type(error).__name__)

    def hurry(self) -> None:
        """Run the next slot early, if it can bring a job and a server together."""
        memory = self._memory
        if memory is not None and any(memory.queued.values()) and (memory.anyone_idle() or not self.options.learns):
            self._hurry.set()

    def run_slot(self) -> None:
        """Run one slot now: expire leases, let the scheduler choose, and write the leases."""
        began = time.monotonic()
        memory, changes = self.memory, Changes()
        for lease in list(memory.expired(began)):
            memory.fail(lease, "expired", "the lease expired", time.time(), changes)
        if changes:
            self.spawn(_in_time(self.save(changes)))
        idle = memory.idle()
        if memory.scheduler is None or not any(memory.queued.values()):
            return
        if not idle and self.options.learns:  # first come, first served, wants to see who came when all the same
            return
        elapsed = (began - self._offered) / self.settings.slot
        self._offered = began
        asked = time.monotonic()
        tasks = memory.scheduler.assign(idle, min(max(elapsed, 1e-3), 1.0))
        solver = time.monotonic() - asked
        self.slots += 1
        if tasks:
            polls = memory.polls_of(tasks)
            rows = memory.grant(tasks, time.time(), began, self.settings.lease)
            for poll in polls.values():
                poll.expect()
                memory.withdraw(poll)  # or it would wait for the leases of further slots, and jobs of this one with it
            self.spawn(self._deliver(memory, rows, polls, self.save(Changes(), rows)))
        seconds = time.monotonic() - began
        self.all_slot_seconds += seconds
        self.meters.slot(seconds, solver, len(tasks))

    async def _deliver(self, memory: Memory, rows: Sequence[LeaseRow], polls: dict[int, Poll], saved: Payloads) -> None:
        """Hand leases, once they are on disk, to those who wait; what nobody waits for goes back."""
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
            if lease is None or memory is not self._memory:
                poll.miss()
            elif poll.abandoned:
                memory.return_unused(lease, time.time(), changes)
            else:
                poll.deliver(self.lease_message(lease, payloads[row.job]))
        if changes:
            await _in_time(self.save(changes))

    def lease_message(self, lease: LiveLease, payload: str) -> Lease:
        """Return a lease as a worker sees it."""
        job, left = self.memory.jobs[lease.job], max(lease.deadline - time.monotonic(), 0.0)
        told = LeasedJob(f"j{lease.job}", job.job_class, from_text(payload), job.units_left, job.attempts)
        return Lease(f"l{lease.id}", lease.id, f"s{lease.server}", time.time() + left, left, told)

    async def _run_slots(self) -> None:
        """Run slots by the clock, and early when somebody is in a hurry."""
        due = time.monotonic() + self.settings.slot
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due - time.monotonic(), 0.0)):
                    await self._hurry.wait()
            early = self._hurry.is_set()
            self._hurry.clear()
            began = time.thread_time()
            if self.ready:
                self.try_slot()
            spent, now = time.thread_time() - began, time.monotonic()
            if not early or now >= due:
                due = max(due + self.settings.slot, now)
            await asyncio.sleep(max(GAP, SHARE * spent) if early else 0.0)

    def try_slot(self) -> None:
        """Run a slot; if it fails, which it must not, memory is not trusted any more, but slots go on."""
        try:
            self.run_slot()
        except Exception as error:
            log.exception("a slot failed")
            self._recover(f"a slot failed: {error}")
        self._outbox.flush()

    async def _keep_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self.settings.checkpoint_every)
            if self.ready and self._memory is not None:
                with _going_on("a checkpoint"):
                    await self._checkpoint(self._memory)

    async def _checkpoint(self, memory: Memory) -> None:
        """Save what was learnt, with the last reward that it contains."""
        if memory.scheduler is None or not self.options.learns:
            return
        state, seq, now = memory.scheduler.snapshot(jobs=False), memory.ids.last_seq, time.time()
        await self.write(lambda tx: save_checkpoint(tx, seq, now, state, sha256(state).hexdigest()))
        self.meters.saved = now

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_EVERY)
            if self.ready:
                with _going_on("deleting what is past"):
                    await delete_past(self, time.time())

    async def _watch(self) -> None:
        """Notice when the connection to the database is gone although nobody writes."""
        while True:
            await self.store.lost.wait()
            self._recover("the connection to the database was lost")
            await asyncio.sleep(0.1)

    def _recover(self, reason: str) -> None:
        """Stop trusting memory, and load it again as soon as the database is back."""
        if self._recovering or self.stopping:
            return
        log.error("the database is away: %s", reason)
        self._recovering, self.ready = True, False
        self._outbox.close()
        self.meters.recoveries += 1
        self.end_polls()
        self.spawn(self._come_back())

    async def _come_back(self) -> None:
        """Reconnect and load until that works; after a pause, if what failed fails again and again."""
        await asyncio.sleep(self._pauses.next(time.monotonic()))
        while not self.ready and not self.stopping:
            try:
                self.following = self.store.shared
                async with self._looking_for_leader():
                    if await self.store.reconnect():
                        log.warning("another process led in between")
                await self._load()
                self.following = False
            except Unavailable as error:
                log.error("the database is still away: %s", error)
                await asyncio.sleep(RETRY)
            except Exception:
                log.exception("the database cannot be loaded")
                await asyncio.sleep(RETRY)
        self._recovering = False
        log.info("the database is back")

    async def _load(self) -> None:
        now = time.monotonic()
        ids = await self.store.write(lambda tx: configure(tx, self.settings, self._address))
        memory, self._options = await self.store.read(lambda tx: load(tx, self.settings, ids, self._seed, now))
        memory.meters, self.meters.saved, self._memory = self.meters, time.time(), memory
        self.loaded = time.time()
        self._offered = time.monotonic()
        self.ready = not self.stopping

    def end_polls(self) -> None:
        """End all calls that wait for work."""
        if self._memory is not None:
            for poll in self._memory.polls():
                poll.end()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a part of the service failed", exc_info=task.exception())
            self._recover("a part of the service failed")


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Go on after a failure; it is in the log, and if the database is away, that is there already."""
    try:
        yield
    except Unavailable:
        pass
    except Exception:
        log.exception("%s failed", what)


async def _in_time(saved: Payloads) -> None:
    """Wait for what nobody asked for; if it fails, memory is loaded again anyway."""
    with contextlib.suppress(Unavailable):
        await saved


def _warm() -> None:
    """Run a slot of a small scheduler, so that the first real one does not wait for kernels to be loaded."""
    scheduler = Scheduler([JobClass("job", [1.0])], [ServerClass("server", [1.0])], V=1e-6, work_conserving=True)
    for _ in range(2):
        scheduler.submit("job")
        for task in scheduler.assign({"server": 1}):
            scheduler.report(task.job, reward=0.0)
