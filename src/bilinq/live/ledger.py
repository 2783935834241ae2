"""The jobs inside a scheduler: who waits in which row, and who is out at which class of servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bilinq.arrays import Array, count, short
from bilinq.errors import BadInput
from bilinq.live.rows import ClassRows, Job, JobRows, Rows


@dataclass(slots=True)
class Entry:
    """A job: its class, the units it still needs, and the server class it is out at (None while it waits)."""

    job_class: str
    units: int
    out: str | None = None


class Ledger:
    """Jobs by name. Rows, given wherever they are needed, are the numbers of job classes."""

    def __init__(self, *, by_job: bool, classes: int) -> None:
        self.by_job = by_job
        self._rows: Rows = JobRows() if by_job else ClassRows(classes)
        self._entries: dict[Job, Entry] = {}

    def add(self, job: Job, job_class: str, row: int, units: int) -> None:
        """Let a new job wait."""
        if job in self._entries:
            raise BadInput(f"job must not be there yet; got {short(job)}")
        self._entries[job] = Entry(job_class, count("units", units))
        self._rows.add(job, row)

    def place(self, job: Job, job_class: str, row: int, units: int, server_class: str) -> None:
        """Take in a job that is out already."""
        self.add(job, job_class, row, units)
        self._rows.remove(job, row)
        self._entries[job].out = server_class

    def take(self, row: int, server_class: str) -> tuple[Job, str]:
        """Send the next job of a policy's row out; return it with its class."""
        job = self._rows.take(row)
        entry = self._entries[job]
        entry.out = server_class
        return job, entry.job_class

    def out(self, job: Job) -> Entry:
        """Return the entry of a job that is out."""
        entry = self._entries.get(job)
        if entry is None or entry.out is None:
            raise BadInput(f"job must be out at a server; got {short(job)}")
        return entry

    def row(self, job: Job, row: int) -> int:
        """Return the policy's row of a job."""
        return self._rows.row(job, row)

    def back(self, job: Job, row: int) -> None:
        """Let a job that is out wait again, as the first of its class."""
        self.out(job).out = None
        self._rows.add(job, row, first=True)

    def leave(self, job: Job) -> None:
        """Forget a job that is out."""
        del self._entries[job]
        self._rows.leave(job)

    def job_class(self, job: Job) -> str:
        """Return the class of a job."""
        entry = self._entries.get(job)
        if entry is None:
            raise BadInput(f"job must be waiting or out; got {short(job)}")
        return entry.job_class

    def cancel(self, job: Job, row: int) -> None:
        """Forget a job, wherever it is."""
        if self._entries[job].out is None:
            self._rows.remove(job, row)
        self.leave(job)

    def waiting(self) -> Array:
        """Return how many jobs wait in each of the policy's rows."""
        return self._rows.waiting()

    def queue(self, classes: Iterable[str]) -> dict[str, int]:
        """Return how many jobs of each class wait; `classes` are all of them, in order."""
        if not self.by_job:
            return dict(zip(classes, self.waiting().astype(int).tolist(), strict=True))
        number = Counter(entry.job_class for entry in self._entries.values() if entry.out is None)
        return {name: number[name] for name in classes}

    def gone(self) -> list[int]:
        """Return the policy's rows whose job has left since the last call."""
        return self._rows.gone()

    def arrange(self, kept: Iterable[int | None]) -> None:
        """Go over to other classes: for each new one the row it had, or None."""
        self._rows.arrange(kept)

    def check_unused(self, job_classes: set[str], server_classes: set[str]) -> None:
        """Raise if a job is of one of these classes, or out at one of them."""
        for entry in self._entries.values():
            if entry.job_class in job_classes:
                raise BadInput(f"job class {entry.job_class!r} must have no jobs to be dropped")
            if entry.out in server_classes:
                raise BadInput(f"server class {entry.out!r} must serve no job to be dropped")

    def listed(self) -> Iterator[tuple[Job, str, int, str | None]]:
        """Yield all jobs with class, units and where they are out; those that wait in their order."""
        if not isinstance(self._rows, ClassRows):
            raise BadInput("a snapshot with jobs needs a policy with a row for each class")
        out = [name for name, entry in self._entries.items() if entry.out is not None]
        for name in (*self._rows.order(), *out):
            if isinstance(name, bool) or not isinstance(name, int | str):
                raise BadInput(f"jobs must be called by numbers or text for a snapshot with jobs; got {short(name)}")
            entry = self._entries[name]
            yield name, entry.job_class, entry.units, entry.out
