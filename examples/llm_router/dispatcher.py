"""Who is sent to which back end, and when: a `bilinq.Scheduler` on the clock of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from bilinq import JobClass, Policy, Sabr, Scheduler, ServerClass
from bilinq.scheduler import Assignment

from .card import Card, server_features
from .choosy import Choosy
from .kind import KINDS
from .slots import Slots
from .tenants import Lines
from .ticket import Ticket, job_class

AT_ONCE = 1e4
"""Scheduler's slots that are offered where waiting is good for nothing: so many that nobody is left to wait."""
LEAST = 1e-3
"""Least part of a slot."""
LEARN_EVERY = 50
"""Most rewards that wait to be learnt from."""


def warm() -> None:
    """Run a slot of a small scheduler, so that the first request does not wait for kernels to be loaded."""
    policy = Sabr.for_scheduler(V=1e-6)
    scheduler = Scheduler([JobClass("job", [1.0])], [ServerClass("server", [1.0])], policy=policy)
    for _ in range(2):
        scheduler.submit("job")
        for task in scheduler.assign({"server": 1}):
            scheduler.report(task.job, reward=0.0)


class Dispatcher:
    """Requests wait here for a back end.

    Parameters
    ----------
    cards : sequence of Card
    weight : mapping from tenant to its share where tenants compete
    target_wait : float
        Seconds that a request may wait for a back end that suits it better than those with room: about as long here, and
        about as long in line there.
    slot : float
        Seconds between two looks at those who wait, while there is room.
    backlog : int
        Most waiting requests of a tenant.
    policy : Policy, optional
        Another policy than the one that learns, to compare with.
    seed : int
    """

    def __init__(
        self,
        cards: Sequence[Card],
        weight: Mapping[str, float],
        *,
        target_wait: float = 1.0,
        slot: float = 0.05,
        backlog: int = 200,
        policy: Policy | None = None,
        seed: int = 0,
    ) -> None:
        self.slots = {card.name: Slots(card.slots, 0.0 if policy else target_wait) for card in cards}
        self._slot = slot
        self._jobs = [
            JobClass(job_class(name, kind), kind.features, 1.0 if policy else value)
            for name, value in weight.items()
            for kind in KINDS
        ]
        servers = [ServerClass(card.name, v) for card, v in zip(cards, server_features(cards), strict=True)]
        learning = Sabr.for_scheduler(target_wait=target_wait / slot)
        self.scheduler = Scheduler(self._jobs, servers, reward=(0.0, 1.0), policy=policy or learning, seed=seed)
        self._rng = np.random.default_rng(seed)
        self.choosy = Choosy(weight)
        self.lines = Lines(weight, backlog, self.scheduler, window=4 * sum(card.slots for card in cards))
        self._scheduler_next = dict.fromkeys(self.slots, False)
        self._looked, self._unlearnt = 0.0, 0
        self._next_look: asyncio.Handle | None = None

    async def place(self, ticket: Ticket) -> None:
        """Wait until the request has a slot, which `leave` must free; a caller that is cancelled has none.

        Raises
        ------
        Busy
            If too many requests of the tenant wait.
        """
        self.lines.admit(ticket, self.retry_after)
        self._wait(ticket)
        try:
            await ticket.begin
        except asyncio.CancelledError:
            self._withdraw(ticket)
            raise
        finally:
            self.lines.gone(ticket)

    def leave(self, ticket: Ticket, seconds: float | None = None) -> None:
        """Free the slot of a request; `seconds` is how long its answer took."""
        self._at(ticket).leave(seconds)
        self._look_soon()

    def worked(self, ticket: Ticket) -> None:
        """Note that the back end of a request has answered."""
        self._at(ticket).worked()

    def failed(self, ticket: Ticket, retry_after: float = 0.0) -> None:
        """Note that the back end of a request has failed; if it rests now, those in its line wait anew."""
        for other in self._at(ticket).failed(self._now, retry_after):
            other.backend, other.again = None, True
            self._wait(other)

    def learn(self, ticket: Ticket, reward: float) -> None:
        """Learn what a request was worth at the back end it was sent to."""
        assert ticket.backend is not None
        self.scheduler.observe([(ticket.job_class, ticket.backend, reward)])
        self._unlearnt += 1
        if self._unlearnt >= LEARN_EVERY:  # nothing but choosy requests: let the scheduler learn in an empty slot
            self._assign({}, LEAST)

    @property
    def retry_after(self) -> float:
        """Seconds in which those who wait now may be served, roughly."""
        each = [slots.seconds or 1.0 for slots in self.slots.values()]
        return self.lines.waiting * sum(each) / len(each) / sum(slots.total for slots in self.slots.values())

    def _at(self, ticket: Ticket) -> Slots:
        assert ticket.backend is not None
        return self.slots[ticket.backend]

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wait(self, ticket: Ticket) -> None:
        self.lines.add(ticket) if ticket.allowed is None else self.choosy.add(ticket)
        self._look_soon()

    def _withdraw(self, ticket: Ticket) -> None:
        """Forget a request, wherever it is."""
        if ticket.begin.done() and not ticket.begin.cancelled():
            self.leave(ticket)
        elif ticket.backend is not None:
            self._at(ticket).forget(ticket)
        else:
            self.lines.remove(ticket) if ticket.allowed is None else self.choosy.remove(ticket)
        self._look_soon()

    def _look_soon(self) -> None:
        """Look at those who wait as soon as what happens now is over."""
        if isinstance(self._next_look, asyncio.TimerHandle):
            self._next_look.cancel()
            self._next_look = None
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Send requests to back ends with room: choosy ones and the scheduler's take turns at each back end."""
        self._next_look = None
        self._send_choosy([name for name in self.slots if not (self._scheduler_next[name] and self.lines.shown)])
        self._send_scheduled()
        self._send_choosy(list(self.slots))
        self.lines.refill()
        if self.lines.shown or len(self.choosy):
            self._look_again()

    def _look_again(self) -> None:
        """Look again in a slot if there is room, or else when the first back end has rested; a slot that is freed tells."""
        now = self._now
        rests = [slots.rests_until - now for slots in self.slots.values() if slots.rests_until > now]
        room = self.lines.shown and any(self._room().values())
        if waits := [*rests, *([self._slot] if room else [])]:
            self._next_look = asyncio.get_running_loop().call_later(min(waits), self._look)

    def _room(self) -> dict[str, int]:
        now = self._now
        return {name: slots.room(now) for name, slots in self.slots.items()}

    def _send_scheduled(self) -> None:
        """Run a slot of the scheduler, longer where nobody should wait: where there is room everywhere, or too many wait."""
        room, now = self._room(), self._now
        if not self.lines.shown or not any(room.values()):
            return
        everywhere = all(room[name] or slots.rests_until > now for name, slots in self.slots.items())
        elapsed = min(max((now - self._looked) / self._slot, LEAST), 1.0)
        self._looked = now
        for task in self._assign(room, AT_ONCE if everywhere or self.lines.hidden else elapsed):
            self._scheduler_next[task.server_class] = False
            self.slots[task.server_class].send(self.lines.take(task.job), task.server_class)

    def _assign(self, room: Mapping[str, int], elapsed: float) -> list[Assignment]:
        """Run a slot of the scheduler, in which it learns from all rewards so far."""
        self._unlearnt = 0
        return self.scheduler.assign(room, elapsed)

    def _send_choosy(self, names: Sequence[str]) -> None:
        """Send choosy requests to those of the back ends `names` that have room."""
        while found := self._next_choosy({name for name in names if self.slots[name].room(self._now)}):
            ticket, name = found
            self.choosy.serve(ticket)
            self._scheduler_next[name] = True
            self.slots[name].send(ticket, name)

    def _next_choosy(self, names: set[str]) -> tuple[Ticket, str] | None:
        """Return the request whose turn it is among those that may go to one of `names`, and the best of these."""
        for ticket in self.choosy.in_turn() if names else ():
            if fits := [name for name in self.slots if name in names and name in (ticket.allowed or ())]:
                return ticket, self._best(ticket, fits)
        return None

    def _best(self, ticket: Ticket, names: Sequence[str]) -> str:
        """Return the back end that seems best, by a draw from what is believed, so that all are tried."""
        beliefs = self.scheduler.beliefs()
        if beliefs is None or len(names) == 1:
            return names[0]
        row = [one.name for one in self._jobs].index(ticket.job_class)
        drawn = beliefs.mean[row] + beliefs.width[row] * self._rng.standard_normal(len(self.slots))
        return max(names, key=dict(zip(self.slots, drawn.tolist(), strict=True)).__getitem__)
