"""What every learner offers: from outcomes to optimistic (or sampled) reward indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import BadInput
from bilinq.problem.instances import Instances

State = Any
"""What a learner has learnt: a value that belongs to it and that nobody else looks into."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one slot showed, for R replications; rows are job classes, or jobs where the policy asks for jobs.

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
        What `decide` was shown in this slot; None where whoever reports the outcome does not say.
    """

    slot: int
    count: IntArray
    total: Array
    squares: Array
    left: BoolArray
    queue: Array | None = None
    capacity: Array | None = None


class Learner(ABC):
    """A way to estimate mean rewards from outcomes. Settings live here, what is learnt in the state."""

    @abstractmethod
    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> State:
        """Return the state before anything was seen, for R replications with a generator each."""

    @abstractmethod
    def index(self, state: State) -> Array:
        """Return the reward to assume for each row and server class in the next slot, (R, rows, J), within [-1, 1]."""

    @abstractmethod
    def learn(self, state: State, outcome: Outcome) -> State:
        """Return the state after `outcome`; the old state stays as it was."""

    def adapt(self, state: State, instances: Instances) -> State:
        """Return the state for changed classes, with what was learnt kept, where that can be."""
        raise BadInput(f"{type(self).__name__} cannot change classes while it learns; it shares nothing between them")

    def beliefs(self, state: State) -> tuple[Array, Array] | None:
        """Return estimates of the mean rewards (R, I, J) and their standard errors; None where there are none."""
        return None

    def check(self, state: State) -> None:  # noqa: B027, nothing to check is a sound default
        """Raise `BadState` if a state cannot be right."""
