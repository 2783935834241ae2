"""Waiting jobs as a policy sees them: a row for each class, first in first out, or a row for each job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from bilinq.arrays import Array

Job = Hashable
"""Whatever a user calls a job."""


class Rows(ABC):
    """Who waits, and in which row of a policy's queue."""

    @abstractmethod
    def add(self, job: Job, row: int, first: bool = False) -> None:
        """Let a job of class number `row` wait behind the others, or as the first of them."""

    @abstractmethod
    def remove(self, job: Job, row: int) -> None:
        """Take a waiting job of class number `row` out."""

    @abstractmethod
    def take(self, row: int) -> Job:
        """Take the next job of a row out."""

    @abstractmethod
    def leave(self, job: Job) -> None:
        """Forget a job that is done or cancelled."""

    @abstractmethod
    def row(self, job: Job, row: int) -> int:
        """Return the row of a job of class number `row`."""

    @abstractmethod
    def waiting(self) -> Array:
        """Return how many jobs wait in each row (rows,)."""

    @abstractmethod
    def gone(self) -> list[int]:
        """Return the rows whose job has left since the last call."""

    @abstractmethod
    def arrange(self, kept: Iterable[int | None]) -> None:
        """Go over to other classes: for each new one the number it had, or None."""


class ClassRows(Rows):
    """A row for each class."""

    def __init__(self, classes: int) -> None:
        self._queues: list[OrderedDict[Job, None]] = [OrderedDict() for _ in range(classes)]

    def add(self, job: Job, row: int, first: bool = False) -> None:
        """Let a job wait."""
        self._queues[row][job] = None
        if first:
            self._queues[row].move_to_end(job, last=False)

    def remove(self, job: Job, row: int) -> None:
        """Take a waiting job out."""
        del self._queues[row][job]

    def take(self, row: int) -> Job:
        """Take the oldest job of a class out."""
        return self._queues[row].popitem(last=False)[0]

    def leave(self, job: Job) -> None:
        """Do nothing: a job has no row of its own."""

    def row(self, job: Job, row: int) -> int:
        """Return the row of a class: its number."""
        return row

    def waiting(self) -> Array:
        """Return the lengths of the queues."""
        return np.array([len(queue) for queue in self._queues], dtype=np.float64)

    def gone(self) -> list[int]:
        """Return nothing: classes stay."""
        return []

    def order(self) -> Iterator[Job]:
        """Yield the jobs that wait, class by class, oldest first."""
        for queue in self._queues:
            yield from queue

    def arrange(self, kept: Iterable[int | None]) -> None:
        """Put the queues in the new order."""
        self._queues = [OrderedDict() if old is None else self._queues[old] for old in kept]


class JobRows(Rows):
    """A row for each job, which it keeps until a policy was told that it has left."""

    def __init__(self) -> None:
        self._place: dict[Job, int] = {}
        self._jobs: list[Job | None] = []
        self._waits = np.zeros(0)
        self._free: list[int] = []
        self._gone: list[int] = []

    def add(self, job: Job, row: int, first: bool = False) -> None:
        """Let a job wait in its row."""
        place = self._place.get(job)
        if place is None:
            place = self._free.pop() if self._free else self._grown()
            self._place[job], self._jobs[place] = place, job
        self._waits[place] = 1.0

    def remove(self, job: Job, row: int) -> None:
        """Let a job's row be empty."""
        self._waits[self._place[job]] = 0.0

    def take(self, row: int) -> Job:
        """Take the job of a row out."""
        self._waits[row] = 0.0
        return self._jobs[row]

    def leave(self, job: Job) -> None:
        """Give a job's row back as soon as the policy knows."""
        self._gone.append(self._place.pop(job))

    def row(self, job: Job, row: int) -> int:
        """Return a job's row."""
        return self._place[job]

    def waiting(self) -> Array:
        """Return one where a job waits."""
        return self._waits[: len(self._jobs)].copy()

    def gone(self) -> list[int]:
        """Return the rows of jobs that left, which are free from now on."""
        gone, self._gone = self._gone, []
        self._free += gone
        return gone

    def arrange(self, kept: Iterable[int | None]) -> None:
        """Do nothing: rows are jobs."""

    def _grown(self) -> int:
        """Return a new row."""
        self._jobs.append(None)
        if len(self._jobs) > len(self._waits):
            self._waits = np.concatenate([self._waits, np.zeros(max(16, len(self._waits)))])
        return len(self._jobs) - 1
