"""The engine that runs a policy of the simulator, slot by slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.arrays import Array, within
from bilinq.assignment import assign as draw
from bilinq.errors import BadInput
from bilinq.learning import Health, Outcome, health_of
from bilinq.scheduler.classes import PolicySettings, Roster
from bilinq.scheduler.engine import Engine, Pool, Service
from bilinq.scheduler.ledger import Entry, Job
from bilinq.scheduler.snapshot import LARGEST_COUNT, Draws, decode, encode, number, whole

if TYPE_CHECKING:
    from bilinq.policies.policy import Policy
    from bilinq.scheduler.explain import Decision

HORIZON = 1_000_000  # the number of slots for policies that need one: a live scheduler has no end


NO_POOL = Pool()


def _among(pool: str | None, pools: Collection[str] | None) -> bool:
    """Tell whether jobs of a pool are considered: those of none always are."""
    return pools is None or pool is None or pool in pools


class QueueRows(ABC):
    """The jobs that wait, by row of a policy's queue."""

    @abstractmethod
    def add(self, job: Job, row: int, first: bool = False, pool: str | None = None) -> None:
        """Add a job of class number `row` behind the others of its pool, or as the first of them."""

    @abstractmethod
    def remove(self, job: Job, row: int) -> None:
        """Remove a waiting job of class number `row`."""

    @abstractmethod
    def take(self, row: int, pools: Collection[str] | None = None) -> Job:
        """Remove and return the next job of a row, of one of some pools."""

    def leave(self, job: Job) -> None:  # noqa: B027, a row that is a class stays
        """Free the row of a job that is done or cancelled."""

    def row(self, job: Job, row: int) -> int:
        """Return the row of a job of class number `row`; default: that of its class."""
        return row

    @abstractmethod
    def waiting(self, pools: Collection[str] | None = None) -> Array:
        """Return how many jobs wait in each row (rows,), of all pools or of some."""

    def gone(self) -> list[int]:
        """Return the rows whose job has left since the last call; they are free from now on."""
        return []

    def arrange(self, kept: Iterable[int | None]) -> None:  # noqa: B027, a row that is a job stays
        """Change the classes: for each new one the number it had, or None."""


class ClassQueue:
    """The jobs of a class: oldest first within a pool; pools with jobs take turns in proportion to their weights."""

    def __init__(self) -> None:
        self._pools: dict[str | None, OrderedDict[Job, None]] = {}
        self._turn: dict[str | None, float] = {}
        self._now = 0.0

    def __iter__(self) -> Iterator[Job]:
        for queue in self._pools.values():
            yield from queue

    def add(self, job: Job, pool: str | None, first: bool) -> None:
        """Add a job, as the last or the first of its pool."""
        queue = self._pools.get(pool)
        if queue is None:
            queue = self._pools[pool] = OrderedDict()
            self._turn[pool] = self._now  # a pool that had no jobs has not saved turns
        queue[job] = None
        if first:
            queue.move_to_end(job, last=False)

    def remove(self, job: Job, pool: str | None) -> None:
        """Remove a job."""
        queue = self._pools[pool]
        del queue[job]
        if not queue:
            del self._pools[pool], self._turn[pool]

    def size(self, pools: Collection[str] | None) -> int:
        """Return how many jobs wait, of all pools or of some."""
        if pools is None:
            return sum(map(len, self._pools.values()))
        return sum(len(queue) for pool, queue in self._pools.items() if _among(pool, pools))

    def take(self, pools: Collection[str] | None, weights: Mapping[str | None, Pool]) -> Job:
        """Remove and return the oldest job of the pool whose turn it is."""
        pool = min((one for one in self._pools if _among(one, pools)), key=self._turn.__getitem__)
        job = next(iter(self._pools[pool]))
        self._now = self._turn[pool]
        self._turn[pool] += 1.0 / weights.get(pool, NO_POOL).weight
        self.remove(job, pool)
        return job


class ClassRows(QueueRows):
    """A row for each class."""

    def __init__(self, classes: int, weights: Mapping[str | None, Pool]) -> None:
        self._queues = [ClassQueue() for _ in range(classes)]
        self._pool: dict[Job, str] = {}
        self._weights = weights

    def add(self, job: Job, row: int, first: bool = False, pool: str | None = None) -> None:
        self._queues[row].add(job, pool, first)
        if pool is not None:
            self._pool[job] = pool

    def remove(self, job: Job, row: int) -> None:
        self._queues[row].remove(job, self._pool.pop(job, None))

    def take(self, row: int, pools: Collection[str] | None = None) -> Job:
        job = self._queues[row].take(pools, self._weights)
        self._pool.pop(job, None)
        return job

    def waiting(self, pools: Collection[str] | None = None) -> Array:
        return np.array([queue.size(pools) for queue in self._queues], dtype=np.float64)

    def order(self) -> Iterator[Job]:
        """Yield the jobs that wait, class by class and pool by pool, oldest first."""
        for queue in self._queues:
            yield from queue

    def arrange(self, kept: Iterable[int | None]) -> None:
        self._queues = [ClassQueue() if old is None else self._queues[old] for old in kept]


