"""How a fair policy comes to its allocation in every slot: by the exact program, unless told otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilinq.allocation.allocate import allocate_batch
from bilinq.arrays import Array
from bilinq.problem.instances import Instances

Memory = Any
"""What an allocator remembers from slot to slot: a value that belongs to it, None where there is nothing."""


class Allocator(ABC):
    """A way to share servers among job classes, for R replications. Settings live here, memories in the policy's state."""

    def start(self, instances: Instances, gamma: float) -> Memory:
        """Return the memory before the first slot; None unless overridden."""
        return None

    @abstractmethod
    def share(
        self,
        memory: Memory,
        queue: Array,
        reward: Array,
        capacity: Array,
        V: Array,
        weight: Array,
        gamma: float,
        capped: bool,
    ) -> tuple[Array, Memory]:
        """Return a slot's expected allocation (R, rows, J) and the memory after it; the old one stays as it is.

        The allocation is a new array, which the caller may change. Called with the same arguments it returns the same.

        Parameters
        ----------
        memory : Memory
        queue, weight : (R, rows) arrays
        reward : (R, rows, J) array
            What to assume.
        capacity : (R, J) array
        V : (R,) array
        gamma : float
        capped : bool
            Whether a row gets at most a server for each of its jobs.
        """


@dataclass(frozen=True)
class Exact(Allocator):
    """The solution of Eq. (5), certified: what the paper's algorithm asks for."""

    def share(
        self,
        memory: Memory,
        queue: Array,
        reward: Array,
        capacity: Array,
        V: Array,
        weight: Array,
        gamma: float,
        capped: bool,
    ) -> tuple[Array, Memory]:
        """Solve the program."""
        limit = queue if capped else np.full(queue.shape, np.inf)
        return allocate_batch(queue, reward, capacity, V, np.full(len(V), gamma), weight, limit).expected, None


EXACT = Exact()
"""What fair policies use unless told otherwise."""
