"""The slots of a back end, the short line before them, and how long it rests after failures."""

from __future__ import annotations

import contextlib
from collections import deque

from .ticket import Ticket

FAILURES = 3
"""Failures in a row until a back end rests."""
FIRST_REST, LONGEST_REST = 1.0, 60.0
"""Seconds of the first rest, which doubles with every failure after, and of the longest."""
LONGEST_LINE = 3
"""Most requests in line, in multiples of the slots."""
RECENT = 0.05
"""Weight of the last request in the mean duration."""


class Slots:
    """Where requests are served `total` at a time; times are those of the event loop's clock.

    A request may stand in line here though others are free, since this back end suits it: about `patience` seconds.
    """

    def __init__(self, total: int, patience: float) -> None:
        self.total, self.patience = total, patience
        self.busy = 0
        self.line: deque[Ticket] = deque()
        self.seconds: float | None = None
        self.failures = 0
        self.rests_until = 0.0

    def room(self, now: float) -> int:
        """Return how many more may be sent here: none while it rests, and one at a time until it works again."""
        if now < self.rests_until:
            return 0
        most = 1 if self.failures >= FAILURES else self.total + self.longest_line
        return max(most - self.busy - len(self.line), 0)

    @property
    def longest_line(self) -> int:
        """How many may stand in line so that none waits for much longer than the patience."""
        if not self.seconds:
            return 0
        return min(round(self.total * self.patience / self.seconds), LONGEST_LINE * self.total)

    def send(self, ticket: Ticket, name: str) -> None:
        """Let a request begin, or stand in line; `name` is the back end's."""
        ticket.backend = name
        self.line.append(ticket)
        self._begin()

    def leave(self, seconds: float | None = None) -> None:
        """Let a request end and the next one begin; `seconds` is how long an answer took."""
        if seconds is not None:
            before = seconds if self.seconds is None else self.seconds
            self.seconds = before + RECENT * (seconds - before)
        self.busy -= 1
        self._begin()

    def worked(self) -> None:
        """Note an answer."""
        self.failures = 0

    def failed(self, now: float, retry_after: float = 0.0) -> list[Ticket]:
        """Note a failure, and rest after several or if the back end asked to; return who must look elsewhere."""
        self.failures += 1
        rest = FIRST_REST * 2.0 ** min(self.failures - FAILURES, 10) if self.failures >= FAILURES else 0.0
        self.rests_until = max(self.rests_until, now + min(max(rest, retry_after), LONGEST_REST))
        if now >= self.rests_until:
            return []
        sent_on = list(self.line)
        self.line.clear()
        return sent_on

    def forget(self, ticket: Ticket) -> None:
        """Forget a request whose client has left while it stood in line."""
        with contextlib.suppress(ValueError):  # it may have come to the front since
            self.line.remove(ticket)

    def _begin(self) -> None:
        while self.line and self.busy < self.total:
            ticket = self.line.popleft()
            if not ticket.begin.cancelled():
                self.busy += 1
                ticket.begin.set_result(None)
