"""What is due at a time: jobs that may start, and deadlines."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Agenda:
    """Jobs by the time, on the monotonic clock, at which something is to be done about them.

    An entry may be out of date when it is due, since the job has gone on meanwhile: the caller looks.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, at: float, job: int) -> None:
        """Note a job for a time."""
        heapq.heappush(self._entries, (at, job))

    def due(self, now: float) -> Iterator[int]:
        """Yield the jobs whose time has come, each entry once."""
        while self._entries and self._entries[0][0] <= now:
            yield heapq.heappop(self._entries)[1]
