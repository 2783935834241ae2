"""Which request goes to which back end, and when: a `bilinq.Scheduler` on the clock of the event loop.

The scheduler's slot is a second. It decides whenever a request comes or ends, and while requests wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.arrays import Array
from bilinq.gateway.config import Config
from bilinq.gateway.errors import ApiError, all_down, queue_full
from bilinq.gateway.features import KINDS
from bilinq.gateway.worth import FAILURE, HIGHEST, LOWEST
from bilinq.scheduler.explain import Decision, Explanation

LONGEST_PAUSE = 60.0  # seconds of the longest pause of a back end that fails
FIRST_HOLD, LONGEST_HOLD = 1.0, 60.0
"""Seconds of the pause of a back end that answers 429 and does not say for how long; it doubles from one to the next."""
WINDOW = 4  # requests of each tenant that the scheduler sees, in multiples of all slots
LEAST_DURATION = 1e-6


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """A request that waits for a back end, or is at one.

    Attributes
    ----------
    job : str
        Its name in the scheduler: the id of the request, and the attempt.
    tenant, kind : str
    features : array, optional
    servers : tuple of str
        Back ends that may serve it.
    cost : mapping
        What the decision should count against each back end, in units of quality.
    came : float
        When the request came, by the clock; an earlier attempt counts.
    again : bool
        Whether it is a further attempt, which comes first.
    """

    job: str
    tenant: str
    kind: str
    features: Array | None
    servers: tuple[str, ...]
    cost: Mapping[str, float]
    came: float
    again: bool = False
    backend: str | None = None
    waited: float = 0.0
    decision: Decision | None = None
    begin: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True)
class Load:
    """How busy a back end is: requests at it, most at a time, until when it asked for a pause, and the next such pause."""

    slots: int
    busy: int = 0
    held_until: float = 0.0
    hold: float = FIRST_HOLD
    last_error: str = ""


def new_scheduler(config: Config) -> Scheduler:
    """Return a scheduler that has learnt nothing."""
    return Scheduler(
        [JobClass(kind) for kind in KINDS], [ServerClass(one.name) for one in config.backend],
        **patience(config), reward=(LOWEST, HIGHEST), failure_reward=FAILURE, longest_pause=LONGEST_PAUSE, keep=0,
        seed=config.seed, exploration=config.exploration,
    )  # fmt: skip


def patience(config: Config) -> dict[str, Any]:
    """Return the setting of the scheduler that says how long requests may wait: the price of a second, or a target."""
    price = config.worth.wait * 2.0 / (HIGHEST - LOWEST)  # rewards are from -1 to 1 inside
    return {"V": 1.0 / price} if price else {"target_wait": config.target_wait}


class Dispatcher:
    """Requests wait here for a back end.

    The scheduler sees only the first requests of each tenant's line: otherwise a tenant that sends a thousand requests at
    once would make another one wait for all of them.
    """

    def __init__(self, config: Config, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self.scheduler, self._clock = scheduler, clock
        self.loads = {one.name: Load(one.concurrency) for one in config.backend}
        self._weight = {name: 1.0 if one is None else one.weight for name, one in config.tenants.items()}
        self._lines = {name: deque[Ticket]() for name in self._weight}
        self._shown: dict[str, Ticket] = {}
        self._shown_of, self.waiting = Counter[str](), Counter[str]()
        self._backlog = config.backlog
        self._window = WINDOW * sum(one.concurrency for one in config.backend)
        self._pause = min(max(config.target_wait / 20.0, 0.01), 0.25)  # seconds between two looks at those who wait
        self._synced = self._clock()
        self._next_look: asyncio.Handle | None = None

    # Requests

    async def place(self, ticket: Ticket) -> str:
        """Wait until the request has a back end, and return its name; `free` must follow.

        Raises
        ------
        ApiError
            If too many requests of the tenant wait, or all back ends that may serve it are down.
        """
        self._sync()
        down = self._down(ticket.servers)
        if down is not None:
            raise down
        if not ticket.again and self._full(ticket.tenant):
            raise queue_full(self._backlog, self.retry_after)
        self.waiting[ticket.tenant] += 1
        line = self._lines[ticket.tenant]
        (line.appendleft if ticket.again else line.append)(ticket)
        self._fill(ticket.tenant)
        self._look_soon()
        try:
            return await ticket.begin
        except asyncio.CancelledError:
            self._withdraw(ticket)
            raise
        finally:
            ticket.waited = self._clock() - ticket.came

    def done(self, ticket: Ticket, reward: float | None, seconds: float) -> None:
        """Note that a request was answered in so many seconds; its reward, if known, is learnt."""
        self._sync()
        self.scheduler.report(ticket.job, reward, True, max(seconds, LEAST_DURATION))
        load = self._free(ticket)
        load.hold, load.last_error = FIRST_HOLD, ""

    def failed(self, ticket: Ticket, reason: str) -> None:
        """Note that a back end failed: it is learnt, and after several failures in a row the back end is paused."""
        self._sync()
        self.scheduler.report(ticket.job, done=True, failed=True)
        self._free(ticket).last_error = reason

    def busy(self, ticket: Ticket, seconds: float, reason: str) -> None:
        """Note that a back end asked for a pause, of so many seconds if that is not zero; nothing is learnt."""
        self._sync()
        self.scheduler.cancel(ticket.job)
        load = self._free(ticket)
        load.held_until = max(load.held_until, self._clock() + (seconds or load.hold))
        load.hold, load.last_error = min(2.0 * load.hold, LONGEST_HOLD), reason

    def left(self, ticket: Ticket) -> None:
        """Note that a request ended without telling anything about its back end: the client left, or it was wrong."""
        self._sync()
        self.scheduler.cancel(ticket.job)
        self._free(ticket)

    @property
    def retry_after(self) -> float:
        """Seconds in which those who wait now may be served, roughly."""
        waits = self.scheduler.waits
        slots = sum(load.slots for load in self.loads.values())
        each = waits.target if waits is not None else 1.0
        return max(self.waiting.total() / slots, 1.0) * max(each, 1.0)

    def down(self, names: Iterable[str]) -> dict[str, float]:
        """Return which of some back ends are paused, and for how many seconds."""
        paused, now = self.scheduler.paused, self._clock()
        left = {name: max(paused.get((name, None), 0.0), self.loads[name].held_until - now) for name in names}
        return {name: seconds for name, seconds in left.items() if seconds > 0.0}

    def share(self, name: str) -> float:
        """Return how busy a back end is, with those who wait for it alone: 1 if all slots are taken."""
        only = sum(ticket.servers == (name,) for ticket in self._shown.values())
        return (self.loads[name].busy + only) / self.loads[name].slots

    def advise(
        self, kind: str, features: Array | None, servers: Sequence[str], cost: Mapping[str, float] | None = None,
        weight: float = 1.0,
    ) -> Explanation:  # fmt: skip
        """Return what the scheduler thinks of some back ends for a request that it does not get."""
        self._sync()
        self.scheduler.submit(
            kind, job="advice", features=features, servers=servers, cost=cost, weight=weight,
            ahead=True,  # so that it is no arrival
        )  # fmt: skip
        found = self.scheduler.explain("advice")
        self.scheduler.cancel("advice")
        return found

    # Slots and lines

    def _free(self, ticket: Ticket) -> Load:
        assert ticket.backend is not None
        load = self.loads[ticket.backend]
        load.busy -= 1
        self._look_soon()
        return load

    def _withdraw(self, ticket: Ticket) -> None:
        """Forget a request whose client has left while it waited, or just as it got a back end."""
        if ticket.backend is not None:
            self.left(ticket)
        elif ticket.job in self._shown:
            self.scheduler.cancel(ticket.job)
            self._hide(ticket)
        else:
            with contextlib.suppress(ValueError):  # it may just have been refused
                self._lines[ticket.tenant].remove(ticket)
                self.waiting[ticket.tenant] -= 1

    def _full(self, tenant: str) -> bool:
        """Return whether no more requests of a tenant may wait, after a decision about those that came just now."""
        soon = self._next_look is not None and not isinstance(self._next_look, asyncio.TimerHandle)
        if soon and self.waiting[tenant] >= self._backlog:
            self._look()
        return self.waiting[tenant] >= self._backlog

    def _fill(self, tenant: str) -> None:
        """Show the scheduler the first requests of a line."""
        line = self._lines[tenant]
        while line and self._shown_of[tenant] < self._window:
            ticket = line.popleft()
            self.scheduler.submit(
                ticket.kind, job=ticket.job, features=ticket.features, servers=ticket.servers, cost=ticket.cost,
                weight=self._weight[tenant], waited=max(self._clock() - ticket.came, 0.0) if ticket.again else 0.0,
                ahead=ticket.again,
            )  # fmt: skip
            self._shown[ticket.job] = ticket
            self._shown_of[tenant] += 1

    def _hide(self, ticket: Ticket) -> None:
        """Forget a request that the scheduler has seen and that does not wait any more."""
        del self._shown[ticket.job]
        self.waiting[ticket.tenant] -= 1
        self._shown_of[ticket.tenant] -= 1
        self._fill(ticket.tenant)

    def _down(self, names: Sequence[str]) -> ApiError | None:
        """Return the error for a request whose back ends are all paused; None if one of them is not."""
        down = self.down(names)
        if len(down) < len(names):
            return None
        reasons = [self.loads[name].last_error for name in names if self.loads[name].last_error]
        return all_down(list(names), reasons[-1] if reasons else "", min(down.values()))

    # Decisions

    def _sync(self) -> None:
        """Move the scheduler's clock to now."""
        now = self._clock()
        self.scheduler.advance(now - self._synced)
        self._synced = now

    def _look_soon(self) -> None:
        """Decide as soon as what happens now is over."""
        if isinstance(self._next_look, asyncio.TimerHandle):
            self._next_look.cancel()
            self._next_look = None
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Let the scheduler decide, and refuse those whose back ends are all down."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._sync()
        now = self._clock()
        idle = {
            name: load.slots - load.busy
            for name, load in self.loads.items()
            if load.busy < load.slots and load.held_until <= now
        }
        for task in self.scheduler.assign(idle, 0.0):
            ticket = self._shown[str(task.job)]
            ticket.backend, ticket.decision = task.server_class, self.scheduler.decision(task.job)
            self.loads[task.server_class].busy += 1
            self._hide(ticket)
            if not ticket.begin.cancelled():  # else `place` is about to withdraw it
                ticket.begin.set_result(task.server_class)
        if self._shown:
            self._refuse_stranded()
            self._look_later(bool(idle))

    def _refuse_stranded(self) -> None:
        """Refuse waiting requests whose back ends have all gone down."""
        if not self.down(self.loads):
            return
        for ticket in list(self._shown.values()):
            error = self._down(ticket.servers)
            if error is not None and not ticket.begin.done():
                self.scheduler.cancel(ticket.job)
                self._hide(ticket)
                ticket.begin.set_exception(error)

    def _look_later(self, room: bool) -> None:
        """Decide again soon if there is room, or else when the first pause ends; what comes or ends also decides."""
        waits = list(self.down(self.loads).values())
        if room:
            waits.append(self._pause)
        if waits and self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(max(min(waits), 0.005), self._look)
