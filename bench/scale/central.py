"""The exact program of a fleet, solved in one place or by each region independently."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from bench.report import best_seconds
from bench.scale.regions import REGIONS, Size, fleet, homes
from bench.scale.settling import Optimum, solve
from bilinq import Allocation, allocate
from bilinq.arrays import Array
from bilinq.distributed import Network, System

LARGE = 1_000_000
"""Programs with more pairs than this are solved once, others repeatedly for a better measurement."""


class Solved(NamedTuple):
    """An exact allocation and the CPU seconds of its solve."""

    allocation: Allocation
    seconds: float

    def optimum(self, system: System) -> Optimum:
        """Return the value of the allocation."""
        return Optimum.of(system, self.allocation.expected, soft=False)


def solved(size: Size, change: str = "", load: float = 1.2) -> Solved:
    """Return the exact allocation of a fleet; after a change, warm-started from the old one."""
    return _solved(size, change, load)


@cache
def _solved(size: Size, change: str, load: float) -> Solved:
    """Return the same, cached."""
    start = solved(size, "", load).allocation if change else None
    call = partial(solve, fleet(*size, change=change, load=load), start)
    if size[0] * size[1] <= LARGE:
        return Solved(call(), best_seconds(call, 0.1, clock=time.process_time))
    began = time.process_time()
    found = call()
    return Solved(found, time.process_time() - began)


def round_seconds(system: System) -> float:
    """Return the CPU seconds of one region for its part of a round."""
    network = Network(system, 1e-3)
    return best_seconds(network.step, 0.1, clock=time.process_time) / REGIONS


def alone(system: System) -> Array:
    """Return the allocation (I, J) if every region solves independently; job classes without local servers get nothing."""
    expected = np.zeros(system.shape)
    for g in range(REGIONS):
        block = np.ix_(*(np.flatnonzero(homes(classes) == g) for classes in system.shape))
        rows, columns = block[0][:, 0], block[1][0]
        if len(columns):
            own = system.queue[rows], system.reward[block], system.capacity[columns]
            expected[block] = allocate(*own, system.V, system.gamma).expected
    return expected