class JobRows(QueueRows):
    """A row for each job, until the policy knows that the job has left."""

    def __init__(self) -> None:
        self._place: dict[Job, int] = {}
        self._jobs: list[Job | None] = []
        self._pools: list[str | None] = []
        self._waits = np.zeros(0)
        self._free: list[int] = []
        self._gone: list[int] = []

    def add(self, job: Job, row: int, first: bool = False, pool: str | None = None) -> None:
        place = self._place.get(job)
        if place is None:
            place = self._free.pop() if self._free else self._grown()
            self._place[job], self._jobs[place] = place, job
        self._waits[place], self._pools[place] = 1.0, pool

    def remove(self, job: Job, row: int) -> None:
        self._waits[self._place[job]] = 0.0

    def take(self, row: int, pools: Collection[str] | None = None) -> Job:
        self._waits[row] = 0.0
        return self._jobs[row]

    def leave(self, job: Job) -> None:
        self._gone.append(self._place.pop(job))  # free once the policy knows

    def row(self, job: Job, row: int) -> int:
        return self._place[job]

    def waiting(self, pools: Collection[str] | None = None) -> Array:
        waits = self._waits[: len(self._jobs)].copy()
        if pools is not None:
            waits *= [_among(pool, pools) for pool in self._pools]
        return waits

    def gone(self) -> list[int]:
        gone, self._gone = self._gone, []
        self._free += gone
        return gone

    def _grown(self) -> int:
        self._jobs.append(None)
        self._pools.append(None)
        if len(self._jobs) > len(self._waits):
            self._waits = np.concatenate([self._waits, np.zeros(max(16, len(self._waits)))])
        return len(self._jobs) - 1


