"""What one service does to a job, and how many servers are up."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, as_floats, non_negative, require, scalar
from bilinq.errors import BadInput
from bilinq.instances import Instances

SERVICES = ("geometric", "units")
"""A service completes a job with probability mu_i ("geometric"), or takes one of its units ("units")."""


class Capacity(ABC):
    """How many servers of each class are up."""

    @abstractmethod
    def blocks(self, instances: Instances, slots: int, rngs: Sequence[np.random.Generator]) -> Iterator[Array]:
        """Yield the servers that are up (R, slots, J) in one block of slots after the other, without end."""


@dataclass(frozen=True)
class AllUp(Capacity):
    """All servers, always."""

    def blocks(self, instances: Instances, slots: int, rngs: Sequence[np.random.Generator]) -> Iterator[Array]:
        """Yield the problem's servers."""
        yield from itertools.repeat(np.repeat(instances.servers[:, None, :], slots, axis=1))


@dataclass(frozen=True, init=False, eq=False)
class Schedule(Capacity):
    """A given number of servers for each slot: `table` (slots, J), repeated from the start when it ends."""

    table: Array

    def __init__(self, table: ArrayLike) -> None:
        given = non_negative("table", table)
        require("table", given, lambda x: x == np.floor(x), "whole numbers")
        if given.ndim != 2 or not given.size:
            raise BadInput(f"table must have shape (slots, server classes); got {given.shape}")
        object.__setattr__(self, "table", given)

    def blocks(self, instances: Instances, slots: int, rngs: Sequence[np.random.Generator]) -> Iterator[Array]:
        """Yield the table's rows."""
        if self.table.shape[1] != instances.servers.shape[1]:
            raise BadInput(f"table must have {instances.servers.shape[1]} columns, one for each server class; "
                           f"got {self.table.shape[1]}")  # fmt: skip
        for first in itertools.count(step=slots):
            rows = self.table[np.arange(first, first + slots) % len(self.table)]
            yield np.repeat(rows[None], instances.count, axis=0)


@dataclass(frozen=True)
class Breakdowns(Capacity):
    """Servers fail and return on their own: up goes down with probability `fail` in a slot, down up with `repair`.

    All are up in the first slot.
    """

    fail: float
    repair: float

    def __post_init__(self) -> None:
        for name in ("fail", "repair"):
            scalar(name, getattr(self, name), non_negative)
            require(name, as_floats(name, getattr(self, name)), lambda x: x <= 1.0, "at most one")

    def blocks(self, instances: Instances, slots: int, rngs: Sequence[np.random.Generator]) -> Iterator[Array]:
        """Yield the servers that are up."""
        servers = instances.servers.astype(np.int64)
        now = servers.copy()
        while True:
            up = np.empty((instances.count, slots, servers.shape[1]))
            for r, rng in enumerate(rngs):
                for b in range(slots):
                    up[r, b] = now[r]
                    now[r] += rng.binomial(servers[r] - now[r], self.repair) - rng.binomial(now[r], self.fail)
            yield up
