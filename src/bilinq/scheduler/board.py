"""The waiting jobs of the look-ahead as arrays, a row for each job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, BoolArray
from bilinq.scheduler.classes import Exploration, Roster
from bilinq.scheduler.engine import Pool
from bilinq.scheduler.ledger import Entry, Job

Records: TypeAlias = NDArray[np.void]
"""An array with named fields."""

LEAST = 64  # rows at the start; they double when they are full
THERE = 0.5  # servers from which on a server class is there; those that disappear fade out
TOGETHER = 256  # jobs that are written to the arrays together at most, so that no slot has to write more

ROW = np.dtype(
    [("kind", "i8"), ("pool", "i8"), ("serial", "i8"), ("rank", "f8"), ("since", "f8"), ("queued", "f8"), ("weight", "f8"),
     ("used", "?"), ("counted", "?")],
    align=True,
)  # fmt: skip
"""Of a job: the numbers of its class and pool (zero: none), its own, its place in the order of arrival, when it was
submitted, when it joined the queue, its priority, whether the row is in use, and whether the job was counted as an
arrival."""
PAIR = np.dtype(
    [("value", "f8"), ("value_width", "f8"), ("value_stamp", "i8"), ("time", "f8"), ("time_width", "f8"),
     ("time_stamp", "i8"), ("draw", "f8"), ("known", "f8"), ("cost", "f8"), ("eligible", "?")],
    align=True,
)  # fmt: skip
"""Of a job and a server class: predicted value and logarithm of the duration, their standard errors, and the versions of the
models that made them; the job's own standard normal number, which it keeps while it waits, so that waiting does not change
its mind; a duration that the caller knows, else NaN; a cost that the caller knows, on the scale of rewards; and whether the
class may serve the job."""

FIXED: dict[Exploration, float] = {"thompson": np.nan, "ucb": 1.0, "none": 0.0}
"""What is drawn for each kind of exploration; NaN: standard normal numbers."""


class Terms(NamedTuple):
    """What prices depend on, Eq. (65) and (66).

    Time, price of a slot of waiting, mean duration, the ratio of Eq. (70), how many standard errors are drawn at least, and
    the price of server time (J,).
    """

    now: float
    eta: float
    tau: float
    smear: float
    scale: float
    crowding: Array


class Board:
    """The waiting jobs: `table` (R,) and `pairs` (R, J) with the fields above, and `features` (R, d), NaN if there are none.

    Jobs are written to the arrays when these are needed, all that came since together. Jobs of a class and a pool with
    nothing of their own are alike: they share a *claim*, and the oldest of them starts first.
    """

    def __init__(self, roster: Roster, pools: dict[str | None, Pool], seed: int, exploration: Exploration) -> None:
        self.roster, self.pools, self.fixed = roster, pools, FIXED[exploration]
        self._seed, self._key = seed, np.random.SeedSequence([seed, 1]).generate_state(1, np.uint64)[0]
        self._pool_number: dict[str | None, int] = {None: 0}
        self._row: dict[Job, int] = {}
        self._jobs: list[Job] = []
        self._alike: list[OrderedDict[Job, None] | None] = []
        self._free: list[int] = []
        self._new: list[tuple[Job, Entry, bool, bool]] = []
        self._deadlines: dict[Job, float] = {}
        self._first, self._last = 0.0, 0.0
        J = len(roster.servers)
        self.shared = np.array([one.features for one in roster.job_classes], np.float64).reshape(len(roster.jobs), -1)
        self._claims: dict[tuple[str, str | None], int] = {}
        self._queues: list[OrderedDict[Job, None]] = []
        self._kind, self._pool, self._weight = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._eligible = np.zeros((0, J), np.bool_)
        self.table, self.pairs = np.zeros(0, ROW), np.zeros((0, J), PAIR)
        self.features = np.zeros((0, self.shared.shape[1]))

    def __len__(self) -> int:
        return len(self._row) + len(self._new)

    # Jobs

    def add(self, job: Job, entry: Entry, first: bool = False, counted: bool = False) -> None:
        """Add a job behind the others, or before them; it is `counted` if it is no new arrival."""
        self._new.append((job, entry, first, counted))
        if len(self._new) == TOGETHER:
            self.settle()

    def remove(self, job: Job) -> None:
        """Remove a job."""
        row = self.row(job)
        alike = self._alike[row]
        if alike is not None:
            del alike[job]
        self._vacate(job)
        self.table["used"][row] = False

    def take(self, rows: Sequence[int]) -> list[Job]:
        """Remove and return the jobs to serve for some rows: the oldest of those that are alike, or the job of the row."""
        taken, free = [], []
        for row in rows:
            alike = self._alike[row]
            job = self._jobs[row] if alike is None else alike.popitem(last=False)[0]
            taken.append(job)
            free.append(self._vacate(job))
        self.table["used"][free] = False
        return taken

    def _vacate(self, job: Job) -> int:
        row = self._row.pop(job)
        self._free.append(row)
        self._deadlines.pop(job, None)
        return row

    def row(self, job: Job) -> int:
        """Return the row of a job."""
        self.settle()
        return self._row[job]

    def arrived(self, fresh: Iterable[tuple[Job, Entry]]) -> None:
        """Note that `since`, `queued` and `deadline` of jobs have changed."""
        for job, entry in fresh:
            row = self._row.get(job)
            if row is not None:
                self.table["since"][row], self.table["queued"][row] = entry.since, entry.queued
                if job in self._deadlines:
                    self._deadlines[job] = entry.deadline

    def expired(self, now: float) -> list[Job]:
        """Return the jobs whose deadline has passed."""
        self.settle()
        return [job for job, deadline in self._deadlines.items() if deadline <= now]

    def order(self) -> list[Job]:
        """Return the jobs in the order of arrival; those that wait again are before them."""
        self.settle()
        rank = self.table["rank"].tolist()
        return sorted(self._row, key=lambda job: rank[self._row[job]])

    def queue(self) -> dict[str, int]:
        """Return how many jobs of each class wait."""
        self.settle()
        number = np.bincount(self.table["kind"][self.table["used"]], minlength=len(self.roster.jobs))
        return dict(zip(self.roster.jobs, number.tolist(), strict=True))

    def uncounted(self) -> list[Job]:
        """Return the jobs that were not yet counted as arrivals."""
        self.settle()
        counted = self.table["counted"]
        return [job for job, row in self._row.items() if not counted[row]]

    # Arrays

    def settle(self) -> None:
        """Write the jobs that came since the last time to the arrays."""
        if not self._new:
            return
        from bilinq.scheduler.look_ahead_kernels import place

        new, self._new = self._new, []
        self._grow(len(new))
        arrivals = [(*self._enter(job, entry, first), counted) for job, entry, first, counted in new]
        place(self.table, self.pairs, self.features, np.array(arrivals), self._kind, self._pool, self._weight,
              self._eligible, self.shared, self._key, self.fixed)  # fmt: skip
        for (row, *_), (_, entry, *_) in zip(arrivals, new, strict=True):
            if self._alike[row] is None:
                self._set_own(row, entry)

    def _enter(self, job: Job, entry: Entry, first: bool) -> tuple[int, int, int, float, float, float]:
        """Give a job a row; return it with the job's claim, serial number, rank and times."""
        row = self._free.pop()
        claim = self._claims.get((entry.job_class, entry.pool))
        if claim is None:
            claim = self._new_claim(entry.job_class, entry.pool)
        self._row[job], self._jobs[row] = row, job
        if first:
            rank = self._first = self._first - 1.0
        else:
            rank = self._last = self._last + 1.0
        if entry.plain:
            alike = self._alike[row] = self._queues[claim]
            alike[job] = None
            if first:
                alike.move_to_end(job, last=False)
        else:
            self._alike[row] = None
        if entry.deadline < inf:
            self._deadlines[job] = entry.deadline
        return row, claim, entry.serial, rank, entry.since, entry.queued

    def _set_own(self, row: int, entry: Entry) -> None:
        """Write what a job has of its own: features, eligible servers, weight, known durations and costs."""
        if entry.features is not None:
            self.features[row, -entry.features.size :] = entry.features
        if entry.servers is not None:
            self.pairs["eligible"][row] &= np.array([name in entry.servers for name in self.roster.servers])
        if entry.weight is not None:
            self.table["weight"][row] = entry.weight
        for name, value in (entry.duration or {}).items():
            if name in self.roster.servers:
                self.pairs["known"][row, self.roster.column(name)] = value
        for name, value in (entry.cost or {}).items():
            if name in self.roster.servers:
                self.pairs["cost"][row, self.roster.column(name)] = value

    def _new_claim(self, job_class: str, pool: str | None) -> int:
        found = self._claims[job_class, pool] = len(self._claims)
        eligible, weight = self._claim(job_class, pool)
        self._kind = np.append(self._kind, self.roster.row(job_class))
        self._pool = np.append(self._pool, self._number(pool))
        self._weight, self._eligible = (
            np.append(self._weight, weight),
            np.append(self._eligible, eligible[None], axis=0),
        )
        self._queues.append(OrderedDict())
        return found

    def _claim(self, job_class: str, pool: str | None) -> tuple[BoolArray, float]:
        """Return which server classes may serve the jobs of a class and a pool (J,), and their weight."""
        roster, kind, own = self.roster, self.roster.row(job_class), self._pool_of(pool)
        eligible = np.ones(len(roster.servers), np.bool_) if roster.eligible is None else roster.eligible[0, kind]
        if own.servers is not None:
            eligible = eligible & np.array([name in own.servers for name in roster.servers])
        return eligible, roster.job_classes[kind].weight

    def _pool_of(self, name: str | None) -> Pool:
        return self.pools.get(name, self.pools[None])

    def _number(self, pool: str | None) -> int:
        return self._pool_number.setdefault(pool, len(self._pool_number))

    def _grow(self, more: int) -> None:
        """Make room for `more` jobs."""
        size = len(self.table)
        if len(self._free) >= more:
            return
        new = max(LEAST, size, more - len(self._free))
        self.table, self.pairs, self.features = (
            np.concatenate([one, np.zeros((new, *one.shape[1:]), one.dtype)])
            for one in (self.table, self.pairs, self.features)
        )
        self._jobs += [None] * new
        self._alike += [None] * new
        self._free += range(size + new - 1, size - 1, -1)

    def allowed(self, pools: Collection[str] | None) -> BoolArray:
        """Return which pools are considered, by number: those of some names, and none; an empty array for all."""
        if pools is None:
            return np.zeros(0, np.bool_)
        numbers = [0, *map(self._number, pools)]
        found = np.zeros(len(self._pool_number), np.bool_)
        found[numbers] = True
        return found

    def only(self, numbers: Sequence[int]) -> BoolArray:
        """Return which pools are considered, by number: these."""
        found = np.zeros(len(self._pool_number), np.bool_)
        found[numbers] = True
        return found

    def sharing(self) -> dict[int, float]:
        """Return the pools whose jobs wait, by number with their weights; nothing if there are jobs of one pool only."""
        if self._pool.size == 0 or bool((self._pool == self._pool[0]).all()):
            return {}
        waiting = np.bincount(self.table["pool"][self.table["used"]], minlength=len(self._pool_number))
        return {k: self._pool_of(name).weight for name, k in self._pool_number.items() if waiting[k]}

    def share_of(self, pool: str | None) -> tuple[int, float]:
        """Return the number and the weight of a pool."""
        return self._number(pool), self._pool_of(pool).weight

    def among(self, sharing: dict[int, float], pools: Collection[str] | None) -> dict[int, float]:
        """Return those of some pools, and of none."""
        if pools is None:
            return dict(sharing)
        numbers = {0, *map(self._number, pools)}
        return {k: weight for k, weight in sharing.items() if k in numbers}

    def set_pool(self, name: str, pool: Pool, waiting: Iterable[tuple[Job, Entry]]) -> None:
        """Change a pool; `waiting` are its jobs."""
        self.settle()
        self.pools[name] = pool
        for (job_class, own), k in self._claims.items():
            if own == name:
                self._eligible[k], self._weight[k] = self._claim(job_class, own)
        for job, entry in waiting:
            row = self._row[job]
            self.pairs["eligible"][row], self.table["weight"][row] = self._claim(entry.job_class, name)
            self._set_own(row, entry)

    def widen(self, more: int) -> None:
        """Make room for features of single jobs; they are NaN for the jobs that wait."""
        self.features = np.pad(self.features, ((0, 0), (0, more)), constant_values=np.nan)
        self.pairs["value_stamp"] = self.pairs["time_stamp"] = 0

    def explore(self, exploration: Exploration) -> None:
        """Draw anew for all jobs, by another kind of exploration."""
        from bilinq.scheduler.look_ahead_kernels import draw

        self.settle()
        self.fixed = FIXED[exploration]
        draw(self.table, self.pairs, self._key, self.fixed)

    def rebuilt(self, roster: Roster, exploration: Exploration) -> Board:
        """Return an empty board for other classes that continues the order of arrival."""
        made = Board(roster, self.pools, self._seed, exploration)
        made._first, made._last, made._pool_number = self._first, self._last, self._pool_number
        more = self.features.shape[1] - made.features.shape[1]
        if more:
            made.widen(more)
        return made
