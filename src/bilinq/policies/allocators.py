"""Allocators: ways to share the servers of a slot among rows of jobs, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilinq.allocation.arguments import ALL_ELIGIBLE, EQUAL_DURATIONS, Program
from bilinq.allocation.batch import allocate_batch
from bilinq.arrays import Array, BoolArray

if TYPE_CHECKING:
    from bilinq.problem.instances import Instances

Memory = Any
"""What an allocator remembers from slot to slot: a value that only the allocator reads; None if there is nothing."""


class Demand(NamedTuple):
    """What an allocator shares in one slot, for R replications.

    An allocation is counted in services at the mean rate of their row, Eq. (48); `servers` returns how many servers it
    takes. Without durations both are the same.

    Attributes
    ----------
    queue, weight : (R, rows) arrays
        Waiting jobs and the priority of each row.
    reward : (R, rows, J) array
        Rewards to assume.
    capacity : (R, J) array
        Servers that are up.
    V : (R,) array
        Weight of the rewards against short queues.
    gamma : float
        Cost of using a server.
    most : (R, rows) array, optional
        Servers that a row gets at most: its jobs, or the units that they still need; None without a cap.
    eligible : (R, rows, J) bool array
        Pairs that may be used; empty if all may.
    duration : (R, rows, J) array
        Server time of a service; empty if it is one everywhere. Rewards count for the whole service.
    """

    queue: Array
    reward: Array
    capacity: Array
    V: Array
    weight: Array
    gamma: float
    most: Array | None
    eligible: BoolArray = ALL_ELIGIBLE
    duration: Array = EQUAL_DURATIONS

    @property
    def a(self) -> Array:
        """w_i Q_i / V (R, rows) of Eq. (6)."""
        return np.asarray(self.weight * self.queue / self.V[:, None])

    @property
    def c(self) -> Array:
        """gamma - r_ij (R, rows, J) of Eq. (6)."""
        return np.asarray(self.gamma - self.reward)

    @property
    def limit(self) -> Array:
        """The largest row sums (R, rows) of an allocation: with a cap, as if all jobs were on the fastest servers."""
        if self.most is None:
            return np.full(self.queue.shape, np.inf)
        if not self.duration.size:
            return self.most
        allowed = self.eligible if self.eligible.size else np.ones(self.duration.shape, np.bool_)
        return np.asarray(self.most / self.duration.min(axis=2, where=allowed, initial=np.inf))

    def servers(self, expected: Array) -> Array:
        """Return how many servers (R, rows, J) an allocation takes; rows above their cap are scaled back to it."""
        if not self.duration.size:
            return expected
        return self.capped(expected * self.duration)

    def capped(self, y: Array) -> Array:
        """Return servers (R, rows, J) with rows above their cap scaled back to it."""
        if self.most is None:
            return y
        total = y.sum(axis=2)
        over = total > self.most
        return np.asarray(y * np.where(over, self.most / np.where(over, total, 1.0), 1.0)[:, :, None])


class Allocator(ABC):
    """A way to share servers among job classes. Settings are in the object, memories in the policy's state."""

    def start(self, instances: Instances, gamma: float) -> Memory:
        """Return the memory before the first slot; default: None."""
        return None

    @abstractmethod
    def share(self, memory: Memory, demand: Demand) -> tuple[Array, Memory]:
        """Return a slot's expected allocation (R, rows, J) and the memory after it, without changing the old one.

        Pairs that are not eligible get exactly zero. The allocation is a new array that the caller may change. Equal
        arguments give equal answers.
        """


@dataclass(frozen=True)
class Exact(Allocator):
    """The certified solution of Eq. (5), as in the paper's algorithm."""

    def share(self, memory: Memory, demand: Demand) -> tuple[Array, Memory]:
        queue, V = demand.queue, demand.V
        program = Program(
            queue=queue, reward=demand.reward, capacity=demand.capacity, V=V, gamma=np.full(len(V), demand.gamma),
            weight=demand.weight, limit=demand.limit, eligible=demand.eligible, duration=demand.duration,
        )  # fmt: skip
        return allocate_batch(program).expected, None


EXACT = Exact()  # the default of fair policies
