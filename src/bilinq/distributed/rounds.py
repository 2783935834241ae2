"""The rules of the nodes run as difference equations, with checks on the way and distances to the fixed point."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from bilinq.allocation.arguments import ALL_ELIGIBLE, NO_LIMIT, Program, align
from bilinq.allocation.batch import allocate_batch
from bilinq.arrays import Array, IntArray, count
from bilinq.distributed.network import Network
from bilinq.distributed.system import Nodes, Rule, System, Time, scaled_back
from bilinq.errors import BadInput, Diverged, UnsafeGain

SWING, KEPT = 0.02, 0.95
"""Rates do not settle if they swing by more than SWING of themselves and by KEPT of what they swung before."""
WINDOW = 12  # length of the windows in which swings are measured, in units of the longest round trip plus one round


@dataclass(frozen=True, eq=False)
class Track:
    """Rates over time, and their distance from the fixed point.

    Attributes
    ----------
    system : System
        The system that was run.
    time : (T,) array
        When the rates were recorded: rounds, or units of time.
    expected : (T, ..., I, J) array
        Rates.
    """

    system: System
    time: Array
    expected: Array

    @cached_property
    def distance(self) -> Array:
        """Distance of row sums and loads from the fixed point, (T, ...): largest |s_i / s_i* - 1| or |z_j - z_j*| / n_j."""
        return distance(self.system, self.expected)

    @cached_property
    def gap(self) -> Array:
        """Shortfall of Eq. (33) from its optimum over the sum of all a_i, (T, ...); 0.01 is as if all got 1 % less."""
        best = self.system.objective(self.system.equilibrium.expected)
        total = np.maximum(self.system.demand.sum(axis=-1), 1e-300)
        return np.asarray((best - self.system.objective(self.expected)) / total)

    def settled(self, level: float = 0.01, measure: Literal["distance", "gap"] = "gap") -> Array:
        """Return the recorded time (...) from which on `measure` stays at or below `level`; infinite if it does not."""
        beyond = ~((self.gap if measure == "gap" else self.distance) <= level)
        last = np.where(beyond.any(axis=0), len(beyond) - 1 - beyond[::-1].argmax(axis=0), -1)
        return np.asarray(np.append(self.time, np.inf)[last + 1])


@dataclass(frozen=True, eq=False)
class Run(Track):
    """Rates round by round; see `Track`. `margin` is the largest margin of any pair in discrete time."""

    margin: float

    @property
    def rounds(self) -> IntArray:
        """The recorded rounds."""
        return self.time.astype(np.int64)


def distance(system: System, expected: Array) -> Array:
    """Return the distance of allocations (..., I, J) from the fixed point in row sums and loads, which are unique."""
    best, n = system.equilibrium.expected, system.capacity
    served, wanted = expected.sum(axis=-1), best.sum(axis=-1)
    rows = np.where(wanted > 0.0, np.abs(served / np.where(wanted > 0.0, wanted, 1.0) - 1.0), served)
    load = np.abs(expected.sum(axis=-2) - best.sum(axis=-2)) / np.where(n > 0.0, n, 1.0)
    return np.asarray(np.maximum(rows.max(axis=-1), load.max(axis=-1)))


def iterate(
    system: System,
    gain: ArrayLike,
    rounds: int,
    *,
    nodes: Nodes = "job",
    rule: Rule = "scaled",
    start: ArrayLike | None = None,
    record: int | Literal["all", "last"] = "all",
    check: bool = True,
) -> Run:
    """Return the rates of `rounds` rounds of Eq. (35) or (36).

    Parameters
    ----------
    system : System
        With whole delays, in rounds.
    gain : float or (..., I, J) array
        Positive step sizes, such as `system.safe_gain(0.5, "discrete")`.
    rounds : int
        Number of rounds.
    nodes : {"job", "server"}
        Which nodes compute the rates.
    rule : {"scaled", "delayed", "printed"}
        Steps scaled by the rate itself, by the rate a round trip ago (Kelly and Voice), or not at all (as printed).
    start : (..., I, J) array, optional
        Rates in round 0 and before; default: `start_rates(system)`.
    record : "all", "last" or int
        Keep every round, the last one, or one in so many.
    check : bool
        Warn if the gain is beyond what is proved to be stable, and stop if rates do not settle.

    Raises
    ------
    Diverged
        If rates explode; with `check` also if they keep oscillating.

    Examples
    --------
    >>> system = System.synthetic(seed=1)
    >>> run = iterate(system, system.safe_gain(0.5, "discrete"), rounds=1500)
    >>> run.expected.shape, bool(run.distance[-1] < 0.01)
    ((1501, 4, 3), True)
    """
    network = Network(system, gain, nodes=nodes, rule=rule, start=start)
    number, every = count("rounds", rounds), _every(record)
    margin = system.margin(gain, "discrete")
    worst = float(margin.max(initial=0.0))
    if check:
        warn_unsafe(margin, "discrete")
    length = WINDOW * (1.0 + float(system.round_trip.max(initial=0.0)))
    swings = Swings(length, worst, rule) if check and (worst > 1.0 or rule == "printed") else None
    kept, when = _record(network, number, every, swings)
    return Run(system, np.array(when, dtype=np.float64), kept, worst)


def _every(record: int | str) -> int:
    """Return after how many rounds rates are kept, or zero for the last only."""
    if isinstance(record, str):
        if record not in ("all", "last"):
            raise BadInput(f"record must be 'all', 'last' or a number of rounds; got {record!r}")
        return 1 if record == "all" else 0
    return count("record", record)


def _record(network: Network, rounds: int, every: int, swings: Swings | None) -> tuple[Array, list[int]]:
    when = [rounds] if not every else [*range(0, rounds, every), rounds]
    kept = np.empty((len(when), *network.system.reward.shape))
    place = 0
    for now in range(rounds + 1):
        if when[place] == now:
            kept[place] = network.expected
            place += 1
        if now < rounds:
            known = network.step()
            if swings is not None:
                swings(float(now), known)
    return kept, when


def warn_unsafe(margin: Array, time: Time) -> None:
    """Warn if a margin (..., I, J) is above one."""
    worst = float(margin.max(initial=0.0))
    if worst > 1.0 + 1e-12:
        where = tuple(int(k) for k in np.unravel_index(int(margin.argmax()), margin.shape))
        text = f"gain is {worst:.3g} times what is proved stable in {time} time, at pair {where}; rates may not settle"
        warnings.warn(text, UnsafeGain, stacklevel=3)


class Swings:
    """Detects rates that keep oscillating: within a window they travel further than from its first to its last value.

    It raises `Diverged` when in three of four windows they swing as much as two windows before.
    """

    def __init__(self, length: float, margin: float, rule: str) -> None:
        self._length, self._margin, self._rule = length, margin, rule
        self._before, self._end = [np.inf, np.inf], -np.inf
        self._hits: deque[bool] = deque(maxlen=4)

    def __call__(self, now: float, sums: Array) -> None:
        """Take the sums (B, nodes) of the rates at this time; raise if they do not settle."""
        if now >= self._end:
            if np.isfinite(self._end):
                self._check_window(now, sums)
            self._end = now + self._length
            self._first, self._last, self._high, self._low = sums.copy(), sums.copy(), sums.copy(), sums.copy()
            self._travelled = np.zeros_like(sums)
        self._travelled += np.abs(sums - self._last)
        self._last[:] = sums
        np.maximum(self._high, sums, out=self._high)
        np.minimum(self._low, sums, out=self._low)

    def _check_window(self, now: float, sums: Array) -> None:
        back_and_forth = np.minimum(self._high - self._low, self._travelled - np.abs(sums - self._first))
        swing = float((back_and_forth / np.maximum(self._high + self._low, 1e-300)).max(initial=0.0))
        self._hits.append(swing > SWING and swing >= KEPT * self._before[0])
        self._before = [self._before[1], swing]
        if sum(self._hits) > 2:
            raise Diverged(
                f"rates swing by {100 * swing:.0f} % and do not settle by time {now:g} of the {self._rule} rule; "
                f"the gain uses {self._margin:.3g} of the stability condition, see System.safe_gain"
            )


def shortfall(system: System, expected: ArrayLike | None = None) -> Array:
    """Return what a scaled-back allocation loses against the exact program, over the sum of all a_i, (...).

    0.01 is as if every class got 1 % less service than at the optimum of Eq. (6). `expected` (..., I, J) is by default the
    fixed point. The result is infinite if a class with jobs is not served.
    """
    y = scaled_back(system.equilibrium.expected if expected is None else expected, system.capacity)
    eligible = ALL_ELIGIBLE if system.eligible is None else system.eligible
    batch, program = align(Program(
        queue=system.queue, reward=system.reward, capacity=system.capacity, V=system.V, gamma=system.gamma,
        weight=system.weight, limit=NO_LIMIT, eligible=eligible,
    ))  # fmt: skip
    best = allocate_batch(program).expected.reshape(*batch, *program.reward.shape[1:])
    total = np.maximum(system.demand.sum(axis=-1), 1e-300)
    return np.asarray((_value(system, best) - _value(system, y)) / total)


def _value(system: System, y: Array) -> Array:
    """Return the value of Eq. (6); minus infinity if a class with jobs is not served."""
    a, served = system.demand, y.sum(axis=-1)
    fair = np.where(a > 0.0, a * np.log(np.where(served > 0.0, served, 1.0)), 0.0)
    fair = np.where((a > 0.0) & (served <= 0.0), -np.inf, fair)
    return np.asarray(fair.sum(axis=-1) - (system.cost * y).sum(axis=(-2, -1)))
