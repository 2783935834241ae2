"""The tenants' lines before the scheduler: how many wait, and how many of them the scheduler sees."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from bilinq import Scheduler
from bilinq.scheduler import Job

from .errors import busy
from .ticket import Ticket


class Lines:
    """A line for each tenant, of which the scheduler sees the first `window` requests.

    The scheduler shares by weight times queue. Were all queues seen, a tenant that sends a thousand requests would drown
    one that sends ten; as it is, the shares of tenants who keep the window full go by weight alone.
    """

    def __init__(self, weight: Mapping[str, float], backlog: int, scheduler: Scheduler, window: int) -> None:
        self._backlog, self._scheduler, self._window = backlog, scheduler, window
        self._lines = {name: deque[Ticket]() for name in weight}
        self._jobs: dict[Job, Ticket] = {}
        self._shown = Counter[str]()
        self._waiting = Counter[str]()

    @property
    def waiting(self) -> int:
        """Requests of all tenants that have no slot yet, wherever they wait."""
        return self._waiting.total()

    @property
    def shown(self) -> int:
        """Requests that the scheduler sees."""
        return len(self._jobs)

    @property
    def hidden(self) -> bool:
        """Whether there are requests that the scheduler does not see."""
        return any(self._lines.values())

    def by_tenant(self) -> dict[str, int]:
        """Return how many requests of each tenant have no slot yet."""
        return {name: self._waiting[name] for name in self._lines}

    def admit(self, ticket: Ticket, retry_after: float) -> None:
        """Count a request that begins to wait, or refuse it since too many of its tenant do."""
        if self._waiting[ticket.tenant] >= self._backlog and not ticket.again:
            raise busy(self._backlog, retry_after)
        self._waiting[ticket.tenant] += 1

    def gone(self, ticket: Ticket) -> None:
        """Count a request that waits no longer."""
        self._waiting[ticket.tenant] -= 1

    def add(self, ticket: Ticket) -> None:
        """Let a request wait for the scheduler; one that has waited before is the first of its tenant."""
        line = self._lines[ticket.tenant]
        (line.appendleft if ticket.again else line.append)(ticket)
        self._fill(ticket.tenant)

    def take(self, job: Job) -> Ticket:
        """Return a request that the scheduler has sent away."""
        self._scheduler.report(job)
        return self._out(job)

    def remove(self, ticket: Ticket) -> None:
        """Forget a request that waits."""
        job = next((job for job, other in self._jobs.items() if other is ticket), None)
        if job is None:
            self._lines[ticket.tenant].remove(ticket)
        else:
            self._scheduler.cancel(job)
            self._out(job)

    def refill(self) -> None:
        """Show the scheduler those who have come to the front."""
        for tenant in self._lines:
            self._fill(tenant)

    def _out(self, job: Job) -> Ticket:
        ticket = self._jobs.pop(job)
        self._shown[ticket.tenant] -= 1
        return ticket

    def _fill(self, tenant: str) -> None:
        line = self._lines[tenant]
        while line and self._shown[tenant] < self._window:
            ticket = line.popleft()
            self._jobs[self._scheduler.submit(ticket.job_class)] = ticket
            self._shown[tenant] += 1
