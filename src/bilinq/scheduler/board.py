"""The waiting jobs of the look-ahead as arrays, a row for each job."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np

from bilinq.arrays import IntArray
from bilinq.scheduler.ledger import Job

LEAST = 64  # rows at the start; they double when they are full


class Board:
    """Rows with what decisions need to know of each waiting job. `rows` are those in use, in no particular order.

    Attributes
    ----------
    kind, serial, pool : (R,) int arrays
        The number of the job's class, its own, and that of its pool; zero: it belongs to none.
    features : (R, d) array
        NaN where a job has no features of its own.
    weight, since, rank : (R,) arrays
        Priority, when the job was submitted, and its place in the order of arrival.
    eligible : (R, J) bool array
    draw : (R, J) array
        The job's own standard normal numbers: it keeps them while it waits, so that waiting does not change its mind.
    known : (R, J) array
        Durations that the caller knows; NaN elsewhere.
    """

    def __init__(self, columns: int, features: int) -> None:
        self._row: dict[Job, int] = {}
        self._free: list[int] = []
        self._plain: defaultdict[tuple[int, int], OrderedDict[Job, None]] = defaultdict(OrderedDict)
        self._first, self._last = 0.0, 0.0
        self.jobs: list[Job] = []
        self._allocate(LEAST, columns, features)

    def _allocate(self, size: int, J: int, d: int) -> None:
        self.kind, self.serial, self.used = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool_)
        self.pool = np.zeros(size, np.int64)
        self.plain = np.zeros(size, np.bool_)
        self.features = np.full((size, d), np.nan)
        self.weight, self.since, self.rank = np.ones(size), np.zeros(size), np.zeros(size)
        self.eligible, self.draw, self.known = (
            np.ones((size, J), np.bool_),
            np.zeros((size, J)),
            np.full((size, J), np.nan),
        )
        self.value, self.value_width, self.value_stamp = (
            np.zeros((size, J)),
            np.zeros((size, J)),
            np.zeros((size, J), np.int64),
        )
        self.time, self.time_width, self.time_stamp = (
            np.zeros((size, J)),
            np.zeros((size, J)),
            np.zeros((size, J), np.int64),
        )

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, job: Job) -> bool:
        return job in self._row

    def add(self, job: Job, *, plain: bool, first: bool, **values: Any) -> None:
        """Add a job with its `values` by array, behind the others or before them; `plain` jobs of a class are alike."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._row[job], self.jobs[row], self.used[row], self.plain[row] = row, job, True, plain
        for name, value in values.items():
            getattr(self, name)[row] = value
        self.value_stamp[row] = self.time_stamp[row] = 0
        if first:
            self._first -= 1.0
        else:
            self._last += 1.0
        self.rank[row] = self._first if first else self._last
        if plain:
            alike = self._plain[self._alike(row)]
            alike[job] = None
            if first:
                alike.move_to_end(job, last=False)

    def remove(self, job: Job) -> int:
        """Remove a job and return the row it had."""
        row = self._row.pop(job)
        self._plain[self._alike(row)].pop(job, None)
        self.used[row] = False
        self._free.append(row)
        return row

    def first_of_class(self, row: int) -> Job:
        """Return the job to serve in place of that of a row: the oldest of its class and pool if these are all alike."""
        return next(iter(self._plain[self._alike(row)])) if self.plain[row] else self.jobs[row]

    def _alike(self, row: int) -> tuple[int, int]:
        return int(self.kind[row]), int(self.pool[row])

    def row(self, job: Job) -> int:
        """Return the row of a job."""
        return self._row[job]

    @property
    def rows(self) -> IntArray:
        """The rows in use (n,)."""
        return np.flatnonzero(self.used)

    def order(self) -> list[Job]:
        """Return the jobs in the order of arrival; those that wait again are before them."""
        return sorted(self._row, key=lambda job: float(self.rank[self._row[job]]))

    def count(self, classes: int) -> IntArray:
        """Return how many jobs of each class wait (I,)."""
        return np.bincount(self.kind[self.rows], minlength=classes)

    def _grow(self) -> None:
        size = len(self.jobs)
        if size == len(self.used):
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        new = max(LEAST, size) if size else LEAST
        self.jobs += [None] * (len(self.used) - size)
        self._free += range(min(size + new, len(self.used)) - 1, size - 1, -1)

    def widen(self, features: int) -> None:
        """Make room for more features; they are NaN for the jobs that wait."""
        self.features = np.pad(self.features, ((0, 0), (0, features)), constant_values=np.nan)
        self.value_stamp[:] = self.time_stamp[:] = 0

    def rebuilt(self, columns: int) -> Board:
        """Return an empty board for other classes that continues the order of arrival."""
        made = Board(columns, self.features.shape[1])
        made._first, made._last = self._first, self._last
        return made
