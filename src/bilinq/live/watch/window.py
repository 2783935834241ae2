"""The last minute: differences between running totals, and percentiles of waits."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

import numpy as np

from bilinq.arrays import Array
from bilinq.live.metrics import Meters

K = TypeVar("K")
V = TypeVar("V", int, float)

MINUTE = 60.0  # seconds that a window reaches back
STEP = 0.5  # least seconds between two totals that are kept for the window
THIN = 50  # most waits kept of one sample; of more, so many evenly spaced ones are kept, each with a larger weight


class WindowTotals(NamedTuple):
    """Running totals at some time; see `Meters`."""

    at: float
    submitted: Mapping[str, int] = {}
    units: Mapping[str, int] = {}
    granted: Mapping[tuple[str, str], int] = {}
    finished: Mapping[str, int] = {}
    seconds: Mapping[str, float] = {}
    reward: Mapping[str, float] = {}

    @classmethod
    def of(cls, meters: Meters, at: float) -> Self:
        """Return the current totals."""
        finished = {name: count for (name, end), count in meters.leases_ended.items() if end == "finished"}
        return cls(
            at=at, submitted=dict(meters.submitted), units=dict(meters.units), granted=dict(meters.granted),
            finished=finished, seconds=dict(meters.serving), reward=dict(meters.reward_sum),
        )  # fmt: skip


class Span:
    """The differences between two totals, by job class.

    `units` are the services that the submitted jobs need, `seconds` the total duration of the finished leases.
    """

    def __init__(self, start: WindowTotals, end: WindowTotals) -> None:
        self._start, self._end = start, end
        self.duration = end.at - start.at
        self.submitted, self.units = _minus(end.submitted, start.submitted), _minus(end.units, start.units)
        self.finished, self.seconds = _minus(end.finished, start.finished), _minus(end.seconds, start.seconds)
        self.reward = _minus(end.reward, start.reward)

    @property
    def granted(self) -> dict[tuple[str, str], int]:
        """Leases by job class and server class."""
        return _minus(self._end.granted, self._start.granted)

    @property
    def earned(self) -> float | None:
        """Reward per second; None before the first reward."""
        if not self._end.reward or self.duration <= 0.0:
            return None
        return (sum(self._end.reward.values()) - sum(self._start.reward.values())) / self.duration


class Window:
    """The totals and waits of the last minute, or since the window was made."""

    def __init__(self, meters: Meters, at: float) -> None:
        self._meters = meters
        self._before = self._now = WindowTotals(at)
        self._totals = deque([self._now])
        self._waits: deque[tuple[float, Array, float]] = deque()

    def add(self, at: float) -> None:
        """Add the current totals and waits, and drop those older than a minute."""
        self._before, self._now = self._now, WindowTotals.of(self._meters, at)
        if at - self._totals[-1].at >= STEP:
            self._totals.append(self._now)
        waits = np.sort(np.array(self._meters.take_waits()))
        if waits.size:
            places = np.arange(waits.size) if waits.size <= THIN else ((np.arange(THIN) + 0.5) * waits.size / THIN)
            kept = waits[places.astype(np.int64)]
            self._waits.append((at, kept, waits.size / kept.size))
        while len(self._totals) > 2 and self._totals[1].at <= at - MINUTE:
            self._totals.popleft()
        while self._waits and self._waits[0][0] <= at - MINUTE:
            self._waits.popleft()

    @property
    def latest(self) -> Span:
        """The difference between the last two samples."""
        return Span(self._before, self._now)

    def within(self, seconds: float = MINUTE) -> Span:
        """Return the difference over the last seconds, or since the window began."""
        since = self._now.at - seconds
        start = next((totals for totals in reversed(self._totals) if totals.at <= since), self._totals[0])
        return Span(start, self._now)

    def waits(self, *parts: float) -> list[float | None]:
        """Return quantiles of the waits of the last minute; None if there were no waits."""
        if not self._waits:
            return [None] * len(parts)
        value = np.concatenate([kept for _, kept, _ in self._waits])
        weight = np.concatenate([np.full(kept.size, each) for _, kept, each in self._waits])
        order = np.argsort(value)
        below = np.cumsum(weight[order])
        places = np.searchsorted(below, np.array(parts) * below[-1])
        found: list[float | None] = value[order][np.minimum(places, value.size - 1)].tolist()
        return found


def in_order(names: Sequence[str], values: Mapping[str, V]) -> list[V]:
    """Return the values of `names`, zero for a missing one."""
    return [values.get(name, 0) for name in names]


def _minus(end: Mapping[K, V], start: Mapping[K, V]) -> dict[K, V]:
    return {name: value - start.get(name, 0) for name, value in end.items()}