class SlotEngine(Engine):
    """A policy that shares the idle servers of each slot; draws turn its expected allocation into services."""

    def __init__(self, roster: Roster, seed: int) -> None:
        self.roster, self.slot = roster, 0
        self.learns = self.policy.learns
        self.by_job = self.policy.rows == "job"
        self._pools: dict[str | None, Pool] = {}
        self.rows: QueueRows = JobRows() if self.by_job else ClassRows(len(roster.jobs), self._pools)
        self._draws = Draws(seed)
        self.learnt = self.policy.start(roster.instances, HORIZON, [np.random.default_rng((seed, 0))])
        self._seen: list[tuple[int, int, float]] = []
        self._classes: dict[Job, str] = {}
        self._show(self.rows.waiting(), np.zeros(len(roster.servers)))

    def __repr__(self) -> str:
        return repr(self.policy)

    @property
    def policy(self) -> Policy:
        """The policy, with the weights of the classes."""
        return self.roster.policy

    def _show(self, queue: Array, capacity: Array) -> None:
        self._shown, self._capacity = queue, capacity
        self.expected = np.zeros((queue.size, capacity.size))

    def check(self, entry: Entry) -> None:
        for name in ("features", "servers", "weight", "duration", "cost"):
            if getattr(entry, name) is not None:
                raise self.refusal(f"{name} of a single job")
        if entry.deadline < inf:
            raise self.refusal("deadline of a job")

    def add(self, job: Job, entry: Entry, first: bool = False) -> None:
        self.rows.add(job, self.roster.row(entry.job_class), first, entry.pool)
        self._classes[job] = entry.job_class

    def remove(self, job: Job, entry: Entry) -> None:
        self.rows.remove(job, self.roster.row(entry.job_class))
        self.rows.leave(job)
        del self._classes[job]

    def leave(self, job: Job) -> None:
        self.rows.leave(job)

    def place(self, job: Job, entry: Entry) -> None:
        row = self.roster.row(entry.job_class)
        self.rows.add(job, row, pool=entry.pool)
        self.rows.remove(job, row)
        new_rows = self.rows.row(job, row) + 1 - self._shown.size
        if new_rows > 0:  # it did not wait in the last slot, but its reward may arrive before the next
            self._shown = np.pad(self._shown, (0, new_rows))

    def order(self) -> list[Job]:
        if not isinstance(self.rows, ClassRows):
            raise BadInput("a snapshot with jobs needs a policy with a row for each class")
        return list(self.rows.order())

    def queue(self) -> dict[str, int]:
        number = Counter(self._classes.values())
        return {name: number[name] for name in self.roster.jobs}

    def set_pool(self, name: str, pool: Pool, waiting: Iterable[tuple[Job, Entry]]) -> None:
        if pool.weight != 1.0 and not self.policy.takes_weights:
            raise BadInput(f"weight must be 1 for a policy without weights; got {pool.weight:g} for {self.policy!r}")
        self._pools[name] = pool

    def decide(
        self, idle: Array, out: Array, now: float, elapsed: float, pools: Collection[str] | None = None
    ) -> list[tuple[Job, int, Decision | None]]:
        self._learn()
        queue = self.rows.waiting(pools)
        self.slot += 1
        self._show(self.rows.waiting() if self.by_job else queue, idle)  # rows that are jobs have a time of arrival
        if not (idle.any() and queue.any()):
            return []
        y = self.policy.decide(self.policy.paced(self.learnt, elapsed), queue[None], idle[None])[0]
        self.expected = y
        picks = draw(y, queue, idle, self._draws.of_slot(self.slot), "distinct")
        found: list[tuple[Job, int, Decision | None]] = []
        for row, column in zip(*(axis.tolist() for axis in np.nonzero(picks)), strict=True):
            for _ in range(picks[row, column]):
                job = self.rows.take(row, pools)
                del self._classes[job]
                found.append((job, column, None))
        return found

    def observe(self, service: Service) -> None:
        if service.weight != 1.0:
            raise self.refusal("a weight of an observation")
        if service.job is None and self.by_job:
            raise BadInput(f"{self.policy!r} learns from its own jobs only")
        if service.reward is not None:
            row, column = self.roster.row(service.job_class), self.roster.column(service.server_class)
            own = row if service.job is None else self.rows.row(service.job, row)
            self._seen.append((own, column, service.reward))

    def set_roster(self, roster: Roster, waiting: list[tuple[Job, Entry]]) -> None:
        self._learn()
        self.learnt = roster.policy.adapt(self.learnt, roster.instances)
        self.rows.arrange([self.roster.jobs.get(name) for name in roster.jobs])
        self.roster = roster
        self._show(self.rows.waiting(), np.zeros(len(roster.servers)))

    def check_roster(self, roster: Roster) -> None:
        roster.policy.adapt(self.learnt, roster.instances)

    @property
    def settings(self) -> PolicySettings | None:
        return PolicySettings.of(self.policy)

    def update(self, changes: dict[str, Any]) -> None:
        self.roster = self.roster.updated(**changes)
        self.learnt = self.policy.adapt(self.learnt, self.roster.instances)

    @property
    def V(self) -> float:
        V = self.policy.current_V(self.learnt)
        return float("nan") if V is None else float(V[0])

    def beliefs(self) -> tuple[Array, Array] | None:
        known = self.policy.beliefs(self.learnt)
        return None if known is None else (known[0][0], known[1][0])

    def health(self, unit: float) -> Health | None:
        return health_of(getattr(self.learnt, "learnt", None), unit)

    def state(self) -> dict[str, Any]:
        return {"slot": self.slot, "seen": self._seen, "shown": encode(self._shown), "state": encode(self.learnt)}

    def load(self, state: dict[str, Any], now: float) -> None:
        self.slot = whole("slot", state["slot"])
        if self.by_job:
            return  # the rest is about jobs, which are not in a snapshot of such a policy
        learnt, shown = (
            decode(state[name], like, name, self.policy.varying)
            for name, like in (("state", self.learnt), ("shown", self._shown))
        )
        self.policy.check(learnt)
        within("shown", shown, 0.0, LARGEST_COUNT)
        self.learnt, self._shown = learnt, shown
        rows, columns = len(self.roster.jobs) - 1, len(self.roster.servers) - 1
        self._seen = [
            (whole("row", row, high=rows), whole("column", column, high=columns), number("reward", value, -1.0, 1.0))
            for row, column, value in state["seen"]
        ]

    def _learn(self) -> None:
        if not self.slot and not self._seen:
            return
        shape = (1, self._shown.size, len(self.roster.servers))
        rows, columns, rewards = zip(*self._seen, strict=True) if self._seen else ((), (), ())
        pairs, value = np.array(rows, np.int64) * shape[2] + np.array(columns, np.int64), np.array(rewards, np.float64)
        size = shape[1] * shape[2]
        number = np.bincount(pairs, minlength=size).reshape(shape)
        total, squares = (np.bincount(pairs, one, size).astype(float).reshape(shape) for one in (value, value * value))
        left = np.zeros(shape[:2], np.bool_)
        left[0, [row for row in self.rows.gone() if row < shape[1]]] = True
        outcome = Outcome(self.slot, number, total, squares, left, self._shown[None], self._capacity[None])
        self.learnt, self._seen = self.policy.learn(self.learnt, outcome), []
