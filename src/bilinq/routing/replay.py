"""The replay: virtual time, one job at a time, servers that stay busy until a service ends."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from heapq import heappop, heappush
from math import ceil, floor, inf, nan
from typing import Any

import numpy as np

from bilinq.arrays import count, positive, scalar, short
from bilinq.display import Progress, in_notebook
from bilinq.errors import BadInput
from bilinq.routing.records import Replay
from bilinq.routing.router import FleetView, Router, WaitingJob
from bilinq.routing.workload import Workload

END, REWARD, OUTAGE, EXPIRY = range(4)  # the order at equal times; arrivals and decisions are before EXPIRY
SAMPLES = 1000
PATIENCE = 10_000  # slots in a row in which nothing starts, after which the router is asked at the next event only
EVERY = 1024  # arrivals between two reports of progress
SLACK = 1e-9  # part of a slot by which a multiple may be missed in floating point

Event = tuple[float, int, int, Any, int]  # time, kind, serial number, a job or a number of servers, column


def replay(workload: Workload, router: Router, seed: int = 1, progress: Progress | None = None) -> Replay:
    """Run a router on a workload and return the record.

    At equal times the order is: ends of services, rewards, starts and ends of outages, arrivals, decisions, deadlines.
    Within these, ends and rewards are in the order of the starts. Failures, missing rewards and the router have random
    streams of their own, and a failure depends on the job and its attempt only: two routers have the same luck.

    Parameters
    ----------
    workload : Workload
    router : Router
        It is copied, not changed.
    seed : int
    progress : callable, optional
        Called with the number of jobs that have arrived and of all jobs. Default: a bar in notebooks, if it takes long.

    Examples
    --------
    >>> from bilinq.routing.routers import LeastBusy
    >>> work = Workload(arrival=[0.0, 1.0, 1.5], reward=[[1.0], [0.5], [0.0]], duration=2.0, servers={"gpu": 1})
    >>> replay(work, LeastBusy()).wait.tolist()
    [0.0, 1.0, 2.5]
    """
    if not isinstance(workload, Workload):
        raise BadInput(f"workload must be a Workload; got {short(workload)}")
    if not isinstance(router, Router):
        raise BadInput(f"router must be a Router, not a class; got {short(router)}")
    run = Playback(workload, deepcopy(router), count("seed", seed, least=0))
    began = time.perf_counter()
    with in_notebook(progress, "jobs") as report:
        run.go(report)
    return run.record(repr(router), time.perf_counter() - began)


class Playback:
    """One run: the fleet, the jobs that wait, the events to come and the record."""

    def __init__(self, workload: Workload, router: Router, seed: int) -> None:
        failures, missing, own = (np.random.default_rng(s) for s in np.random.SeedSequence((seed,)).spawn(3))
        self.workload, self.router, self.seed = workload, router, seed
        self._read(workload)
        self._draw(workload, failures, missing)
        self._clear(workload.N, workload.J)
        self.waiting: OrderedDict[int, WaitingJob] = OrderedDict()
        self.idle: list[int] = workload.capacity.tolist()  # negative while an outage waits for running services
        self.heap: list[Event] = []
        self.serial = self.next = self.decisions = self.idle_ticks = 0
        self.tick, self.thinking = inf, 0.0
        for one in workload.outages:
            column = workload.column(one.server_class)
            self._push(one.start, OUTAGE, -one.servers, column)
            self._push(one.end, OUTAGE, one.servers, column)
        router.start(FleetView(workload, durations=router.sees_durations, rewards=router.sees_rewards), own)
        self.interval = None if router.interval is None else scalar("interval", router.interval, positive)
        self.hears_arrivals = type(router).arrive is not Router.arrive

    def _read(self, workload: Workload) -> None:
        """Take the jobs as lists, which are faster than arrays one entry at a time; tables stay arrays."""
        self.arrival: list[float] = [*workload.arrival.tolist(), inf]
        self.kind: list[int] = workload.job_class.tolist()
        self.delay: list[float] = workload.reward_delay.tolist()
        self.deadline: list[float] = (workload.arrival + workload.deadline).tolist()
        self.left: list[int] = workload.units.tolist()
        self.chance: list[float] = workload.failure.tolist()
        self.all_columns = tuple(range(workload.J)) if workload.eligible.all() else None
        self.duration_of, self.reward_of = workload.duration.item, workload.reward.item

    def _draw(self, workload: Workload, failures: np.random.Generator, missing: np.random.Generator) -> None:
        """Draw which rewards are missing, and a number for every service that a job may need."""
        self.missing: list[bool] = (missing.random(workload.N) < workload.reward_missing).tolist()
        services = np.concatenate([[0], np.cumsum(workload.units + workload.max_attempts - 1)])
        self.luck: list[float] = failures.random(services[-1]).tolist() if any(self.chance) else []
        self.luck_at: list[int] = services.tolist()

    def _clear(self, N: int, J: int) -> None:
        """Begin an empty record."""
        self.server, self.attempts, self.failed, self.expired = [-1] * N, [0] * N, [0] * N, [False] * N
        self.start, self.end, self.earned, self.observed = [nan] * N, [nan] * N, [nan] * N, [nan] * N
        self.busy, self.worked = [0] * J, [0.0] * J
        first, last = self.arrival[0], self.arrival[N - 1]
        self.times: list[float] = np.linspace(first, last, SAMPLES).tolist() if last > first else [first]
        self.samples: list[list[int]] = []
        self.sample_at = first

    def go(self, progress: Progress | None) -> None:
        """Run until nothing happens any more."""
        for now in self.moments(progress):
            self._decide(now)

    def moments(self, progress: Progress | None = None) -> Iterator[float]:
        """Yield the times at which the router decides, until nothing happens any more."""
        heap, arrival, N = self.heap, self.arrival, self.workload.N
        while True:
            now = min(arrival[self.next], self.tick, heap[0][0] if heap else inf)
            if now == inf:
                break
            if now > self.sample_at:
                self._sample(now)
            while heap and heap[0][0] == now and heap[0][1] != EXPIRY:
                self._happen(heappop(heap), now)
            while arrival[self.next] == now:
                self._arrive(self.next)
                self.next += 1
                if progress is not None and (self.next % EVERY == 0 or self.next == N):
                    progress(self.next, N)
            if self._due(now):
                yield now
            while heap and heap[0][0] == now and heap[0][1] == EXPIRY:
                self._expire(heappop(heap)[3])
        self._sample(inf)

    def _push(self, when: float, kind: int, what: Any, column: int) -> None:
        self.serial += 1
        heappush(self.heap, (when, kind, self.serial, what, column))

    def _happen(self, event: Event, now: float) -> None:
        _, kind, _, what, column = event
        self.idle_ticks = 0
        if kind == END:
            self._finish(what, column, now)
        elif kind == REWARD:
            k = what.number
            self.observed[k] = self.earned[k]
            self.router.learn(what, column, self.reward_of(k, column), self.duration_of(k, column))
        else:
            self.idle[column] += what

    def _arrive(self, k: int) -> None:
        work, columns = self.workload, self.all_columns
        if columns is None:
            columns = tuple(np.flatnonzero(work.eligible[k]).tolist())
        features = None if work.features is None else work.features[k]
        job = WaitingJob(k, self.arrival[k], self.kind[k], features, columns, self.deadline[k])
        self.waiting[k] = job
        self.idle_ticks = 0
        if self.deadline[k] != inf:
            self._push(self.deadline[k], EXPIRY, job, -1)
        if self.hears_arrivals:
            began = time.perf_counter()
            self.router.arrive(job)
            self.thinking += time.perf_counter() - began

    def _due(self, now: float) -> bool:
        """Return whether the router decides now; set the next multiple of its interval where it does not."""
        step = self.interval
        if not self.waiting or max(self.idle) <= 0:
            self.tick = inf
            return False
        if step is not None and self.tick != now:
            self.tick = max(ceil(now / step - SLACK) * step, now)
        return step is None or self.tick == now

    def _decide(self, now: float) -> None:
        began = time.perf_counter()
        pairs = self.router.decide(now, self.waiting, [n if n > 0 else 0 for n in self.idle])
        pairs = list(pairs)
        self.thinking += time.perf_counter() - began
        for job, column in pairs:
            self.begin(job, column, now)
        self.decided(now, bool(pairs))

    def decided(self, now: float, started: bool) -> None:
        """Note that the decisions of this moment have been made, and whether a job started."""
        self.decisions += 1
        if self.interval is None:
            self.tick = self.router.wake(now)
        else:
            self.idle_ticks = 0 if started else self.idle_ticks + 1
            more = self.waiting and max(self.idle) > 0 and self.idle_ticks < PATIENCE
            self.tick = (floor(now / self.interval + SLACK) + 1) * self.interval if more else inf

    def begin(self, k: int, column: int, now: float) -> None:
        """Start a job that waits on an idle server."""
        job = self.waiting.pop(k, None)
        if job is None:
            raise self._refusal("only jobs that wait", k, now, "it is unknown, has left or has started already")
        if column not in job.eligible:
            raise self._refusal("eligible pairs", k, now, f"column {short(column)} may not serve it")
        if self.idle[column] <= 0:
            raise self._refusal("idle servers", k, now, f"no server of column {column} is idle")
        self.idle[column] -= 1
        self.busy[column] += 1
        self.server[k], self.start[k] = column, now
        self.attempts[k] += 1
        self._push(now + self.duration_of(k, column), END, job, column)

    def _refusal(self, rule: str, job: object, now: float, why: str) -> BadInput:
        return BadInput(f"{type(self.router).__name__}.decide must return {rule}; got job {job} at time {now:g}: {why}")

    def _finish(self, job: WaitingJob, column: int, now: float) -> None:
        k = job.number
        duration = self.duration_of(k, column)
        self.idle[column] += 1
        self.busy[column] -= 1
        self.worked[column] += duration
        self.end[k] = now
        self.router.finish(job, column, duration)
        if self.luck and self.luck[self.luck_at[k] + self.attempts[k] - 1] < self.chance[column]:
            self.failed[k] += 1
            self.router.fail(job, column)
            self._back_or_gone(job, gone=self.failed[k] >= self.workload.max_attempts)
            return
        reward, sum_ = self.reward_of(k, column), self.earned[k]
        self.earned[k] = reward if sum_ != sum_ else sum_ + reward
        self.left[k] -= 1
        if not self.missing[k]:
            self._push(now + self.delay[k], REWARD, job, column)
        self._back_or_gone(job, gone=not self.left[k])

    def _back_or_gone(self, job: WaitingJob, *, gone: bool) -> None:
        if gone:
            self.router.leave(job)
            return
        self.waiting[job.number] = job
        self.waiting.move_to_end(job.number, last=False)
        self.router.again(job)

    def _expire(self, job: WaitingJob) -> None:
        if not self.attempts[job.number]:
            del self.waiting[job.number]
            self.expired[job.number] = True
            self.router.leave(job)

    def _sample(self, now: float) -> None:
        """Record the queue and the busy servers at all sample times before `now`."""
        state, at = [len(self.waiting), *self.busy], len(self.samples)
        while at < len(self.times) and self.times[at] < now:
            self.samples.append(state)
            at += 1
        self.sample_at = self.times[at] if at < len(self.times) else inf

    def record(self, router: str, seconds: float) -> Replay:
        """Return the record of the run."""
        work, samples = self.workload, np.array(self.samples, np.int64)
        incomplete = np.array(self.left) > 0
        return Replay(
            arrival=work.arrival, job_class=work.job_class, server=np.array(self.server, np.int64),
            start=np.array(self.start), end=np.array(self.end), reward=np.where(incomplete, nan, self.observed),
            earned=np.where(incomplete, nan, self.earned), attempts=np.array(self.attempts, np.int64),
            expired=np.array(self.expired, np.bool_), times=np.array(self.times), queue=samples[:, 0], busy=samples[:, 1:],
            worked=np.array(self.worked), decisions=self.decisions, thinking=self.thinking, seconds=seconds,
            seed=self.seed, router=router, servers=dict(work.servers), job_classes=work.job_classes,
        )  # fmt: skip
