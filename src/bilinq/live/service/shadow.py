"""Shadow mode: a second policy decides beside the first, and what it would have earned is estimated.

In a slot the shadow is asked which server classes it would have given the jobs that the first policy has just started, on
the servers that were idle. It learns from the same observations. No job depends on it: an error switches it off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from bilinq.errors import BadState, Unavailable
from bilinq.live.service.comparison import Comparison, Opinion, Opinions, among
from bilinq.live.service.configuration import new_scheduler, scheduler_classes, scheduler_settings, warm_up
from bilinq.live.service.replay import first_roster, fits, observation, replay_in_parts, roster_at
from bilinq.live.service.tenants import is_open
from bilinq.live.settings import LOOK_AHEAD, NO_SHADOW
from bilinq.live.store.class_tables import all_classes
from bilinq.live.store.job_tables import last_observation, observations_since
from bilinq.live.wire.samples import ShadowInfo, ShadowState
from bilinq.off_policy import NEGLIGIBLE
from bilinq.scheduler.waits import FIRST_GAIN

if TYPE_CHECKING:
    from bilinq.arrays import Array, BoolArray
    from bilinq.live.metrics import Meters
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Transaction
    from bilinq.live.store.class_tables import ClassRow
    from bilinq.live.store.job_tables import LeaseRow, ObservationRow
    from bilinq.scheduler.scheduler import Scheduler

log = logging.getLogger("bilinq.live")

Idle = dict[str, list[int]]

MOST = 100  # leases of a slot beyond which the shadow is not asked, so that the next slot is not late
REST = 20.0  # how long it rests after it has learnt or was asked: so many times the CPU time that it took
AT_ONCE = 10  # observations that it learns at once
BACKLOG = 10_000  # observations that wait to be learnt; of more, the newest
LEARN_FROM = 20_000  # observations of the log from which it learns when it begins


class Shadow:
    """The second policy, what it has learnt, and how it compares with the first.

    `scheduler` is None until it has learnt from the log, and after an error, whose text is `error`.
    """

    def __init__(self, settings: ServiceSettings, meters: Meters) -> None:
        self.policy, self.settings, self._meters = settings.shadow, shadow_settings(settings), meters
        self.scheduler: Scheduler | None = None
        self.error: str | None = None
        self.comparison = Comparison(())
        self._names: dict[int, str] = {}
        self._waiting: deque[ObservationRow] = deque(maxlen=BACKLOG)

    def info(self) -> ShadowInfo:
        """Return how it compares, as the API shows it."""
        state: ShadowState = "failed" if self.error is not None else "starting" if self.scheduler is None else "on"
        return self.comparison.info(self.policy, state, self.error)

    def begin(self, scheduler: Scheduler, every: Sequence[ClassRow], last: int, now: Iterable[ClassRow]) -> None:
        """Use a scheduler that has learnt from the log up to the place `last`; it learns what came since, too.

        `every` are the classes of the log, and `now` the present ones.
        """
        with self._guarded():
            self.scheduler, self._names = scheduler, {row.id: row.name for row in every}
            self._waiting = deque((row for row in self._waiting if row.seq > last), BACKLOG)
            self._set_classes(now)

    def fail(self, error: Exception) -> None:
        """Switch it off for good, and log why."""
        log.error("the shadow %s failed and is switched off: %s", self.policy, error, exc_info=error)
        self._meters.shadow_failures += 1
        self.scheduler, self.error = None, str(error) or type(error).__name__
        self._waiting.clear()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.fail(error)

    def set_classes(self, rows: Iterable[ClassRow]) -> None:
        """Use other classes from now on."""
        if self.scheduler is not None:
            with self._guarded():
                self._set_classes(rows)

    def _set_classes(self, rows: Iterable[ClassRow]) -> None:
        assert self.scheduler is not None
        rows = list(rows)
        self._names |= {row.id: row.name for row in rows}
        self.scheduler.set_classes(*scheduler_classes(rows, self.settings))

    def update_settings(self, settings: ServiceSettings) -> None:
        """Use other settings of its policy from now on."""
        self.settings = shadow_settings(settings)
        if self.scheduler is not None:
            with self._guarded():
                self.scheduler.update_settings(**scheduler_settings(self.settings))

    def observe(self, row: ObservationRow) -> None:
        """Note an observation, which it learns later, and the reward of its lease; a failure counts as the lowest one."""
        if self.error is not None:
            return
        value = self.settings.reward.low if row.failed else row.value
        if value is not None:
            self.comparison.reward(row.lease, value)
        self._waiting.append(row)

    def learn(self) -> None:
        """Learn from the oldest observations that wait."""
        scheduler, rows = self.scheduler, [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
        if scheduler is None or not scheduler.learns or not rows:
            return
        with self._guarded():
            scheduler.replay(observation(row, self._names, scheduler) for row in rows if fits(scheduler, row))
            scheduler.set_classes(scheduler.job_classes, scheduler.server_classes)  # what was observed is learnt now

    def compare(self, memory: Memory, idle: Idle, rows: Sequence[LeaseRow], alone: bool) -> None:
        """Note what it would have chosen for leases that were just granted, on the servers that were `idle`."""
        with self._guarded():
            self._compare(memory, idle, rows, alone)

    def _compare(self, memory: Memory, idle: Idle, rows: Sequence[LeaseRow], alone: bool) -> None:
        first = memory.scheduler
        assert first is not None
        free = free_servers(first, idle)
        allowed = {row.id: _allowed(memory, row, first, free) for row in rows}
        if all(some.sum() < 2 for some in allowed.values()):
            return  # there was nothing to choose
        columns = [one.name for one in first.server_classes]
        if self.comparison.columns != tuple(columns):
            self.comparison = Comparison(columns)
        theirs, mine = Opinions(first), self._ask(memory, rows, free)
        for row in rows:
            lease, some = memory.leases[row.id], allowed[row.id]
            policy = among(some, mine[row.job].chance, NEGLIGIBLE) if row.job in mine and some.sum() > 1 else None
            if policy is None:
                continue
            view, group = theirs.of(row.job, lease.job_class), _group(memory, row)
            chance = among(some, view.chance) if alone and group is None and _is_new(memory, row) else None
            value = mine[row.job].value if view.value is None else view.value
            chosen = columns.index(lease.server_class)
            self.comparison.add(row.id, chosen, policy, value=value, group=group, chance=chance)

    def _ask(self, memory: Memory, rows: Sequence[LeaseRow], free: Array) -> dict[int, Opinion]:
        """Return what it thinks of jobs, by id, if it had to start them now; then it forgets them."""
        scheduler = self.scheduler
        assert scheduler is not None
        by_job = scheduler.policy is None
        asked = [row.job for row in rows if by_job or memory.jobs[row.job].options.servers is None]
        for id in asked:
            job = memory.jobs[id]
            own = {name: getattr(job.options, name) for name in ("features", "servers", "weight")} if by_job else {}
            scheduler.submit(job.job_class, job=id, **own)
        names = [one.name for one in scheduler.server_classes]
        tasks = scheduler.assign({name: int(many) for name, many in zip(names, free.tolist(), strict=True)})
        if not scheduler.sound:
            raise BadState("what was learnt must be finite")
        views, started = Opinions(scheduler), {task.job for task in tasks}
        found = {id: views.of(id, memory.jobs[id].job_class) for id in asked if id in started or not by_job}
        for id in asked:
            scheduler.cancel(id)
        return found


def shadow_settings(settings: ServiceSettings) -> ServiceSettings:
    """Return the settings of the shadow: it starts what it is asked to start, and draws its own random numbers.

    It has no queue of its own, so the look-ahead cannot adjust V to its waits, and keeps the first guess.
    """
    own = structs.replace(settings, policy=settings.shadow, work_conserving=True, seed=(settings.seed or 0) + 1)
    if own.policy != LOOK_AHEAD or own.target_wait is None:
        return own
    return structs.replace(own, target_wait=None, V=own.target_wait / FIRST_GAIN)


def free_servers(scheduler: Scheduler, idle: Idle) -> Array:
    """Return how many servers of each class (J,) are idle and not paused."""
    paused, found = scheduler.paused, np.zeros(len(scheduler.server_classes))
    for k, one in enumerate(scheduler.server_classes):
        if (one.name, None) not in paused:
            found[k] = sum((one.name, id) not in paused for id in idle.get(one.name, ()))
    return found


def _allowed(memory: Memory, row: LeaseRow, scheduler: Scheduler, free: Array) -> BoolArray:
    """Return the server classes (J,) that could have served a job when it was leased."""
    eligible = memory.jobs[row.job].options.servers
    if eligible is None:
        return np.asarray(free > 0.0)
    return np.array([n > 0.0 and one.name in eligible for n, one in zip(free, scheduler.server_classes, strict=True)])


def _group(memory: Memory, row: LeaseRow) -> tuple[str, str] | None:
    """Return the class and namespace of a job that differs in nothing else from others, as far as policies know; or None."""
    job = memory.jobs[row.job]
    own = job.options.features is not None or job.options.servers is not None or job.options.weight is not None
    return None if own or job.attempts else (job.job_class, job.books.name)


def _is_new(memory: Memory, row: LeaseRow) -> bool:
    """Tell whether a job was started in the first slot after it came.

    If it was alone as well, the look-ahead has chosen with the chances of its record. Otherwise they are not right: they are
    at the prices of the slot, which depend on the draws of all jobs, and a job that waited has shown a part of its draws.
    """
    assert memory.scheduler is not None
    return memory.jobs[row.job].offered == memory.scheduler.slot - 1


class Shadows:
    """Begins the shadow that the settings name, and asks it after slots, for a small part of the time."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._until = replica, 0.0

    def compare(self, memory: Memory, idle: Idle, rows: Sequence[LeaseRow], alone: bool) -> None:
        """Let the shadow learn, and ask it about leases that were just granted; `alone`: no other job waited in the slot."""
        if self._replica.settings.shadow == NO_SHADOW:
            return
        if memory.shadow is None:
            memory.shadow = Shadow(self._replica.settings, self._replica.meters)
            self._replica.spawn(self._begin(memory, memory.shadow))
        if memory.shadow.scheduler is None or time.monotonic() < self._until:
            return
        began, stand_in = time.thread_time(), memory.missed is not None
        memory.shadow.learn()
        spaces = {memory.jobs[row.job].books.name for row in rows}
        if memory.shadow.scheduler is not None and not stand_in and len(rows) <= MOST and is_open(memory, spaces):
            memory.shadow.compare(memory, idle, rows, alone)
        self._until = time.monotonic() + REST * (time.thread_time() - began)

    async def _begin(self, memory: Memory, shadow: Shadow) -> None:
        """Let a shadow learn from the log, a little at a time, unless another one is wanted meanwhile."""
        replica = self._replica
        try:
            await asyncio.to_thread(warm_up, shadow.settings)
            await replica.write(lambda tx: None)  # what was observed before is on disk then
            every, rows, last = await replica.store.read(_read_log)
            start = max(first_roster(every), rows[0].seq - 1 if rows else last)
            classes = scheduler_classes(roster_at(every, start), shadow.settings)
            scheduler = new_scheduler(classes, shadow.settings)
            seen = rows if scheduler.learns else []
            began = time.thread_time()
            for _ in replay_in_parts(scheduler, every, seen, shadow.settings, start, AT_ONCE):
                await asyncio.sleep(REST * (time.thread_time() - began))
                began = time.thread_time()
                if memory.shadow is not shadow:
                    return
            shadow.begin(scheduler, every, last, memory.classes.values())
        except Unavailable:
            pass  # memory is loaded again, and the shadow begins again
        except Exception as error:
            shadow.fail(error)


def _read_log(tx: Transaction) -> tuple[list[ClassRow], list[ObservationRow], int]:
    """Return all classes, the newest observations, and the last place in the log."""
    last = last_observation(tx)
    return all_classes(tx), observations_since(tx, last - LEARN_FROM), last
