"""What happened lately: differences between running totals, and percentiles of waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from bilinq.arrays import Array
from bilinq.live.metrics import Meters

K = TypeVar("K")
V = TypeVar("V", int, float)

MINUTE = 60.0
"""Seconds that a window reaches back."""
STEP = 0.5
"""Least seconds between totals that are kept for the window."""
THIN = 50
"""Waits kept of one moment; of more, as many evenly spaced ones, each for its neighbours."""


class Totals(NamedTuple):
    """Running totals at some time; see `Meters`."""

    at: float
    submitted: Mapping[str, int] = {}
    units: Mapping[str, int] = {}
    granted: Mapping[tuple[str, str], int] = {}
    finished: Mapping[str, int] = {}
    seconds: Mapping[str, float] = {}
    reward: Mapping[str, float] = {}

    @classmethod
    def of(cls, meters: Meters, at: float) -> Totals:
        """Return the totals as they are now."""
        finished = {name: many for (name, how), many in meters.leases_ended.items() if how == "finished"}
        return cls(
            at, dict(meters.submitted), dict(meters.units), dict(meters.granted), finished, dict(meters.serving),
            dict(meters.reward_sum),
        )  # fmt: skip


class Span:
    """What came between two times; each total is computed when it is asked for."""

    def __init__(self, then: Totals, now: Totals) -> None:
        self._then, self._now = then, now
        self.lasted = now.at - then.at

    @property
    def submitted(self) -> dict[str, int]:
        """Jobs that were submitted, by job class."""
        return _minus(self._now.submitted, self._then.submitted)

    @property
    def units(self) -> dict[str, int]:
        """Services that these jobs need."""
        return _minus(self._now.units, self._then.units)

    @property
    def granted(self) -> dict[tuple[str, str], int]:
        """Leases by pair of classes."""
        return _minus(self._now.granted, self._then.granted)

    @property
    def finished(self) -> dict[str, int]:
        """Leases that were finished, by job class."""
        return _minus(self._now.finished, self._then.finished)

    @property
    def seconds(self) -> dict[str, float]:
        """How long these leases lasted in all."""
        return _minus(self._now.seconds, self._then.seconds)

    @property
    def reward(self) -> dict[str, float]:
        """Rewards by job class."""
        return _minus(self._now.reward, self._then.reward)

    @property
    def earned(self) -> float | None:
        """Reward per second; None before there was any."""
        if not self._now.reward or self.lasted <= 0.0:
            return None
        return (sum(self._now.reward.values()) - sum(self._then.reward.values())) / self.lasted


class Window:
    """Totals of the last minute; it begins with the first of them."""

    def __init__(self, meters: Meters, at: float) -> None:
        self._meters = meters
        self._before = self._now = Totals(at)
        self._past = deque([self._now])
        self._waits: deque[tuple[float, Array, float]] = deque()

    def add(self, at: float) -> None:
        """Take note of how things are now."""
        self._before, self._now = self._now, Totals.of(self._meters, at)
        if at - self._past[-1].at >= STEP:
            self._past.append(self._now)
        waits = np.sort(np.array(self._meters.take_waits()))
        if waits.size:
            places = np.arange(waits.size) if waits.size <= THIN else ((np.arange(THIN) + 0.5) * waits.size / THIN)
            kept = waits[places.astype(np.int64)]
            self._waits.append((at, kept, waits.size / kept.size))
        while len(self._past) > 2 and self._past[1].at <= at - MINUTE:
            self._past.popleft()
        while self._waits and self._waits[0][0] <= at - MINUTE:
            self._waits.popleft()

    @property
    def latest(self) -> Span:
        """What came between the last two moments."""
        return Span(self._before, self._now)

    def within(self, seconds: float = MINUTE) -> Span:
        """Return what came within so many seconds, or since the window begins."""
        since = self._now.at - seconds
        return Span(next((past for past in reversed(self._past) if past.at <= since), self._past[0]), self._now)

    def waits(self, *parts: float) -> list[float | None]:
        """Return quantiles of the waits of the last minute; None if there are none."""
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
    """Return the values of `names`; zero where there is none."""
    return [values.get(name, 0) for name in names]


def _minus(now: Mapping[K, V], then: Mapping[K, V]) -> dict[K, V]:
    return {name: value - then.get(name, 0) for name, value in now.items()}
