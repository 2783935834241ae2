"""Rounds that nodes need to settle, what their rates lose until then, and how settings change both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bench.report import Report
from bench.scale.regions import USUAL, Size, fleet, name
from bilinq import Allocation, allocate
from bilinq.arrays import Array
from bilinq.distributed import Network, Power, System, scaled_back
from bilinq.distributed.system import Nodes, allowance

COARSE, FINE = 1e-2, 1e-4
"""Gaps at which nodes count as settled."""
ROUNDS = 60_000
"""Maximum number of rounds."""
SIZE = (300, 30)
COLUMNS = ("rounds to 1 %", "rounds to 0.01 %", "after 10 %: rounds to 0.01 %", "soft prices lose, %")
CASES: dict[str, dict[str, Any]] = {
    "as above": {}, "half of the largest gain": {"gains": "half"}, "gains by the fixed point": {"gains": "known"},
    "gains by the price received": {"gains": "received"}, "server nodes": {"nodes": "server"},
    "half the load": {"load": 0.6},
    "twice the load": {"load": 2.4}, "no loss outside the region": {"remote": 0.0}, "bilinear rewards": {"bilinear": True},
    "power 8 in place of 2": {"penalty": Power(8.0)},
    "power 8, half the load": {"penalty": Power(8.0), "load": 0.6},
}  # fmt: skip


@dataclass(frozen=True)
class Optimum:
    """The value of an optimum; with `soft` prices of Eq. (33), the fixed point of the nodes, else of Eq. (6)."""

    value: float
    soft: bool

    @classmethod
    def of(cls, system: System, expected: Array, *, soft: bool) -> Optimum:
        """Return the optimum of a system with this optimal allocation; delays do not matter."""
        return cls(float(system.objective(expected)) if soft else _value(system, expected), soft)

    def gap(self, system: System, expected: Array) -> float:
        """Return the shortfall of an allocation: 0.01 is as if every class got 1 % less service.

        For the exact program, the allocation is first scaled back to the capacities, Eq. (42).
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
    """Gaps to the optimum of the nodes at some rounds, and losses against the exact optimum at others."""

    rounds: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    def within(self, level: float) -> int | None:
        """Return the first recorded round from which the gap stays within `level`, or None."""
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
    """Run the nodes until the gap to `soft` has stayed within `level` for a while, at most `rounds` rounds.

    The default gain is nine tenths of what is proved stable without knowing the fixed point. Gaps are recorded in every
    round at first, later at steps of `spacing` times the round; losses against `exact` in the rounds `looks`, all of which
    are run.
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


def settings(size: Size = SIZE) -> Report:
    """Change one setting at a time."""
    report = Report(f"other influences, {name(size)}, delay {USUAL}", ("what", *COLUMNS))
    for what, options in CASES.items():
        report.row(what, *_varied(size, **options))
    return report


def elsewhere(sizes: tuple[Size, ...]) -> Report:
    """Count rounds if a job earns the same in every region, so that most jobs are served in other regions."""
    columns = ("size", "nothing lost elsewhere: rounds to 1 %", *COLUMNS[1:])
    report = Report(f"jobs that earn the same in every region, delay {USUAL}", columns)
    for size in sizes:
        report.row(name(size), *_varied(size, remote=0.0))
    return report


def _varied(size: Size, gains: str = "", nodes: Nodes = "job", **options: Any) -> list[Any]:
    """Return rounds to both levels from a cold start, rounds after 10 %, and the loss by soft prices."""
    system, after = (fleet(*size, USUAL, change=change, **options) for change in ("", "10 %"))
    rested = system.fixed_point()
    first, then = _settled(system, None, gains, nodes), _settled(after, rested, gains, nodes)
    exact = Optimum.of(system, solve(system).expected, soft=False)
    rounds = first.within(COARSE), first.within(FINE), then.within(FINE)
    return [*map(shown, rounds), 100 * exact.gap(system, rested)]


def _settled(system: System, start: Array | None, gains: str, nodes: Nodes) -> Settling:
    """Return the settling of the nodes with these gains."""
    gain = {
        "": lambda: system.special_gain(0.9, "discrete"), "half": lambda: system.special_gain(0.5, "discrete"),
        "known": lambda: system.safe_gain(0.9, "discrete"),
        "received": lambda: 0.9 * allowance(system.round_trip, "discrete"),
    }[gains]()  # fmt: skip
    best = Optimum.of(system, system.equilibrium.expected, soft=True)
    return settle(
        system, best, level=FINE, rounds=ROUNDS, gain=gain, tuned=gains == "received", start=start, nodes=nodes
    )  # fmt: skip
