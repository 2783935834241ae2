"""One process of the service: whether it leads, what it has in memory, and how it changes the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from bilinq import jit
from bilinq.errors import BadInput, Refused, Starting, Unavailable
from bilinq.live.metrics import Meters
from bilinq.live.service.configuration import SECRET
from bilinq.live.service.outbox import Changes, Outbox, Payloads
from bilinq.live.store.admin_tables import get_meta

if TYPE_CHECKING:
    from bilinq.live.service.memory import Memory
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Store, Transaction
    from bilinq.live.store.admin_tables import KeyRow
    from bilinq.live.store.job_tables import LeaseRow

T = TypeVar("T")
log = logging.getLogger("bilinq.live")

GONE = 60.0  # seconds without a request after which a server that is offline does not count as one that can serve
POLL_LEADER = 0.5  # seconds after which a follower checks again which process leads


class Replica:
    """State that all parts of the service share.

    `settings` are as they are now, with what the API has changed. `ready` tells whether requests are served, `stopping`
    whether the process is about to end, and `following` whether another one leads, at the address `leader` as far as a
    follower knows it; `address` is where others reach this one, and `secret` is known to all processes of the database.
    `loaded` is when memory was loaded, by the wall clock, and `last_slot` when the scheduler was last asked, by the
    monotonic clock. `failed` is set while memory cannot be trusted and must be loaded again, `slot_due` when a slot should
    run before its time.
    """

    def __init__(self, settings: ServiceSettings, store: Store) -> None:
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        self.settings, self.store, self.meters = structs.replace(settings, seed=seed), store, Meters()
        self.ready, self.stopping, self.following = False, False, False
        self.leader: str | None = None
        self.address: str | None = None
        self.secret: str | None = None
        self.loaded, self.last_slot = 0.0, time.monotonic()
        self.failed, self.slot_due = asyncio.Event(), asyncio.Event()
        self.tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._memory: Memory | None = None
        self._outbox = Outbox(self._submit, self.slot_due.is_set)

    @property
    def memory(self) -> Memory:
        """Memory; raises `Unavailable` while there is none that can be trusted, `Starting` if there never was."""
        if self._memory is None and not self.stopping:
            work = jit.compiling()
            raise Starting(f"the service is starting{f': {work}' if work else ''}", retry_after=1.0)
        if not self.ready or self._memory is None:
            waits = "stopping" if self.stopping else "not ready; its database is unavailable"
            raise Unavailable(f"the service is {waits}", retry_after=1.0)
        return self._memory

    @property
    def last_keys(self) -> dict[str, KeyRow] | None:
        """The keys as this process last had them in memory; None if it never had."""
        return None if self._memory is None else self._memory.keys

    @property
    def absent(self) -> float:
        """The time since when a server that has sent nothing is gone; none is until this process has led for as long."""
        before = time.time() - GONE
        return before if self.loaded < before else float("-inf")

    def use(self, memory: Memory, settings: ServiceSettings) -> None:
        """Serve requests from memory that was just loaded."""
        memory.count_in(self.meters)
        self.meters.saved = time.time()
        self._memory, self.settings = memory, settings
        self.loaded, self.last_slot = time.time(), time.monotonic()
        self.ready = not self.stopping

    def uses(self, memory: Memory) -> bool:
        """Tell whether memory was not loaded again since it was asked for."""
        return memory is self._memory

    async def write(self, operation: Callable[[Transaction], T], then: Callable[[T], None] | None = None) -> T:
        """Return the result of an operation once it is on disk; if it fails, memory is loaded again.

        `then` is called with the result, whether or not somebody waits.
        """
        self._outbox.close()
        written = self._submit(operation)
        if then is not None:
            written.add_done_callback(partial(_pass_to, then))
        return await asyncio.shield(written)

    def save(
        self, changes: Changes, granted: Sequence[LeaseRow] = (), then: Callable[[], None] | None = None
    ) -> Payloads:
        """Hand over what memory has changed, now; await the returned future until that is on disk.

        `then` is called when it is on disk or has failed, whether or not somebody waits.
        """
        written = self._outbox.put(changes, granted)
        if then is not None:
            written.add_done_callback(lambda _: then())
        if not self.ready:  # memory may be loaded again at any time, and must find this or nothing
            self._outbox.close()
        return asyncio.shield(written)

    def flush(self) -> None:
        """Hand everything that was saved to the store now."""
        self._outbox.flush()

    def _submit(self, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Hand over an operation now, so that the database changes in the order in which memory did."""
        try:
            future = self.store.submit(operation)
        except Unavailable as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            self.fail(str(error))
        else:
            future.add_done_callback(self._check)
        return future

    def _check(self, written: asyncio.Future[Any]) -> None:
        """Give memory up if an operation has failed, whether or not somebody waits: memory stays ahead of the disk."""
        error = None if written.cancelled() else written.exception()
        if error is not None and (isinstance(error, Unavailable) or not isinstance(error, Refused | BadInput)):
            self.fail(str(error) or type(error).__name__)

    def fail(self, reason: str) -> None:
        """Stop trusting memory, until it is loaded again."""
        if self.failed.is_set() or self.stopping:
            return
        log.error("the database is unavailable: %s", reason)
        self.failed.set()
        self.ready = False
        self._outbox.close()
        self.meters.recoveries += 1
        self.end_polls()

    def close(self) -> Memory | None:
        """Serve no more requests, and return memory as it was last."""
        self.stopping, self.ready = True, False
        self._outbox.close()
        self.end_polls()
        return self._memory

    def end_polls(self) -> None:
        """End all calls that wait for work."""
        if self._memory is not None:
            for poll in self._memory.servers.polls():
                poll.end()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until the service stops."""
        task = asyncio.get_running_loop().create_task(work, context=Context())  # which may outlive the present request
        self.tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())
            self.fail("a background task failed")

    @contextlib.asynccontextmanager
    async def finding_leader(self) -> AsyncIterator[None]:
        """Keep `leader` up to date, so that requests can be sent there."""
        polling = asyncio.get_running_loop().create_task(self._poll_leader())
        try:
            yield
        finally:
            polling.cancel()

    async def _poll_leader(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                leader, self.secret = await self.store.read(lambda tx: (get_meta(tx, "leader"), get_meta(tx, SECRET)))
                self.leader = leader or None
            await asyncio.sleep(POLL_LEADER)


def _pass_to(then: Callable[[T], None], written: asyncio.Future[T]) -> None:
    if not written.cancelled() and written.exception() is None:
        then(written.result())
