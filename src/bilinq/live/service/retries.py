"""When a job that failed is tried again, and on which servers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bilinq.live.service.entities import LiveJob
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store.class_tables import ClassRow

STUBBORN = 2  # times the limit of attempts after which a job is dead although it was tried on one server or class only


class Retries(NamedTuple):
    """Failed or expired leases until a job is dead, and the longest pauses before its first retry and before any.

    Where `longest` is zero, jobs are retried at once and on any server.
    """

    max_attempts: int
    first: float
    longest: float

    def of_class(self, row: ClassRow) -> Retries:
        """Return the pauses of a job class, where it has its own."""
        first, longest = row.retry_first, row.retry_longest
        return self._replace(
            first=self.first if first is None else first, longest=self.longest if longest is None else longest
        )

    def pause(self, attempts: int) -> float:
        """Return a random pause before the next try: up to `first`, twice as much after each failure, up to `longest`."""
        return random.uniform(0.0, min(self.longest, self.first * 2.0 ** min(attempts - 1, 60)))

    def gives_up(self, job: LiveJob, untried: bool) -> bool:
        """Tell whether a job is dead. While servers are `untried` that may work better, it gets further attempts."""
        limit = job.options.max_attempts or self.max_attempts
        if job.attempts < limit:
            return False
        waits = untried and limit > 1 and self.longest > 0.0
        return not waits or job.attempts >= STUBBORN * limit


def retries(settings: ServiceSettings) -> Retries:
    """Return what the settings say."""
    return Retries(settings.max_attempts, settings.retry_first, settings.retry_longest)
