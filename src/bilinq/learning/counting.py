"""Learners that share nothing between pairs: counters per class pair, or per job (Hsu et al.), and known rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bilinq.arrays import Array
from bilinq.learning.learner import Learner, Outcome
from bilinq.problem.instances import Instances


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Observations (R, rows, J) and the sum of their rewards."""

    count: Array
    total: Array


@dataclass(frozen=True)
class PerPair(Learner):
    """An upper confidence index for each class pair on its own, Eq. (18)."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Counts:
        """Return empty counters for all pairs."""
        return Counts(np.zeros(instances.mean_reward.shape), np.zeros(instances.mean_reward.shape))

    def index(self, state: Counts) -> Array:
        """Return the indices (R, I, J)."""
        return _indices(state, own=False, low=-1.0)

    def learn(self, state: Counts, outcome: Outcome) -> Counts:
        """Return the counters after a slot."""
        return _add(state, outcome)


@dataclass(frozen=True)
class PerJob(Learner):
    """An upper confidence index for each job and server class, Eq. (19); a job that leaves takes it along.

    With `published` the authors' variant, Eq. (20): the bonus is zero after one try, and the index is clipped at zero.
    """

    published: bool = False

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Counts:
        """Return counters without a job."""
        empty = np.zeros((instances.count, 0, instances.servers.shape[1]))
        return Counts(empty, empty)

    def index(self, state: Counts) -> Array:
        """Return the indices (R, jobs, J) of the jobs seen so far."""
        return _indices(state, own=self.published, low=0.0 if self.published else -1.0)

    def learn(self, state: Counts, outcome: Outcome) -> Counts:
        """Return the counters after a slot."""
        return _add(self.grown(state, outcome.count.shape[1]), outcome)

    def grown(self, state: Counts, rows: int) -> Counts:
        """Return the state with room for `rows` jobs."""
        missing = rows - state.count.shape[1]
        if missing <= 0:
            return state
        pad = ((0, 0), (0, missing), (0, 0))
        return replace(state, count=np.pad(state.count, pad), total=np.pad(state.total, pad))


@dataclass(frozen=True)
class Known(Learner):
    """The true mean rewards, clipped to [-1, 1]: what a policy could do if there were nothing to learn."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Array:
        """Return the mean rewards (R, I, J)."""
        return np.clip(instances.mean_reward, -1.0, 1.0)

    def index(self, state: Array) -> Array:
        """Return the mean rewards."""
        return state

    def learn(self, state: Array, outcome: Outcome) -> Array:
        """Return the same: there is nothing to learn."""
        return state

    def adapt(self, state: Array, instances: Instances) -> Array:
        """Return the rewards of the new classes."""
        return np.clip(instances.mean_reward, -1.0, 1.0)

    def beliefs(self, state: Array) -> tuple[Array, Array] | None:
        """Return the rewards, without error."""
        return state, np.zeros_like(state)


def _indices(state: Counts, own: bool, low: float) -> Array:
    from bilinq.learning.kernels import count_indices

    out = np.empty_like(state.count)
    count_indices(state.count, state.total, own, low, out)
    return out


def _add(state: Counts, outcome: Outcome) -> Counts:
    from bilinq.learning.kernels import add_counts

    count, total = state.count.copy(), state.total.copy()
    add_counts(count, total, outcome.count, outcome.total, outcome.left)
    return Counts(count, total)
