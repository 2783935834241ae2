"""A policy that wraps another and records all arguments and results."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.learning import Outcome
from bilinq.policies.policy import Policy, State
from bilinq.problem.instances import Instances
from bilinq.problem.pairs import Pairs


class Spy(Policy):
    """`policy`, with a record of the queues, capacities, allocations and outcomes of all slots."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.assignment = policy, policy.assignment
        self.queues: list[Array] = []
        self.capacities: list[Array] = []
        self.allocations: list[Array] = []
        self.outcomes: list[Outcome] = []

    @property
    def rows(self) -> Literal["class", "job"]:
        return self.policy.rows

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> State:
        return self.policy.start(instances, horizon, rngs)

    def with_pairs(self, state: State, pairs: Pairs) -> State:
        return self.policy.with_pairs(state, pairs)

    def decide(self, state: State, queue: Array, capacity: Array) -> Array:
        y = self.policy.decide(state, queue, capacity)
        self.queues.append(queue.copy())
        self.capacities.append(capacity.copy())
        self.allocations.append(y.copy())
        return y

    def learn(self, state: State, outcome: Outcome) -> State:
        self.outcomes.append(outcome)
        return self.policy.learn(state, outcome)

    def counts(self) -> IntArray:
        """Return the services (R, T, rows, J) where rows are classes."""
        return np.stack([outcome.count for outcome in self.outcomes], axis=1)

    def capacity(self) -> Array:
        """Return the servers that were up (R, T, J)."""
        return np.stack(self.capacities, axis=1)
