"""Routers that send each job to a server class on arrival: in turn, at random, to the best, the fastest, or by price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bilinq.routing.router import Dispatcher, FleetView, WaitingJob
from bilinq.routing.scores import ClassGaussian, Score


@dataclass
class RandomChoice(Dispatcher):
    """Sends each job to a random server; a class with more servers gets more jobs."""

    def choose(self, job: WaitingJob) -> int:
        n = [self.fleet.servers[j] for j in job.eligible]
        at = int(self.rng.integers(sum(n)))
        for j, size in zip(job.eligible, n, strict=True):
            at -= size
            if at < 0:
                return j
        raise AssertionError("a draw is below the number of servers")

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        """Ignore rewards."""


@dataclass
class RoundRobin(Dispatcher):
    """Sends jobs to the servers in turn: the eligible class with the fewest jobs so far for each of its servers."""

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self._sent = [0] * len(fleet.servers)

    def choose(self, job: WaitingJob) -> int:
        sent, n = self._sent, self.fleet.servers
        column = min(job.eligible, key=lambda j: (sent[j] + 1) / n[j])
        sent[column] += 1
        return column

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        """Ignore rewards."""


@dataclass
class BestSingle(Dispatcher):
    """Sends all jobs to the server class with the best mean reward, whatever their own class.

    The mean is learnt: first every class gets `trials` jobs. With `known` it is the true one, so it sees all rewards.
    """

    known: bool = False
    trials: int = 20

    def __post_init__(self) -> None:
        self.sees_rewards = self.known

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        J = len(fleet.servers)
        self._sent, self._number, self._mean = [0] * J, [0] * J, [0.0] * J
        if self.known:
            reward, eligible = fleet.workload.reward, fleet.workload.eligible
            self._mean = (np.nansum(reward, axis=0) / np.maximum(eligible.sum(axis=0), 1)).tolist()

    def choose(self, job: WaitingJob) -> int:
        fresh = [] if self.known else [j for j in job.eligible if self._sent[j] < self.trials]
        column = min(fresh, key=self._sent.__getitem__) if fresh else max(job.eligible, key=self._mean.__getitem__)
        self._sent[column] += 1
        return column

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        if not self.known:
            self._number[server] += 1
            self._mean[server] += (reward - self._mean[server]) / self._number[server]


@dataclass
class ShortestDelay(Dispatcher):
    """Sends each job where it is expected to end first: (jobs there / servers + 1) * mean duration of its class."""

    sees_durations = True

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self._duration: list[list[float]] = fleet.durations.tolist()
        self._there = [0] * len(fleet.servers)

    def choose(self, job: WaitingJob) -> int:
        duration, there, n = self._duration[job.job_class], self._there, self.fleet.servers
        column = min(job.eligible, key=lambda j: duration[j] * max(1.0, (there[j] + 1) / n[j]))
        there[column] += 1
        return column

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:
        self._there[server] -= 1

    def leave(self, job: WaitingJob) -> None:
        column = self._at.get(job.number)
        if column is not None:
            self._there[column] -= 1
        super().leave(job)

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        """Ignore rewards."""


@dataclass
class BestScore(Dispatcher):
    """Sends each job to the server class with the largest score, as a bandit does that does not know of queues.

    It decides as `QueuePrice` does with a price of zero, but has no number to tune. Its queues may grow without bound.
    """

    score: Score = field(default_factory=ClassGaussian)

    def __post_init__(self) -> None:
        self.sees_rewards = self.score.sees_rewards

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.score.start(fleet, rng)

    def choose(self, job: WaitingJob) -> int:
        value = self.score.value(job)
        return largest(job.eligible, [value[j] for j in job.eligible], self.rng)

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.score.learn(job, server, reward)


@dataclass
class QueuePrice(Dispatcher):
    """Sends each job to the largest of score_j - price * waiting_j / servers_j: it makes any bandit stable."""

    number: ClassVar[str | None] = "price"

    score: Score = field(default_factory=ClassGaussian)
    price: float = 0.1

    def __post_init__(self) -> None:
        self.sees_rewards = self.score.sees_rewards

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.score.start(fleet, rng)
        self._per_job = [self.price / n for n in fleet.servers]

    def choose(self, job: WaitingJob) -> int:
        value, queued, price = self.score.value(job), self.queued, self._per_job
        return largest(job.eligible, [value[j] - price[j] * queued[j] for j in job.eligible], self.rng)

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.score.learn(job, server, reward)

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        span = fleet.reward_range[1] - fleet.reward_range[0] or 1.0
        return 10.0 * span, 1e-4 * span


def largest(columns: Sequence[int], values: list[float], rng: np.random.Generator) -> int:
    """Return the column with the largest value, at random among equal ones.

    A bandit that has not learnt yet gives all columns the same value. If the first column got all jobs then, a bandit
    with little exploration might never try another.
    """
    most = max(values)
    if values.count(most) == 1:
        return columns[values.index(most)]
    equal = [column for column, value in zip(columns, values, strict=True) if value == most]
    return equal[int(rng.integers(len(equal)))]
