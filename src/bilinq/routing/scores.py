"""What a job is worth on each server class: known, or learnt by class or from features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt

import numpy as np

from bilinq.arrays import Array
from bilinq.routing.router import FleetView, WaitingJob

Values = list[float]


class Score(ABC):
    """The value of a job on each server class, in the workload's units; routers such as `Matching` take one."""

    sees_rewards: bool = False
    """Whether it looks at rewards in advance: for yardsticks."""

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        """Prepare for a run; default: keep both as `self.fleet` and `self.rng`."""
        self.fleet, self.rng = fleet, rng

    @abstractmethod
    def value(self, job: WaitingJob) -> Values:
        """Return the value of a job by column; what it is where the pair is not eligible does not matter."""

    def learn(self, job: WaitingJob, server: int, reward: float) -> None:  # noqa: B027, known values learn nothing
        """Learn from a reward."""


@dataclass
class KnownClasses(Score):
    """The true mean reward of each pair of classes: what learning by class could reach at best. It sees all rewards."""

    sees_rewards = True

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self._mean: list[Values] = class_rewards(fleet).tolist()

    def value(self, job: WaitingJob) -> Values:
        return self._mean[job.job_class]


@dataclass
class KnownJobs(Score):
    """The reward of each job itself: what no learner can reach. It sees all rewards."""

    sees_rewards = True

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self._reward = fleet.workload.reward

    def value(self, job: WaitingJob) -> Values:
        row: Values = self._reward[job.number].tolist()
        return row


@dataclass
class ClassGaussian(Score):
    """Thompson sampling by pair of classes with Gaussian posteriors; their noise is measured over all pairs.

    A mean starts at the middle of the reward range with the weight of `prior` observations. `scale` multiplies the
    standard deviation of the draws.
    """

    scale: float = 0.5
    prior: float = 1.0

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        shape = (len(fleet.job_classes), len(fleet.servers))
        low, high = fleet.reward_range
        self._number, self._mean = np.full(shape, self.prior), np.full(shape, 0.5 * (low + high))
        self._squares, self._seen = 0.25 * (high - low) ** 2, 1.0

    def value(self, job: WaitingJob) -> Values:
        number, mean = self._number[job.job_class], self._mean[job.job_class]
        width = self.scale * sqrt(self._squares / self._seen)
        drawn: Values = (mean + width * self.rng.standard_normal(mean.size) / np.sqrt(number)).tolist()
        return drawn

    def learn(self, job: WaitingJob, server: int, reward: float) -> None:
        pair = job.job_class, server
        self._number[pair] += 1.0
        before = reward - self._mean[pair]
        self._mean[pair] += before / self._number[pair]
        self._squares += before * (reward - self._mean[pair])
        self._seen += 1.0


@dataclass
class ClassBeta(Score):
    """Thompson sampling by pair of classes with Beta posteriors: a reward adds its place in the range to successes."""

    prior: float = 1.0

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        shape = (len(fleet.job_classes), len(fleet.servers))
        self._low, high = fleet.reward_range
        self._span = max(high - self._low, 1e-300)
        self._good, self._bad = np.full(shape, self.prior), np.full(shape, self.prior)

    def value(self, job: WaitingJob) -> Values:
        drawn = self.rng.beta(self._good[job.job_class], self._bad[job.job_class])
        values: Values = (self._low + self._span * drawn).tolist()
        return values

    def learn(self, job: WaitingJob, server: int, reward: float) -> None:
        part = min(max((reward - self._low) / self._span, 0.0), 1.0)
        self._good[job.job_class, server] += part
        self._bad[job.job_class, server] += 1.0 - part


class LinearScore(Score):
    """A ridge regression of rewards on a job's features for each server class, updated in O(d^2) by Sherman-Morrison.

    Features are a constant, those of the job, and one-hot those of its class if there are several classes. Rewards count
    from the middle of their range, in units of half of it.
    """

    ridge: float

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        low, high = fleet.reward_range
        self._middle, self._unit = 0.5 * (low + high), max(0.5 * (high - low), 1e-300)
        kinds = len(fleet.job_classes)
        self._kinds = np.eye(kinds) if kinds > 1 else np.zeros((1, 0))
        own = 0 if fleet.class_features is None else fleet.class_features.shape[1]
        d, J = 1 + own + self._kinds.shape[1], len(fleet.servers)
        self._inverse, self._theta = np.tile(np.eye(d) / self.ridge, (J, 1, 1)), np.zeros((J, d))

    def value(self, job: WaitingJob) -> Values:
        x = self._features(job)
        width = np.sqrt(np.maximum((self._inverse @ x) @ x, 0.0))
        index = self._theta @ x + self.bonus(width)
        values: Values = (self._middle + self._unit * index).tolist()
        return values

    @abstractmethod
    def bonus(self, width: Array) -> Array:
        """Return what is added to the estimates (J,), whose standard errors are `width` times that of the noise."""

    def learn(self, job: WaitingJob, server: int, reward: float) -> None:
        x, inverse = self._features(job), self._inverse[server]
        step = inverse @ x
        step_size = 1.0 + step @ x
        error = (reward - self._middle) / self._unit - self._theta[server] @ x
        self._theta[server] += step * (error / step_size)
        inverse -= np.outer(step, step / step_size)

    def _features(self, job: WaitingJob) -> Array:
        parts = [np.ones(1), self._kinds[job.job_class if self._kinds.size else 0]]
        return np.concatenate(parts if job.features is None else [*parts, job.features])


@dataclass
class LinearThompson(LinearScore):
    """Linear Thompson sampling: each value is drawn from its own posterior."""

    scale: float = 0.2
    ridge: float = 1.0

    def bonus(self, width: Array) -> Array:
        return self.scale * width * self.rng.standard_normal(width.size)


@dataclass
class LinearUcb(LinearScore):
    """LinUCB: each value is its estimate plus `scale` standard errors."""

    scale: float = 0.2
    ridge: float = 1.0

    def bonus(self, width: Array) -> Array:
        return self.scale * width


def class_rewards(fleet: FleetView) -> Array:
    """Return the true mean reward of each pair of classes (I, J) over eligible jobs; the lowest where there are none."""
    work = fleet.workload
    I, kind = len(work.job_classes), work.job_class
    known = np.where(work.eligible, work.reward, 0.0)
    total, number = (
        np.stack([np.bincount(kind, column, I) for column in part.T.astype(float)], axis=1)
        for part in (known, work.eligible)
    )
    return np.asarray(np.divide(total, number, out=np.full(total.shape, work.reward_range[0]), where=number > 0))
