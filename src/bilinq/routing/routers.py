"""Routers that match waiting jobs with idle servers, and those that decide on arrival, in one list by name."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import numpy as np

from bilinq.arrays import Array, one_of
from bilinq.routing.dispatchers import BestScore, BestSingle, QueuePrice, RandomChoice, RoundRobin, ShortestDelay
from bilinq.routing.peers import PEERS
from bilinq.routing.router import FleetView, Router, WaitingJob
from bilinq.routing.scheduler_router import SchedulerRouter
from bilinq.routing.scores import ClassBeta, ClassGaussian, KnownClasses, KnownJobs, LinearThompson, LinearUcb, Score

__all__ = [
    "ROUTERS", "BestScore", "BestSingle", "CMu", "ClassBeta", "ClassGaussian", "FirstComeFirstServed", "KnownClasses",
    "KnownJobs", "LeastBusy", "LinearThompson", "LinearUcb", "Matching", "MaxWeightRouter", "QueuePrice", "RandomChoice",
    "RoundRobin", "Score", "ShortestDelay", "router_named",
]  # fmt: skip

Pairs = Iterable[tuple[int, int]]


@dataclass
class LeastBusy(Router):
    """Starts the oldest job where the largest part of the servers is idle; learns nothing."""

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Pairs:
        n, left, pairs = self.fleet.servers, sum(idle), []
        for number, job in waiting.items():
            best, most = -1, 0.0
            for j in job.eligible:
                part = idle[j] / n[j]
                if part > most:
                    best, most = j, part
            if best >= 0:
                pairs.append((number, best))
                idle[best] -= 1
                left -= 1
                if not left:
                    break
        return pairs

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        """Ignore rewards."""


@dataclass
class FirstComeFirstServed(Router):
    """Starts the oldest job on its best idle server; the others wait even if one of them could start."""

    score: Score = field(default_factory=ClassGaussian)

    def __post_init__(self) -> None:
        self.sees_rewards = self.score.sees_rewards

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.score.start(fleet, rng)

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Pairs:
        pairs = []
        for number, job in waiting.items():
            free = [j for j in job.eligible if idle[j]]
            if not free:
                break
            value = self.score.value(job)
            column = max(free, key=value.__getitem__)
            pairs.append((number, column))
            idle[column] -= 1
        return pairs

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.score.learn(job, server, reward)


@dataclass
class Matching(Router):
    """Matches the oldest waiting jobs with servers that are idle now or free soon, by a linear assignment.

    A pair weighs score - holding * delay. The delay of an idle server is zero; the m-th busy server of class j is free in
    about m * duration_j / n_j. Jobs matched with an idle server start, the others wait.
    """

    number: ClassVar[str | None] = "holding"

    score: Score = field(default_factory=ClassGaussian)
    holding: float = 0.01
    oldest: int = 60

    sees_durations = True

    def __post_init__(self) -> None:
        self.sees_rewards = self.score.sees_rewards

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.score.start(fleet, rng)
        self._n = np.array(fleet.servers)
        self._columns = np.repeat(np.arange(self._n.size), self._n)
        self._rank = np.concatenate([np.arange(n) for n in fleet.servers])
        self._gap = (fleet.durations.mean(axis=0) / self._n)[self._columns]

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Pairs:
        from scipy.optimize import linear_sum_assignment

        jobs = list(islice(waiting.values(), self.oldest))
        late = np.maximum(self._rank - np.array(idle)[self._columns] + 1, 0)
        weight = self._values(jobs)[:, self._columns] - self.holding * self._gap * late
        rows, at = linear_sum_assignment(weight, maximize=True)
        good = (late[at] == 0) & (weight[rows, at] > FORBIDDEN / 2)
        return [(jobs[row].number, int(self._columns[k])) for row, k in zip(rows[good], at[good], strict=True)]

    def _values(self, jobs: list[WaitingJob]) -> Array:
        table = np.array([self.score.value(job) for job in jobs])
        J = table.shape[1]
        for row, job in enumerate(jobs):
            if len(job.eligible) < J:
                kept = np.full(J, FORBIDDEN)
                kept[list(job.eligible)] = table[row, list(job.eligible)]
                table[row] = kept
        return table

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.score.learn(job, server, reward)

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        unit = (fleet.reward_range[1] - fleet.reward_range[0] or 1.0) / fleet.mean_duration
        return 100.0 * unit, 1e-4 * unit


FORBIDDEN = -1e12  # the weight of a pair that is not eligible


class ClassPriority(Router):
    """A router in which each idle server takes the oldest job of the class with the largest weight; never idles."""

    score: Score
    sees_durations = True

    def __post_init__(self) -> None:
        self.sees_rewards = self.score.sees_rewards

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.score.start(fleet, rng)
        self.duration: list[list[float]] = fleet.durations.tolist()
        self.queues: list[OrderedDict[int, WaitingJob]] = [OrderedDict() for _ in fleet.job_classes]

    @abstractmethod
    def weight(self, job: WaitingJob, column: int, value: float) -> float:
        """Return the weight of a job on a server class, where it is worth `value`."""

    def arrive(self, job: WaitingJob) -> None:
        self.queues[job.job_class][job.number] = job

    def again(self, job: WaitingJob) -> None:
        self.arrive(job)
        self.queues[job.job_class].move_to_end(job.number, last=False)

    def leave(self, job: WaitingJob) -> None:
        self.queues[job.job_class].pop(job.number, None)

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Pairs:
        pairs = []
        while (best := self._best(idle)) is not None:
            _, job, column = best
            del self.queues[job.job_class][job.number]
            idle[column] -= 1
            pairs.append((job.number, column))
        return pairs

    def _best(self, idle: list[int]) -> tuple[float, WaitingJob, int] | None:
        """Return the pair with the largest weight, each class represented by its oldest job that has an idle server."""
        best: tuple[float, WaitingJob, int] | None = None
        for queue in self.queues:
            job = next((one for one in queue.values() if any(idle[j] for j in one.eligible)), None)
            if job is None:
                continue
            value = self.score.value(job)
            for j in job.eligible:
                if idle[j] and (best is None or self.weight(job, j, value[j]) > best[0]):
                    best = self.weight(job, j, value[j]), job, j
        return best

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        self.score.learn(job, server, reward)


@dataclass
class MaxWeightRouter(ClassPriority):
    """Serves the class with the largest (waiting jobs + V * value) / duration: drift plus penalty."""

    number: ClassVar[str | None] = "V"

    score: Score = field(default_factory=ClassGaussian)
    V: float = 10.0

    def weight(self, job: WaitingJob, column: int, value: float) -> float:
        return (len(self.queues[job.job_class]) + self.V * value) / self.duration[job.job_class][column]

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        span = fleet.reward_range[1] - fleet.reward_range[0] or 1.0
        return 1e-3 / span, 1e4 / span


@dataclass
class CMu(ClassPriority):
    """Serves the class with the largest value per time: the c-mu rule with rewards, from the lowest, as costs."""

    score: Score = field(default_factory=ClassGaussian)

    def weight(self, job: WaitingJob, column: int, value: float) -> float:
        return (value - self.fleet.reward_range[0]) / self.duration[job.job_class][column]


ROUTERS: dict[str, type[Router]] = {
    "least-busy": LeastBusy,
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "best-single": BestSingle,
    "best-score": BestScore,
    "shortest-delay": ShortestDelay,
    "first-come": FirstComeFirstServed,
    "matching": Matching,
    "queue-price": QueuePrice,
    "max-weight": MaxWeightRouter,
    "c-mu": CMu,
    "scheduler": SchedulerRouter,
}
"""Routers by name, for the command line."""


def router_named(name: str) -> Router:
    """Return the router of a name in `ROUTERS`, or a `QueuePrice` with the score of a name in `peers.PEERS`."""
    one_of("router", name, (*ROUTERS, *PEERS))
    return ROUTERS[name]() if name in ROUTERS else QueuePrice(PEERS[name]())
