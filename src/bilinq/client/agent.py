"""The agent: polls for many servers at once, runs their jobs, reports what became of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bilinq.client.awaiting import AsyncClient
from bilinq.client.held import HeldJob, failing
from bilinq.client.runners import STOPPED, Runner
from bilinq.client.transport import backoff
from bilinq.errors import BadInput, Busy, Conflict, NotAllowed, NotFound, Refused, Unavailable
from bilinq.live.wire.messages import Lease, Worked, WorkFinish


@dataclass(frozen=True)
class Plan:
    """What a worker is: its servers' class and names, seconds to wait for jobs, and to get results across when it leaves."""

    server_class: str
    names: tuple[str, ...]
    wait: float
    leave: float


@dataclass
class Batch:
    """Names to register, servers that are idle, and ends of leases to send."""

    absent: list[str] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)
    ends: list[WorkFinish] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.absent or self.idle or self.ends)

    def take(self) -> "Batch":
        """Return everything, and keep nothing."""
        taken = Batch(self.absent, self.idle, self.ends)
        self.absent, self.idle, self.ends = [], set(), []
        return taken

    def take_ends(self) -> "Batch":
        """Return the ends of leases, and keep the rest."""
        taken = Batch(ends=self.ends)
        self.ends = []
        return taken

    def put_back(self, other: "Batch") -> None:
        """Take over what `other` has left."""
        self.absent += other.absent
        self.idle |= other.idle
        self.ends += other.ends


log = logging.getLogger("bilinq.worker")

TURNS = 16
"""Most turns that wait for jobs at the same time; a server that turns idle then waits for one to come back. Ends of leases
do not: there is one turn more for them."""
PATIENCE = 5.0
"""Seconds that a call tries before the worker is told, says so and tries again."""
ABREAST = 16
"""Servers that are registered or taken away at the same time."""
QUICK = 0.5
"""An answer without jobs that comes before this part of the time to wait is no reason to ask again at once."""


class Agent:
    """Serves jobs until it is stopped."""

    def __init__(self, client: AsyncClient, plan: Plan, runner: Runner) -> None:
        self._client = client.within(PATIENCE)
        self._plan = plan
        self._runner = runner
        self._todo = Batch(absent=list(plan.names))
        self._names: dict[str, str] = {}
        self._held: dict[HeldJob, asyncio.Future[WorkFinish]] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = False
        self._failures = 0
        self._fatal: BaseException | None = None

    async def run(self) -> None:
        """Serve until stopped and everything held has ended; raise what makes it useless to go on."""
        try:
            self._begin_turn()
            while not self._stopping or self._turns or self._serving:
                await self._changed.wait()
                self._changed.clear()
                self._begin_turn()
        finally:
            for task in self._turns | self._serving:
                task.cancel()
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Ask for no more jobs, finish what is held, then leave."""
        if self._stopping:
            return
        log.info("leaving; jobs to finish: %d", len(self._held))
        self._stopping = True
        for turn in self._turns:
            turn.cancel()
        self._changed.set()

    def abandon(self) -> None:
        """Leave now: interrupt what runs and give its leases back."""
        self.stop()
        for held, outcome in self._held.items():
            self._runner.interrupt(held)
            outcome.cancel()

    def _begin_turn(self) -> None:
        if self._stopping:
            self._todo.absent.clear()
        room = TURNS - len(self._turns)
        batch = self._todo.take() if room > 0 else self._todo.take_ends() if room == 0 else Batch()
        if batch:
            self._spawn(self._turns, self._leave(batch) if self._stopping else self._turn(batch))

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

    async def _turn(self, batch: Batch) -> None:
        """Register what is absent, send what has ended, wait for jobs."""
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
            self._todo.put_back(batch)

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
        wait = self._plan.wait / len(self._turns) if batch.idle else 0.0
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
            log.info("the service is back")
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
            log.warning("%s; trying again", error)
        named = error.retry_after if isinstance(error, (Unavailable, Busy)) else 0.0
        await asyncio.sleep(max(backoff(self._failures), named))

    async def _settle(self, batch: Batch, worked: Worked) -> None:
        """Forget ends that were taken, and give back leases whose end was refused, unless they are gone."""
        why = {outcome.lease: outcome.refused for outcome in worked.finished}
        while batch.ends:
            end = batch.ends[-1]
            if (text := why.get(end.lease)) is not None:
                await self._give_back(end, text)
            batch.ends.pop()

    async def _send_all(self, batch: Batch, client: AsyncClient) -> None:
        try:
            await self._settle(batch, await client.work(batch.ends))
        except BadInput:
            await self._send_each(batch)

    async def _send_each(self, batch: Batch) -> None:
        """Send ends one by one, so that a bad one does not spoil the others."""
        while batch.ends:
            end = batch.ends[-1]
            try:
                await self._settle(Batch(ends=[end]), await self._client.work([end]))
            except BadInput as error:
                await self._give_back(end, str(error))
            batch.ends.pop()

    async def _give_back(self, end: WorkFinish, why: str) -> None:
        log.warning("the end of lease %s was refused: %s", end.lease, why)
        if end.error is None:
            try:
                await self._client.fail(end.lease, end.fence, why)
            except Refused as error:
                log.info("lease %s could not be given back either: %s", end.lease, error)

    async def _leave(self, batch: Batch) -> None:
        """Send what has ended and take idle servers away; a job that one got unseen goes back to its queue by that."""
        try:
            if batch.ends:
                await self._send_all(batch, self._client.within(self._plan.leave))
            await _each(self._take_away, list(batch.idle))
        except Refused as error:
            what = f"ends of {len(batch.ends)} leases could not be sent" if batch.ends else "servers are left behind"
            log.error("%s: %s", what, error)

    async def _take_away(self, server: str) -> None:
        with suppress(NotFound):
            await self._client.unregister(server)

    async def _serve(self, lease: Lease) -> None:
        """Have a job served and note how it ended."""
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
            log.warning("%s: what came of it is dropped, because the lease was lost", held)
        else:
            self._todo.ends.append(end)
        self._todo.idle.add(lease.server)

    async def _beat(self, held: HeldJob) -> None:
        """Extend the lease, each time when a third of it is over, until it is lost or the job has ended."""
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
    """Make a call for each item, several at a time; if some fail, raise one of their errors after that."""
    for start in range(0, len(items), ABREAST):
        calls = [call(item) for item in items[start : start + ABREAST]]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if outcome is not None:
                raise outcome
