"""The exact program of a fleet, solved in one place or by each region for itself, and what else there is to compare."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from bench.scale.regions import REGIONS, Size, fleet, homes
from bench.scale.settling import Optimum, solve
from bench.timing import best_seconds
from bilinq import Allocation, allocate
from bilinq.arrays import Array
from bilinq.distributed import Network, System

LARGE = 1_000_000
"""Programs with more pairs than this are solved once, others often enough to take their time."""


class Solved(NamedTuple):
    """An exact allocation, and the seconds of a core that it took."""

    allocation: Allocation
    seconds: float

    def optimum(self, system: System) -> Optimum:
        """Return its value."""
        return Optimum.of(system, self.allocation.expected, soft=False)


def solved(size: Size, change: str = "", load: float = 1.2) -> Solved:
    """Return the exact allocation of a fleet; after a change, from the one of before."""
    return _solved(size, change, load)


@cache
def _solved(size: Size, change: str, load: float) -> Solved:
    """Return the same, solved once."""
    start = solved(size, "", load).allocation if change else None
    call = partial(solve, fleet(*size, change=change, load=load), start)
    if size[0] * size[1] <= LARGE:
        return Solved(call(), best_seconds(call, 0.1, clock=time.process_time))
    began = time.process_time()
    found = call()
    return Solved(found, time.process_time() - began)


def round_seconds(system: System) -> float:
    """Return the seconds of a core that one region needs for its part of a round."""
    network = Network(system, 1e-3)
    return best_seconds(network.step, 0.1, clock=time.process_time) / REGIONS


def alone(system: System) -> Array:
    """Return the allocation (I, J) if every region keeps to itself; job classes without servers there get nothing."""
    expected = np.zeros(system.shape)
    for g in range(REGIONS):
        block = np.ix_(*(np.flatnonzero(homes(classes) == g) for classes in system.shape))
        rows, columns = block[0][:, 0], block[1][0]
        if len(columns):
            own = system.queue[rows], system.reward[block], system.capacity[columns]
            expected[block] = allocate(*own, system.V, system.gamma).expected
    return expected
