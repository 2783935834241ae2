"""Requests that may not go everywhere: pinned to a model, too long for some back ends, or refused by one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from .ticket import Ticket


class Choosy:
    """Such requests, a line for each tenant. Tenants take turns by weight, and their own requests go in order.

    A tenant's `clock` advances by 1 / weight with each request served; whose clock is behind is next. One that comes back
    after a pause starts from the clock of those who are there, so that nobody saves up turns.
    """

    def __init__(self, weight: Mapping[str, float]) -> None:
        self._weight = weight
        self._lines: dict[str, deque[Ticket]] = {}
        self._clock = dict.fromkeys(weight, 0.0)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, ticket: Ticket) -> None:
        """Let a request wait; one that has waited before is the first of its tenant."""
        if ticket.tenant not in self._lines:
            present = [self._clock[name] for name in self._lines]
            self._clock[ticket.tenant] = max(self._clock[ticket.tenant], min(present, default=0.0))
            self._lines[ticket.tenant] = deque()
        line = self._lines[ticket.tenant]
        (line.appendleft if ticket.again else line.append)(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Forget a request."""
        line = self._lines[ticket.tenant]
        line.remove(ticket)
        if not line:
            del self._lines[ticket.tenant]

    def serve(self, ticket: Ticket) -> None:
        """Take a request out since it is served, which is a turn of its tenant."""
        self.remove(ticket)
        self._clock[ticket.tenant] += 1.0 / self._weight[ticket.tenant]

    def in_turn(self) -> Iterator[Ticket]:
        """Yield all requests: those of the tenant whose turn it is first."""
        for name in sorted(self._lines, key=self._clock.__getitem__):
            yield from tuple(self._lines[name])
