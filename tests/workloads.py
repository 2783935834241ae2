"""Small workloads and a router that keeps a log, for tests of the replay."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bilinq import Router, Workload
from bilinq.routing import FleetView, WaitingJob


def one_queue(arrival: Iterable[float], duration: Any = 1.0, servers: int = 1, **options: Any) -> Workload:
    """Return jobs for one server class; job k earns k + 1."""
    times = list(arrival)
    rewards = np.arange(1.0, len(times) + 1.0)[:, None]
    return Workload(arrival=times, reward=rewards, duration=duration, servers={"gpu": servers}, **options)


def random_fleet(
    jobs: int, seed: int = 0, classes: int = 3, servers: tuple[int, ...] = (2, 3, 1), load: float = 0.8
) -> Workload:
    """Return random jobs of several classes with two features each."""
    rng = np.random.default_rng(seed)
    kind, J = rng.integers(classes, size=jobs), len(servers)
    x = rng.normal(size=(jobs, 2))
    reward = rng.random((classes, J))[kind] + 0.2 * x @ rng.normal(size=(2, J))
    return Workload(
        arrival=np.cumsum(rng.exponential(size=jobs)), reward=reward, duration=rng.uniform(0.5, 3.0, (jobs, J)),
        servers={f"s{j}": n for j, n in enumerate(servers)}, features=x, job_class=kind,
    ).at_load(load)  # fmt: skip


class Start(NamedTuple):
    """A service that a router started."""

    job: int
    column: int
    time: float


class Logged(Router):
    """A router inside another that keeps its starts, in lists that outlive the copy which `replay` makes."""

    def __init__(self, inner: Router, starts: list[Start], idle: list[tuple[float, int, int]] | None = None) -> None:
        self.inner, self.starts, self.idle = inner, starts, idle
        self.sees_rewards, self.sees_durations = inner.sees_rewards, inner.sees_durations

    def __deepcopy__(self, memo: dict[int, Any]) -> "Logged":
        from copy import deepcopy

        return Logged(deepcopy(self.inner, memo), self.starts, self.idle)

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        self.inner.start(fleet, rng)
        self.interval = self.inner.interval

    def arrive(self, job: WaitingJob) -> None:
        self.inner.arrive(job)

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        left = idle[:]
        pairs = list(self.inner.decide(now, waiting, idle))
        self.starts += [Start(job, column, now) for job, column in pairs]
        for _, column in pairs:
            left[column] -= 1
        if self.idle is not None:
            started = {job for job, _ in pairs}
            rest = [job for number, job in waiting.items() if number not in started]
            self.idle += [(now, job.number, j) for job in rest for j in job.eligible if left[j] > 0]
        return pairs

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.inner.learn(job, server, reward, duration)

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:
        self.inner.finish(job, server, duration)

    def fail(self, job: WaitingJob, server: int) -> None:
        self.inner.fail(job, server)

    def wake(self, now: float) -> float:
        return self.inner.wake(now)

    def again(self, job: WaitingJob) -> None:
        self.inner.again(job)

    def leave(self, job: WaitingJob) -> None:
        self.inner.leave(job)
