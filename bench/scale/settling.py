"""How many rounds nodes need to settle, and what their rates lose on the way against the exact allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from bilinq import Allocation, allocate
from bilinq.arrays import Array
from bilinq.distributed import Network, System, scaled_back
from bilinq.distributed.system import Nodes

COARSE, FINE = 1e-2, 1e-4
"""Gaps at which nodes count as settled."""
ROUNDS = 60_000
"""Rounds after which nothing is waited for any more."""


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
        """Return the round that was looked at from which on the gap stays within `level`; nothing if it does not."""
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
    looks: Sequence[int] = (),
    gain: ArrayLike | None = None,
    tuned: bool = False,
    start: Array | None = None,
    nodes: Nodes = "job",
    spacing: float = 0.02,
) -> Settling:
    """Run the nodes until the gap to `soft` has stayed within `level` for a while, or for so many rounds.

    Gains are nine tenths of what is proved to be stable without knowing the fixed point, unless given. Gaps are looked at
    in every round at first, later at steps of `spacing` times the round; losses against `exact` in rounds `looks`, all of
    which are run.
    """
    safe = system.special_gain(0.9, "discrete") if gain is None else gain
    network = Network(system, safe, tuned=tuned, nodes=nodes, start=start)
    trip, due, seen = int(system.round_trip.max()), 0, Settling()
    while True:
        now = network.round
        if soft is not None and (now >= due or now in looks):
            seen.rounds.append(now)
            seen.gaps.append(soft.gap(system, network.expected))
            due = now + max(1, int(spacing * now))
        if exact is not None and now in looks:
            seen.losses[now] = exact.gap(system, network.expected)
        reached = seen.within(level) if now in seen.rounds[-1:] else None
        settled = soft is None or (reached is not None and now >= 1.1 * reached + 2 * trip)
        if now >= rounds or (settled and now >= max(looks, default=0)):
            return seen
        network.step()
