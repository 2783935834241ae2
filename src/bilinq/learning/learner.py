"""Learners: from outcomes to reward indices. The abstract `Learner`, counters that share nothing, and known rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.arrays import within
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.arrays import Array, BoolArray, IntArray
    from bilinq.problem.instances import Instances

State = Any  # what a learner has learnt: a value that only the learner reads


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What was observed in one slot, for R replications; rows are job classes, or jobs if the policy has rows for jobs.

    Attributes
    ----------
    slot : int
        Number of the slot, from 1.
    count : (R, rows, J) int array
        Services of each row on each server class.
    total, squares : (R, rows, J) arrays
        Sum of the observed rewards of these services, and of their squares.
    left : (R, rows) bool array
        Rows whose job has left the system; all False where rows are classes.
    queue, capacity : (R, rows) and (R, J) arrays, optional
        The arguments of `decide` in this slot; None if the caller does not report them.
    """

    slot: int
    count: IntArray
    total: Array
    squares: Array
    left: BoolArray
    queue: Array | None = None
    capacity: Array | None = None


class Learner(ABC):
    """A way to estimate mean rewards from outcomes. Settings are in the object, what is learnt in the state."""

    @abstractmethod
    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> State:
        """Return the state before the first observation, for R replications with a generator each."""

    @abstractmethod
    def index(self, state: State) -> Array:
        """Return the reward to assume for each row and server class in the next slot, (R, rows, J), within [-1, 1]."""

    @abstractmethod
    def learn(self, state: State, outcome: Outcome) -> State:
        """Return the state after `outcome`, without changing the old state."""

    def grown(self, state: State, rows: int) -> State:
        """Return the state with room for `rows` rows; default: the same state, for rows that are classes."""
        return state

    def adapt(self, state: State, instances: Instances) -> State:
        """Return the state for changed classes, with what was learnt; default: raise an error."""
        raise BadInput(f"{type(self).__name__} cannot change classes while it learns; it shares nothing between them")

    def beliefs(self, state: State) -> tuple[Array, Array] | None:
        """Return estimates of the mean rewards (R, I, J) and their standard errors; None if there are none."""
        return None

    def check(self, state: State) -> None:  # noqa: B027, nothing to check is a sound default
        """Raise `BadState` if a state is not sound."""


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Observations (R, rows, J) and the sum of their rewards."""

    count: Array
    total: Array


@dataclass(frozen=True)
class PerPair(Learner):
    """An upper confidence index for each class pair on its own, Eq. (18)."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Counts:
        return Counts(np.zeros(instances.mean_reward.shape), np.zeros(instances.mean_reward.shape))

    def index(self, state: Counts) -> Array:
        return _indices(state, own=False, low=-1.0)

    def learn(self, state: Counts, outcome: Outcome) -> Counts:
        return _add(state, outcome)

    def check(self, state: Counts) -> None:
        within("count", state.count, 0.0, 2**53)
        within("the fraction of count", state.count % 1.0, 0.0, 0.0)
        within("total", state.total, -(2**53), 2**53)


@dataclass(frozen=True)
class PerJob(Learner):
    """An upper confidence index for each job and server class, Eq. (19); it ends with the job.

    `published` is the authors' variant, Eq. (20): the bonus is zero after one try, and the index is clipped at zero.
    """

    published: bool = False

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Counts:
        empty = np.zeros((instances.count, 0, instances.servers.shape[1]))
        return Counts(empty, empty)

    def index(self, state: Counts) -> Array:
        return _indices(state, own=self.published, low=0.0 if self.published else -1.0)

    def learn(self, state: Counts, outcome: Outcome) -> Counts:
        return _add(self.grown(state, outcome.count.shape[1]), outcome)

    def grown(self, state: Counts, rows: int) -> Counts:
        missing = rows - state.count.shape[1]
        if missing <= 0:
            return state
        pad = ((0, 0), (0, missing), (0, 0))
        return Counts(np.pad(state.count, pad), np.pad(state.total, pad))


@dataclass(frozen=True)
class Known(Learner):
    """The true mean rewards, clipped to [-1, 1], for policies that need not learn."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Array:
        return np.clip(instances.mean_reward, -1.0, 1.0)

    def index(self, state: Array) -> Array:
        return state

    def learn(self, state: Array, outcome: Outcome) -> Array:
        return state

    def adapt(self, state: Array, instances: Instances) -> Array:
        return np.clip(instances.mean_reward, -1.0, 1.0)

    def beliefs(self, state: Array) -> tuple[Array, Array] | None:
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
