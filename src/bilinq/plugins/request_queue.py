"""A queue for hosts that ask for one request at a time, such as LiteLLM and Ray Serve, with the scheduler inside.

Such a host asks "which server?" and sends the request there as soon as it gets an answer. The scheduler may prefer that a
request waits for a better server that is free soon. There were three ways to bring both together:

- answer at once, also with a busy server. The request then waits at that server, and nothing that happens later can
  change the decision. This is what balancers do, and it gives up what looking ahead earns;
- `work_conserving=True`: wait only while all places are taken. This gives up most of it, too (docs/contest.md);
- let the request wait here, where it can still be assigned to any server, but no longer than `patience` seconds.

The queue does the third. A request that has waited for `patience` gets the free place with the best score, or the least
busy of its servers if no place is free. So every request gets an answer in bounded time, whatever the scheduler does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from numpy.typing import ArrayLike

from bilinq.arrays import non_negative, positive, scalar
from bilinq.errors import BadInput
from bilinq.plugins.places import UNSEEN, Places, Server
from bilinq.scheduler import JobClass, Scheduler, ServerClass

LOG = logging.getLogger("bilinq.plugins")
MOST_CLASSES = 64  # job classes; requests of further ones share `OTHER`
OTHER = "other"
SHORTEST = 1e-6  # seconds; a duration must be positive
T = TypeVar("T")


class Choice(NamedTuple):
    """Where a request goes. `request` is its number, and None if the queue could not note it because of an error."""

    request: int | None
    server: str


@dataclass(slots=True)
class _Request:
    """A request that waits here, or that is at a server since a time."""

    job_class: str
    features: ArrayLike | None
    servers: dict[str, str]  # names and kinds of those that may serve it
    begun: float
    ready: Future[None] = field(default_factory=Future)
    server: str | None = None
    since: float = 0.0


@dataclass
class Counts:
    """How requests got their servers, and what else happened.

    Attributes
    ----------
    scheduled : int
        By the scheduler.
    hurried : int
        Patience was over: the free place with the best score.
    crowded : int
        Patience was over and no place was free: the least busy server.
    errors : int
        An error inside the queue or in a function of the user, which is logged: the least busy server.
    expired : int
        Requests whose end was not reported within `lifetime`; their places are free again.
    unknown : int
        Ends and rewards of requests that are not known, or no longer.
    """

    scheduled: int = 0
    hurried: int = 0
    crowded: int = 0
    errors: int = 0
    expired: int = 0
    unknown: int = 0


class RequestQueue:
    """Chooses a server for each request, waits at most `patience` seconds for it, and learns from what is reported.

    All methods may be called from any thread and any event loop. `choose` never raises because of an error in here: it then
    returns the least busy server and counts the error.

    Parameters
    ----------
    reward : (low, high)
        The range of rewards; others are clipped to it.
    patience : float
        Seconds that a request may wait here.
    lifetime : float
        Seconds after which a request whose end was never reported no longer counts: its client may have gone.
    keep : int
        How many ended requests can be rewarded late.
    seed : int
    clock : callable
        Returns seconds.
    **settings
        Other arguments of `bilinq.Scheduler`, such as `target_wait` in seconds.

    Examples
    --------
    >>> queue = RequestQueue(reward=(0.0, 1.0), seed=1)
    >>> choice = queue.choose([Server("large", "large", places=1), Server("small", "small", places=2)], features=[0.3])
    >>> queue.finish(choice.request, reward=0.8)
    True
    """

    def __init__(
        self,
        *,
        reward: tuple[float, float] = (-1.0, 1.0),
        patience: float = 5.0,
        lifetime: float = 300.0,
        keep: int = 10_000,
        seed: int = 0,
        clock: Callable[[], float] = monotonic,
        snapshot: bytes | None = None,
        **settings: Any,
    ) -> None:
        self.patience = scalar("patience", patience, non_negative)
        self.lifetime = scalar("lifetime", lifetime, positive)
        self.counts = Counts()
        self._clock, self._lock = clock, RLock()
        self._last = clock()
        self._kinds: dict[str, float] = {}
        if snapshot is None:
            self.scheduler = Scheduler(
                [JobClass(OTHER)], [ServerClass(OTHER)], reward=reward, keep=keep, seed=seed, **settings
            )
        else:
            self.scheduler = Scheduler.restore(snapshot)
            self._kinds = dict.fromkeys((one.name for one in self.scheduler.server_classes), self._last)
        self._places = Places()
        self._requests: dict[int, _Request] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many requests wait here."""
        return self._waiting

    def snapshot(self) -> bytes:
        """Return what was learnt as bytes, for the argument `snapshot` of a queue after a restart."""
        with self._lock:
            return self.scheduler.snapshot(jobs=False)

    def call(self, what: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return what a function of the user returns; None after an error, which is logged and counted."""
        try:
            return function(*arguments)
        except Exception:
            LOG.exception("%s raised an error; the request goes on without it", what)
            self.counts.errors += 1
            return None

    # Choices

    def choose(self, servers: Sequence[Server], features: ArrayLike | None = None, job_class: str = OTHER) -> Choice:
        """Return where a request goes; block the calling thread while it waits."""
        choice, request = self._begin(servers, features, job_class)
        if request is not None and choice.request is not None:
            try:
                request.ready.result(self.patience)
            except TimeoutError:
                pass
            except BaseException:
                self.drop(choice.request)
                raise
            return self._settled(choice.request, request)
        return choice

    async def wait(
        self, servers: Sequence[Server], features: ArrayLike | None = None, job_class: str = OTHER
    ) -> Choice:
        """Return where a request goes, as `choose` does, without blocking; a cancelled request leaves."""
        choice, request = self._begin(servers, features, job_class)
        if request is not None and choice.request is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(request.ready), self.patience)
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                self.drop(choice.request)
                raise
            return self._settled(choice.request, request)
        return choice

    def _begin(
        self, servers: Sequence[Server], features: ArrayLike | None, job_class: str
    ) -> tuple[Choice, _Request | None]:
        """Return a choice, or the number of a request that waits, with the request."""
        if not servers:
            raise BadInput("servers must have at least one server that may serve the request; got none")
        with self._lock:
            number = None
            try:
                number, request = self._submit(servers, features, job_class)
                self._decide()
                if request.server is None and self.patience == 0.0:
                    self._hurry(number, request)
                return Choice(number, request.server or ""), None if request.server else request
            except Exception:
                return self._after_error(number, servers), None

    def _submit(self, servers: Sequence[Server], features: ArrayLike | None, job_class: str) -> tuple[int, _Request]:
        now = self._advance()
        self._meet(servers, job_class, now)
        name = job_class if job_class in {one.name for one in self.scheduler.job_classes} else OTHER
        request = _Request(name, features, {one.name: one.kind for one in servers}, now)
        number = self.scheduler.submit(name, features=features, servers=list(dict.fromkeys(request.servers.values())))
        assert isinstance(number, int)
        request.ready.set_running_or_notify_cancel()  # so that a waiting task that is cancelled does not cancel it
        self._requests[number] = request
        self._waiting += 1
        return number, request

    def _after_error(self, number: int | None, servers: Sequence[Server]) -> Choice:
        """Forget a request whose choice raised an error, and return the least busy server."""
        LOG.exception("bilinq could not choose a server; the request goes to the least busy one")
        self.counts.errors += 1
        if self._requests.pop(number or 0, None) is not None:
            self._waiting = sum(one.server is None for one in self._requests.values())
            with suppress(Exception):  # it may be the scheduler that is broken
                self.scheduler.cancel(number)
        return Choice(None, self._places.least_busy(one.name for one in servers))

    def _settled(self, number: int, request: _Request) -> Choice:
        """Return the server of a request that has waited; patience is over if it has none."""
        with self._lock:
            try:
                if request.server is None:
                    self._advance()
                    self._hurry(number, request)
                assert request.server is not None
                return Choice(number, request.server)
            except Exception:
                return self._after_error(number, [Server(name, kind, 1) for name, kind in request.servers.items()])

    def _decide(self) -> None:
        """Let the scheduler assign requests that wait to free places."""
        if self._waiting:
            for task in self.scheduler.assign(self._places.idle(self._kinds), elapsed=0.0):
                assert isinstance(task.job, int) and isinstance(task.server, str)
                self._start(self._requests[task.job], task.server)
                self.counts.scheduled += 1

    def _hurry(self, number: int, request: _Request) -> None:
        """Take a request out of the queue and send it to the best free place, or to the least busy server."""
        server = self._best_free(number, request)
        if server is None:
            server = self._places.least_busy(request.servers)
            self.counts.crowded += 1
        else:
            self.counts.hurried += 1
        self.scheduler.cancel(number)
        self.scheduler.place(
            request.job_class, request.servers[server], number, features=request.features, server=server
        )
        self._start(request, server)

    def _best_free(self, number: int, request: _Request) -> str | None:
        paused, free = self.scheduler.paused, dict[str, list[str]]()
        for name, kind in request.servers.items():
            if self._places.has_room(name) and not paused.keys() & {(kind, None), (kind, name)}:
                free.setdefault(kind, []).append(name)
        if not free:
            return None
        best = [one.server_class for one in self.scheduler.explain(number).options if one.server_class in free]
        return self._places.least_busy(free[best[0]] if best else next(iter(free.values())))

    def _start(self, request: _Request, server: str) -> None:
        request.server, request.since = server, self._last
        self._waiting -= 1
        self._places.take(server)
        request.ready.set_result(None)

    # What happened to requests

    def finish(self, request: int | None, reward: float | None = None, *, failed: bool = False) -> bool:
        """Note that a service has ended, with its reward if that is known; return whether the request is known.

        A service that failed has no reward. The next attempt of the host is another request.
        """
        with self._lock:
            value = None if failed or reward is None else self._clipped(reward)
            sent = self._take(request)
            if sent is None:
                return False
            took = max(self._advance() - sent.since, SHORTEST)
            self.scheduler.report(request, value, done=True, duration=None if failed else took, failed=failed)
            self._decide()
            return True

    def reward(self, request: int, reward: float) -> bool:
        """Note the reward of a request that has ended, or correct it; return whether the request is known."""
        value = self._clipped(reward)
        with self._lock:
            try:
                self.scheduler.late_reward(request, value)
            except BadInput:
                self.counts.unknown += 1
                return False
            return True

    def drop(self, request: int | None) -> None:
        """Forget a request that was not served: its client has gone, or the server refused it. Nothing is learnt."""
        with self._lock:
            if request in self._requests:
                if self._take(request) is not None:
                    self.scheduler.cancel(request)
                self._advance()
                self._decide()

    def move(self, request: int, server: Server) -> None:
        """Note that the host has sent a request to another server than the chosen one."""
        with self._lock:
            sent = self._requests.get(request)
            if sent is None or sent.server in (None, server.name):
                return
            self._meet([server], sent.job_class, self._advance())
            self._places.free(sent.server)
            self.scheduler.cancel(request)
            self.scheduler.place(sent.job_class, server.kind, request, features=sent.features, server=server.name)
            sent.server = server.name
            self._places.take(server.name)

    def withdraw(self, name: str) -> None:
        """Forget a server that is gone; what was learnt about its kind stays."""
        with self._lock:
            self._places.withdraw(name)

    def _take(self, number: int | None) -> _Request | None:
        """Remove a request and free its place; return it, or None if it is not known."""
        request = None if number is None else self._requests.pop(number, None)
        if request is None:
            self.counts.unknown += 1
        elif request.server is None:
            self._waiting -= 1
        else:
            self._places.free(request.server)
        return request

    def _clipped(self, reward: float) -> float:
        value = float(reward)
        if not isfinite(value):
            raise BadInput(f"reward must be a finite number; got {value}")
        return min(max(value, self.scheduler.reward.low), self.scheduler.reward.high)

    def _advance(self) -> float:
        """Move the scheduler's clock, and drop requests whose end was not reported in time; return the time."""
        now = self._clock()
        if now > self._last:
            self.scheduler.advance(now - self._last)
            self._last = now
        while self._requests:
            number, oldest = next(iter(self._requests.items()))
            if oldest.server is None or self._last - oldest.begun <= self.lifetime:
                break
            self._take(number)
            self.scheduler.cancel(number)
            self.counts.expired += 1
        return self._last

    # Servers and classes

    def _meet(self, servers: Sequence[Server], job_class: str, now: float) -> None:
        """Note the servers of a request, and make room in the scheduler for new kinds and classes."""
        self._places.offer(servers, now)
        new = {one.kind for one in servers} - self._kinds.keys()
        classes = self.scheduler.job_classes
        added = job_class not in {one.name for one in classes} and len(classes) < MOST_CLASSES
        self._kinds |= dict.fromkeys((one.kind for one in servers), now)
        if new or added:
            self._forget(now)
            self.scheduler.set_classes(
                [*classes, JobClass(job_class)] if added else classes, [ServerClass(name) for name in self._kinds]
            )

    def _forget(self, now: float) -> None:
        """Forget servers and kinds that no request could use for a long time."""
        used = self._places.forget(now)
        used |= {kind for request in self._requests.values() for kind in request.servers.values()}
        self._kinds = {name: seen for name, seen in self._kinds.items() if name in used or now - seen <= UNSEEN}
