"""How many rounds nodes need to settle, what their rates lose against the exact allocation, and what that takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bench.report import best_seconds
from bench.scale.regions import REGIONS, Size, fleet, homes
from bilinq import Allocation, allocate
from bilinq.arrays import Array
from bilinq.distributed import Network, System, scaled_back
from bilinq.distributed.system import Nodes

COARSE, FINE = 1e-2, 1e-4
"""Gaps at which nodes count as settled."""
ROUNDS = 60_000
"""Rounds after which a run ends in any case."""
LARGE = 1_000_000
"""Programs with more pairs than this are solved once; others repeatedly, to measure their time."""


@dataclass(frozen=True)
class Optimum:
    """The value of an optimum; with `soft` prices that of Eq. (33), where nodes rest, otherwise that of Eq. (6)."""

    value: float
    soft: bool

    @classmethod
    def of(cls, system: System, expected: Array, *, soft: bool) -> Optimum:
        """Return that of a system with this optimal allocation; delays do not matter."""
        return cls(float(system.objective(expected)) if soft else _value(system, expected), soft)

    def gap(self, system: System, expected: Array) -> float:
        """Return what an allocation falls short by: 0.01 is as if every class got 1 % less service.

        The exact program takes it as it is scaled back to the capacities, Eq. (42).
        """
        reached = system.objective(expected) if self.soft else _value(system, scaled_back(expected, system.capacity))
        return (self.value - float(reached)) / float(system.demand.sum())


def solve(system: System, start: Allocation | None = None) -> Allocation:
    """Return the exact allocation."""
    return allocate(system.queue, system.reward, system.capacity, system.V, system.gamma, start=start)


def _value(system: System, y: Array) -> float:
    """Return the value of Eq. (6)."""
    served = y.sum(axis=1)
    earned = float(np.einsum("ij,ij->", system.reward, y)) - float(system.gamma) * float(served.sum())
    return float(system.demand @ np.log(np.maximum(served, 1e-300))) + earned


@dataclass(frozen=True)
class Settling:
    """Gaps to the optimum of the nodes at some rounds, and losses against the exact one at others."""

    rounds: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    def within(self, level: float) -> int | None:
        """Return the first checked round from which on the gap stays within `level`; None if there is none."""
        late = [k for k, gap in enumerate(self.gaps) if not gap <= level]
        first = late[-1] + 1 if late else 0
        return self.rounds[first] if first < len(self.rounds) else None


def shown(rounds: int | None) -> int | str:
    """Return a number of rounds for a table."""
    return "not run" if rounds is None else rounds


def settle(
    system: System,
    soft: Optimum | None,
    *,
    level: float,
    rounds: int,
    exact: Optimum | None = None,
    checks: Sequence[int] = (),
    gain: ArrayLike | None = None,
    tuned: bool = False,
    start: Array | None = None,
    nodes: Nodes = "job",
    spacing: float = 0.02,
) -> Settling:
    """Run the nodes until the gap to `soft` has stayed within `level` for a while, or for so many rounds.

    The default gains are nine tenths of what is proved to be stable without knowing the fixed point. Gaps are computed in
    every round at first, later at steps of `spacing` times the round; losses against `exact` in rounds `checks`, all of
    which are run.
    """
    safe = system.special_gain(0.9, "discrete") if gain is None else gain
    network = Network(system, safe, tuned=tuned, nodes=nodes, start=start)
    trip, due, seen = int(system.round_trip.max()), 0, Settling()
    while True:
        now = network.round
        if soft is not None and (now >= due or now in checks):
            seen.rounds.append(now)
            seen.gaps.append(soft.gap(system, network.expected))
            due = now + max(1, int(spacing * now))
        if exact is not None and now in checks:
            seen.losses[now] = exact.gap(system, network.expected)
        reached = seen.within(level) if now in seen.rounds[-1:] else None
        settled = soft is None or (reached is not None and now >= 1.1 * reached + 2 * trip)
        if now >= rounds or (settled and now >= max(checks, default=0)):
            return seen
        network.step()


# The exact program, solved in one place or by each region for itself.


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
