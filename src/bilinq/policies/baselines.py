"""Simple policies to compare with: MaxWeight, greedy, random, and a static split by the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilinq.arrays import Array, non_negative, scalar
from bilinq.instances import Instances
from bilinq.learning import Bilinear, Outcome
from bilinq.oracle import oracle_shares
from bilinq.policies.policy import Policy


class LearnerAndCost(NamedTuple):
    """A learner's state and nothing else that changes; `service_rate` (R, I) weighs queues."""

    learnt: Any
    service_rate: Array


class _Ranked(Policy):
    """Serve pairs by rank of a score that a subclass computes from indices and queues."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> LearnerAndCost:
        """Return the bilinear learner's first state."""
        return LearnerAndCost(Bilinear().start(instances, horizon, rngs), instances.service_rate)

    def learn(self, state: LearnerAndCost, outcome: Outcome) -> LearnerAndCost:
        """Return the state after a slot."""
        return state._replace(learnt=Bilinear().learn(state.learnt, outcome))


@dataclass(frozen=True)
class MaxWeight(_Ranked):
    """Serve the pair with the largest mu_i Q_i + V (r_ij - gamma), where positive, with learnt rewards.

    The classic throughput-optimal rule with rewards as a bonus: large V waits for good matches, V = 0 serves the
    longest queue.
    """

    V: float = 10.0
    gamma: float = 1.0
    assignment: str = "distinct"

    def __post_init__(self) -> None:
        scalar("V", self.V, non_negative)
        scalar("gamma", self.gamma)

    def decide(self, state: LearnerAndCost, queue: Array, capacity: Array) -> Array:
        """Return the allocation by rank of drift plus reward."""
        index = Bilinear().index(state.learnt)
        score = (state.service_rate * queue)[:, :, None] + self.V * (index - self.gamma)
        return _by_rank(np.where(score > 0.0, score, -np.inf), queue, capacity)


@dataclass(frozen=True)
class Greedy(_Ranked):
    """Serve the pair with the highest learnt reward first and never leave a server idle while a job waits."""

    assignment: str = "distinct"

    def decide(self, state: LearnerAndCost, queue: Array, capacity: Array) -> Array:
        """Return the allocation by rank of the reward index."""
        return _by_rank(Bilinear().index(state.learnt), queue, capacity)


@dataclass(frozen=True)
class Random(Policy):
    """Every server takes a job at random; never idle while a job waits."""

    assignment: str = "distinct"

    def decide(self, state: Instances, queue: Array, capacity: Array) -> Array:
        """Return the split in proportion to queues and capacities."""
        return _by_rank(np.zeros((*queue.shape, capacity.shape[1])), queue, capacity)

    def learn(self, state: Instances, outcome: Outcome) -> Instances:
        """Return the same: it learns nothing."""
        return state


@dataclass(frozen=True)
class StaticSplit(Policy):
    """Send each class to server classes by the oracle's fixed shares p*, Eq. (2): needs rewards and rates known."""

    assignment: str = "distinct"

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Array:
        """Return the shares (R, I, J)."""
        return oracle_shares(instances)

    def decide(self, state: Array, queue: Array, capacity: Array) -> Array:
        """Return every waiting job's share, scaled back where a server class is short."""
        wanted = state * queue[:, :, None]
        load = wanted.sum(axis=1)
        fits = np.minimum(1.0, np.divide(capacity, load, out=np.ones_like(load), where=load > 0.0))
        return np.asarray(wanted * fits[:, None, :])

    def learn(self, state: Array, outcome: Outcome) -> Array:
        """Return the same: it learns nothing."""
        return state


def _by_rank(score: Array, queue: Array, capacity: Array) -> Array:
    from bilinq.policies.kernels import fill_by_rank

    y = np.empty(score.shape)
    fill_by_rank(score, queue, capacity, y)
    return y
