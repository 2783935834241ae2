"""The jobs of a scheduler: waiting, assigned, finished."""

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bilinq.arrays import Array, count, short
from bilinq.errors import BadInput

Job = Hashable  # the name of a job, chosen by the user


class QueueRows(ABC):
    """The jobs that wait, by row of a policy's queue."""

    @abstractmethod
    def add(self, job: Job, row: int, first: bool = False) -> None:
        """Add a job of class number `row` behind the others, or as the first of them."""

    @abstractmethod
    def remove(self, job: Job, row: int) -> None:
        """Remove a waiting job of class number `row`."""

    @abstractmethod
    def take(self, row: int) -> Job:
        """Remove and return the next job of a row."""

    def leave(self, job: Job) -> None:  # noqa: B027, a row that is a class stays
        """Free the row of a job that is done or cancelled."""

    def row(self, job: Job, row: int) -> int:
        """Return the row of a job of class number `row`; default: that of its class."""
        return row

    @abstractmethod
    def waiting(self) -> Array:
        """Return how many jobs wait in each row (rows,)."""

    def gone(self) -> list[int]:
        """Return the rows whose job has left since the last call; they are free from now on."""
        return []

    def arrange(self, kept: Iterable[int | None]) -> None:  # noqa: B027, a row that is a job stays
        """Change the classes: for each new one the number it had, or None."""


class ClassRows(QueueRows):
    """A row for each class."""

    def __init__(self, classes: int) -> None:
        self._queues: list[OrderedDict[Job, None]] = [OrderedDict() for _ in range(classes)]

    def add(self, job: Job, row: int, first: bool = False) -> None:
        self._queues[row][job] = None
        if first:
            self._queues[row].move_to_end(job, last=False)

    def remove(self, job: Job, row: int) -> None:
        del self._queues[row][job]

    def take(self, row: int) -> Job:
        return self._queues[row].popitem(last=False)[0]

    def waiting(self) -> Array:
        return np.array([len(queue) for queue in self._queues], dtype=np.float64)

    def order(self) -> Iterator[Job]:
        """Yield the jobs that wait, class by class, oldest first."""
        for queue in self._queues:
            yield from queue

    def arrange(self, kept: Iterable[int | None]) -> None:
        self._queues = [OrderedDict() if old is None else self._queues[old] for old in kept]


class JobRows(QueueRows):
    """A row for each job, until the policy knows that the job has left."""

    def __init__(self) -> None:
        self._place: dict[Job, int] = {}
        self._jobs: list[Job | None] = []
        self._waits = np.zeros(0)
        self._free: list[int] = []
        self._gone: list[int] = []

    def add(self, job: Job, row: int, first: bool = False) -> None:
        place = self._place.get(job)
        if place is None:
            place = self._free.pop() if self._free else self._grown()
            self._place[job], self._jobs[place] = place, job
        self._waits[place] = 1.0

    def remove(self, job: Job, row: int) -> None:
        self._waits[self._place[job]] = 0.0

    def take(self, row: int) -> Job:
        self._waits[row] = 0.0
        return self._jobs[row]

    def leave(self, job: Job) -> None:
        self._gone.append(self._place.pop(job))  # free once the policy knows

    def row(self, job: Job, row: int) -> int:
        return self._place[job]

    def waiting(self) -> Array:
        return self._waits[: len(self._jobs)].copy()

    def gone(self) -> list[int]:
        gone, self._gone = self._gone, []
        self._free += gone
        return gone

    def _grown(self) -> int:
        self._jobs.append(None)
        if len(self._jobs) > len(self._waits):
            self._waits = np.concatenate([self._waits, np.zeros(max(16, len(self._waits)))])
        return len(self._jobs) - 1


@dataclass(slots=True)
class Entry:
    """A job: its class, the units it still needs, and the server class that serves it (None while it waits)."""

    job_class: str
    units: int
    out: str | None = None


class Ledger:
    """Jobs by name, with the policy's `rows` of those that wait. The argument `row` is the number of a job class."""

    def __init__(self, *, by_job: bool, classes: int) -> None:
        self.by_job = by_job
        self.rows: QueueRows = JobRows() if by_job else ClassRows(classes)
        self._entries: dict[Job, Entry] = {}

    def add(self, job: Job, job_class: str, row: int, units: int) -> None:
        """Add a new job that waits."""
        if job in self._entries:
            raise BadInput(f"job must be new; got {short(job)}")
        self._entries[job] = Entry(job_class, count("units", units))
        self.rows.add(job, row)

    def place(self, job: Job, job_class: str, row: int, units: int, server_class: str) -> None:
        """Add a job that is at a server already."""
        self.add(job, job_class, row, units)
        self.rows.remove(job, row)
        self._entries[job].out = server_class

    def take(self, row: int, server_class: str) -> tuple[Job, str]:
        """Assign the next job of a policy's row to a server; return it with its class."""
        job = self.rows.take(row)
        entry = self._entries[job]
        entry.out = server_class
        return job, entry.job_class

    def out(self, job: Job) -> Entry:
        """Return the entry of a job that is at a server."""
        entry = self._entries.get(job)
        if entry is None or entry.out is None:
            raise BadInput(f"job must be assigned to a server; got {short(job)}")
        return entry

    def back(self, job: Job, row: int) -> None:
        """Let an assigned job wait again, as the first of its class."""
        self.out(job).out = None
        self.rows.add(job, row, first=True)

    def leave(self, job: Job) -> None:
        """Remove an assigned job."""
        del self._entries[job]
        self.rows.leave(job)

    def job_class(self, job: Job) -> str:
        """Return the class of a job."""
        entry = self._entries.get(job)
        if entry is None:
            raise BadInput(f"job must be waiting or assigned; got {short(job)}")
        return entry.job_class

    def cancel(self, job: Job, row: int) -> None:
        """Remove a job, whether it waits or is assigned."""
        if self._entries[job].out is None:
            self.rows.remove(job, row)
        self.leave(job)

    def queue(self, classes: Iterable[str]) -> dict[str, int]:
        """Return how many jobs of each class wait; `classes` are all of them, in order."""
        if not self.by_job:
            return dict(zip(classes, self.rows.waiting().astype(int).tolist(), strict=True))
        number = Counter(entry.job_class for entry in self._entries.values() if entry.out is None)
        return {name: number[name] for name in classes}

    def check_unused(self, job_classes: set[str], server_classes: set[str]) -> None:
        """Raise if a job is of one of these job classes, or at a server of one of these server classes."""
        for entry in self._entries.values():
            if entry.job_class in job_classes:
                raise BadInput(f"job class {entry.job_class!r} must have no jobs to be dropped")
            if entry.out in server_classes:
                raise BadInput(f"server class {entry.out!r} must serve no job to be dropped")

    def listed(self) -> Iterator[tuple[Job, str, int, str | None]]:
        """Yield all jobs with class, units and server class; those that wait are first, in their order."""
        if not isinstance(self.rows, ClassRows):
            raise BadInput("a snapshot with jobs needs a policy with a row for each class")
        out = [name for name, entry in self._entries.items() if entry.out is not None]
        for name in (*self.rows.order(), *out):
            if isinstance(name, bool) or not isinstance(name, int | str):
                raise BadInput(f"jobs must be called by numbers or text for a snapshot with jobs; got {short(name)}")
            entry = self._entries[name]
            yield name, entry.job_class, entry.units, entry.out
