"""`Worker` serves jobs with a function; its agent polls for many servers at once, runs their jobs and reports the ends."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from bilinq.arrays import count
from bilinq.client.calls import new_key
from bilinq.client.clients import AsyncClient, Client
from bilinq.client.held import STOPPED, Function, HeldJob, Runner, failing, runner_of
from bilinq.client.transport import backoff
from bilinq.errors import BadInput, Busy, Conflict, NotAllowed, NotFound, Refused, Unavailable
from bilinq.live.wire.messages import BATCH, Lease, Worked, WorkFinish


@dataclass(frozen=True)
class Plan:
    """Class and names of the servers of a worker, seconds to wait for jobs, and seconds to send results when it leaves."""

    server_class: str
    names: tuple[str, ...]
    wait: float
    leave: float


@dataclass
class Batch:
    """Names to register, idle servers, and ends of leases to send."""

    absent: list[str] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)
    ends: list[WorkFinish] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.absent or self.idle or self.ends)

    def merge(self, other: "Batch") -> None:
        """Add what is left of `other`."""
        self.absent += other.absent
        self.idle |= other.idle
        self.ends += other.ends


log = logging.getLogger("bilinq.worker")

POLLS = 16
"""Maximum number of polls that wait for jobs at the same time; with that many, a server that becomes idle waits for one of
them to return. Ends of leases do not wait: there is one more poll for them."""
PATIENCE = 5.0  # seconds of retries in one call; then the worker logs the failure and starts again
PARALLEL = 16  # servers that are registered or removed at the same time
QUICK = 0.5  # after a response without jobs that arrives before this fraction of the waiting time, the worker pauses


class Agent:
    """Serves jobs until it is stopped."""

    def __init__(self, client: AsyncClient, plan: Plan, runner: Runner) -> None:
        self._client = client.within(PATIENCE)
        self._plan = plan
        self._runner = runner
        self._todo = Batch(absent=list(plan.names))
        self._names: dict[str, str] = {}
        self._held: dict[HeldJob, asyncio.Future[WorkFinish]] = {}
        self._polls: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = False
        self._failures = 0
        self._fatal: BaseException | None = None

    async def run(self) -> None:
        """Serve until it is stopped and all jobs have ended; raise an error that makes it useless to continue."""
        try:
            self._begin_poll()
            while not self._stopping or self._polls or self._serving:
                await self._changed.wait()
                self._changed.clear()
                self._begin_poll()
        finally:
            for task in self._polls | self._serving:
                task.cancel()
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Accept no more jobs, finish those in progress, then leave."""
        if self._stopping:
            return
        log.info("leaving; jobs to finish: %d", len(self._held))
        self._stopping = True
        for poll in self._polls:
            poll.cancel()
        self._changed.set()

    def abandon(self) -> None:
        """Leave now: interrupt running functions and return their jobs."""
        self.stop()
        for held, outcome in self._held.items():
            self._runner.interrupt(held)
            outcome.cancel()

    def _begin_poll(self) -> None:
        if self._stopping:
            self._todo.absent.clear()
        batch = Batch()
        if len(self._polls) < POLLS:
            batch, self._todo = self._todo, batch
        elif len(self._polls) == POLLS:
            batch.ends, self._todo.ends = self._todo.ends, []
        if batch:
            self._spawn(self._polls, self._leave(batch) if self._stopping else self._poll(batch))

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        def end(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("giving up: %s", error)
                self._fatal = self._fatal or error
                self.stop()

        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(end)

    async def _poll(self, batch: Batch) -> None:
        """Register servers that are absent, send ends of leases, wait for jobs."""
        try:
            await self._register(batch)
            await self._ask(batch)
        except (Unavailable, Busy, Conflict) as error:
            await self._pause(error)
        except NotFound as error:
            batch.absent += [self._names.pop(server) for server in batch.idle]
            batch.idle.clear()
            await self._pause(error)
        finally:
            self._todo.merge(batch)

    async def _register(self, batch: Batch) -> None:
        async def one(name: str) -> None:
            try:
                server = await self._client.register(self._plan.server_class, name)
            except NotFound as error:
                raise Refused(str(error)) from None
            log.info("registered as %s, %s of class %s", server.id, name, server.server_class)
            self._names[server.id] = name
            batch.absent.remove(name)
            batch.idle.add(server.id)

        await _each(one, list(batch.absent))

    async def _ask(self, batch: Batch) -> None:
        wait = self._plan.wait / len(self._polls) if batch.idle else 0.0
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            worked = await self._client.work(batch.ends, sorted(batch.idle), wait)
        except BadInput:
            if not batch.ends:
                raise
            await self._send_each(batch)
            return
        if self._failures:
            log.info("the service is available again")
            self._failures = 0
        refused = {outcome.lease for outcome in worked.finished if outcome.refused is not None}
        for lease in worked.leases:
            if lease.lease not in refused and lease.server in batch.idle:
                batch.idle.remove(lease.server)
                self._spawn(self._serving, self._serve(lease))
        await self._settle(batch, worked)
        if batch.idle and not worked.leases and clock() - start < QUICK * wait:
            await asyncio.sleep(min(QUICK * wait, 1.0))

    async def _pause(self, error: Refused) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("%s; retrying", error)
        named = error.retry_after if isinstance(error, (Unavailable, Busy)) else 0.0
        await asyncio.sleep(max(backoff(self._failures), named))

    async def _settle(self, batch: Batch, worked: Worked) -> None:
        """Forget ends that were accepted, and fail leases whose end was refused."""
        why = {outcome.lease: outcome.refused for outcome in worked.finished}
        while batch.ends:
            end = batch.ends[-1]
            if (text := why.get(end.lease)) is not None:
                await self._fail(end, text)
            batch.ends.pop()

    async def _send_each(self, batch: Batch) -> None:
        """Send ends one by one, so that a bad one does not affect the others."""
        while batch.ends:
            end = batch.ends[-1]
            try:
                await self._settle(Batch(ends=[end]), await self._client.work([end]))
            except BadInput as error:
                await self._fail(end, str(error))
            batch.ends.pop()

    async def _fail(self, end: WorkFinish, why: str) -> None:
        log.warning("the service refused the end of lease %s: %s", end.lease, why)
        if end.error is None:
            try:
                await self._client.fail(end.lease, end.fence, why)
            except Refused as error:
                log.info("lease %s could not be failed either: %s", end.lease, error)

    async def _leave(self, batch: Batch) -> None:
        """Send ends of leases and remove idle servers; a job that one of them got meanwhile returns to its queue."""
        try:
            if batch.ends:
                try:
                    await self._settle(batch, await self._client.within(self._plan.leave).work(batch.ends))
                except BadInput:
                    await self._send_each(batch)
            await _each(self._remove, list(batch.idle))
        except Refused as error:
            unsent = f"ends of {len(batch.ends)} leases could not be sent" if batch.ends else ""
            log.error("%s: %s", unsent or "servers could not be removed", error)

    async def _remove(self, server: str) -> None:
        with suppress(NotFound):
            await self._client.unregister(server)

    async def _serve(self, lease: Lease) -> None:
        held = HeldJob(lease)
        outcome = self._held[held] = asyncio.wrap_future(self._runner.start(held))
        beat = asyncio.create_task(self._beat(held))
        try:
            end = await outcome
        except asyncio.CancelledError:
            end = failing(held, STOPPED)
        finally:
            beat.cancel()
            del self._held[held]
        if held.lost:
            log.warning("%s: the result is dropped, because the lease was lost", held)
        else:
            self._todo.ends.append(end)
        self._todo.idle.add(lease.server)

    async def _beat(self, held: HeldJob) -> None:
        """Extend the lease after each third of it, until it is lost or the job has ended."""
        pause = held.seconds / 3.0
        while True:
            await asyncio.sleep(pause)
            try:
                deadline = await self._client.within(held.seconds / 3.0).extend(held.lease, held.fence)
                pause = deadline.seconds / 3.0
            except (Conflict, NotFound, NotAllowed) as error:
                log.warning("%s is lost: %s", held, error)
                held.lose()
                self._runner.interrupt(held)
                return
            except Refused as error:
                log.warning("%s could not be extended: %s", held, error)
                pause = held.seconds / 30.0


async def _each(call: Callable[[str], Awaitable[None]], items: Sequence[str]) -> None:
    """Make a call for each item, several at a time; if some fail, raise one of the errors afterwards."""
    for start in range(0, len(items), PARALLEL):
        calls = [call(item) for item in items[start : start + PARALLEL]]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if outcome is not None:
                raise outcome


SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONGEST_WAIT = 60.0  # maximum seconds that the service lets a request wait
CLEAN_UP = 10.0  # seconds for interrupted coroutines to clean up


class Worker:
    """Serves jobs with a function that gets a job and returns its reward.

    While the function runs, the worker extends the lease after each third of it. If the lease is lost nevertheless,
    `job.lost` becomes true, a coroutine is cancelled, and what the function returns is dropped. An exception fails the
    attempt with its text as the reason. The worker survives restarts of the service.

    After SIGTERM or SIGINT it accepts no more jobs, finishes those in progress and leaves; after a second signal it
    returns them and leaves at once.

    Parameters
    ----------
    client : Client or AsyncClient
        Address of the service and key; the worker opens its own connections.
    server_class : str
    function : callable
        function(job) -> reward, None (nothing is learnt), or `Done`. A plain function runs in threads, a coroutine function
        on an event loop in a thread of its own. A function that keeps the interpreter lock for a third of a lease prevents
        heartbeats.
    name : str, optional
        After a crash, a worker with the same name becomes the same server, and its job is freed at once instead of at the
        end of the lease. Two workers with the same name would free each other's jobs.
    servers : int
        Number of jobs at the same time; if above 1, the servers are called name-1, name-2 and so on.
    wait : float
        Seconds that one request waits for a job, up to 60.
    leave : float
        Seconds to retry sending results if the service is unavailable when the worker leaves.
    """

    def __init__(
        self, client: Client | AsyncClient, server_class: str, function: Function, name: str | None = None, *,
        servers: int = 1, wait: float = 10.0, leave: float = 30.0,
    ) -> None:  # fmt: skip
        if count("servers", servers) > BATCH:
            raise BadInput(f"servers must be at most {BATCH}; got {servers}")
        if not 0 < wait <= LONGEST_WAIT:
            raise BadInput(f"wait must be above 0 and at most {LONGEST_WAIT:g} seconds; got {wait}")
        if not leave >= 0:
            raise BadInput(f"leave must be a non-negative number of seconds; got {leave}")
        name = name or f"{socket.gethostname()}-{new_key()[:8]}"
        names = (name,) if servers == 1 else tuple(f"{name}-{k}" for k in range(1, servers + 1))
        self._link = client.link
        self._plan = Plan(server_class, names, wait, leave)
        self._function = function
        self._stopped = threading.Event()
        self._running: tuple[asyncio.AbstractEventLoop, Agent] | None = None

    def run(self) -> None:
        """Serve until `stop` or, in the main thread, a signal."""
        asyncio.run(self._serve(_stopped_by_signals))

    async def serve(self) -> None:
        """Serve until `stop`; for programs that have an event loop and handle signals themselves."""
        await self._serve(nullcontext)

    async def _serve(self, stopped_by: Callable[[Agent], AbstractContextManager[Any]]) -> None:
        link = self._link
        runner = runner_of(self._function, len(self._plan.names))
        client = AsyncClient(link.url, link.key, timeout=link.timeout, attempt=link.attempt, verify=link.verify)
        try:
            async with client:
                agent = Agent(client, self._plan, runner)
                self._running = asyncio.get_running_loop(), agent
                if self._stopped.is_set():
                    agent.stop()
                with stopped_by(agent):
                    await agent.run()
        finally:
            self._running = None
            await runner.close(CLEAN_UP)

    def stop(self) -> None:
        """Accept no more jobs, finish those in progress, then leave; may be called from any thread."""
        self._stopped.set()
        if (running := self._running) is not None:
            loop, agent = running
            with suppress(RuntimeError):  # the worker has just left
                loop.call_soon_threadsafe(agent.stop)


@contextmanager
def _stopped_by_signals(agent: Agent) -> Iterator[None]:
    """Stop the agent at the first signal, make it leave at once at the second, and restore the default for the third."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    seen = 0

    def arrive() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            agent.stop()
        else:
            agent.abandon()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, arrive)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
