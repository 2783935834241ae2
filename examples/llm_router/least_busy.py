"""Least-busy routing as a policy, to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bilinq import Policy
from bilinq.arrays import Array
from bilinq.learning import Outcome
from bilinq.problem.instances import Instances


@dataclass(frozen=True)
class LeastBusy(Policy):
    """Send whoever waits to the back ends with the largest free part; `slots` are those of each back end."""

    slots: tuple[int, ...]
    assignment: str = "distinct"

    def decide(self, state: Instances, queue: Array, capacity: Array) -> Array:
        """Return the allocation that fills the emptiest back ends first, by queue length."""
        y = np.zeros((*queue.shape, capacity.shape[1]))
        for r, free in enumerate(capacity.copy()):
            jobs = [i for i, number in enumerate(queue[r].astype(int)) for _ in range(number)]
            for i in jobs[: int(free.sum())]:
                j = int(np.argmax(free / self.slots))
                y[r, i, j] += 1.0
                free[j] -= 1.0
        return y

    def learn(self, state: Instances, outcome: Outcome) -> Instances:
        """Return the same: it learns nothing."""
        return state

    def adapt(self, state: Instances, instances: Instances) -> Instances:
        """Return the new classes."""
        return instances
