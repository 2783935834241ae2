"""What a service did lately: totals over windows of time, the load that they show, and the best reward for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BilinqError, Unavailable
from bilinq.live.metrics import Meters
from bilinq.problem import Problem
from bilinq.problem.oracle import Oracle, oracle

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.scheduler.classes import RewardRange
    from bilinq.scheduler.scheduler import Scheduler


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
    """The totals and waits of the last minute, or since the window was made, of several meters together."""

    def __init__(self, *meters: Meters, at: float) -> None:
        self._meters, self._waited = meters, [0] * len(meters)
        self._before = self._now = WindowTotals(at)
        self._totals = deque([self._now])
        self._waits: deque[tuple[float, Array, float]] = deque()

    def add(self, at: float) -> None:
        """Add the current totals and waits, and drop those older than a minute."""
        self._before, self._now = self._now, WindowTotals.of(Meters.merged(self._meters), at)
        if at - self._totals[-1].at >= STEP:
            self._totals.append(self._now)
        pairs = list(zip(self._meters, self._waited, strict=True))
        waits = np.sort(np.array([one for meters, seen in pairs for one in meters.waits_since(seen)]))
        self._waited = [meters.waited for meters in self._meters]
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

    def mean_wait(self) -> float | None:
        """Return the mean of the waits of the last minute; None if there were no waits."""
        many = sum(kept.size * each for _, kept, each in self._waits)
        return sum(float(kept.sum()) * each for _, kept, each in self._waits) / many if many else None

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


log = logging.getLogger("bilinq.live")

EVERY, SELDOM = 1.0, 5.0  # least and most seconds between two computations
SHARE = 50.0  # pause after a computation, as a multiple of its duration, within these bounds


@dataclass(frozen=True)
class ObservedLoad:
    """The load of the last minute, in seconds and the user's units.

    `rate` (I,) are services requested per second, and `seconds` (I,) the mean duration of one; for a class without finished
    leases, that of all classes. `servers` (J,) are idle or busy. `mean` (I, J) are learnt rewards, `reward` is their range,
    and `earned` the reward per second.
    """

    rate: Array
    seconds: Array
    servers: Array
    mean: Array
    reward: RewardRange
    earned: float

    @classmethod
    def of(cls, scheduler: Scheduler | None, jobs: Sequence[str], servers: Sequence[int], minute: Span) -> Self | None:
        """Return the load, or None without rewards, jobs, servers or learnt means."""
        finished, units = np.array(in_order(jobs, minute.finished)), np.array(in_order(jobs, minute.units))
        earned, known = minute.earned, None if scheduler is None else scheduler.beliefs()
        if scheduler is None or known is None or earned is None:
            return None
        if not (finished.sum() and units.sum() and sum(servers)):
            return None
        spent = np.array(in_order(jobs, minute.seconds), dtype=float)
        seconds = np.where(finished > 0, spent / np.maximum(finished, 1), spent.sum() / finished.sum())
        return cls(
            rate=units / minute.duration, seconds=np.maximum(seconds, 1e-6), servers=np.array(servers, dtype=float),
            mean=known.mean, reward=scheduler.reward, earned=earned,
        )  # fmt: skip

    @property
    def traffic(self) -> Array:
        """The number of servers that each job class keeps busy (I,)."""
        return np.asarray(self.rate * self.seconds)

    @property
    def factor(self) -> float:
        """The fraction of all servers that is needed."""
        return float(self.traffic.sum() / self.servers.sum())

    @property
    def scaled(self) -> Array:
        """Learnt rewards as the policy sees them, from -1 to 1 (I, J)."""
        return np.asarray((self.mean - self.reward.middle) / self.reward.unit)


def best_split(worth: Array, traffic: Array, servers: Array) -> Oracle:
    """Return the most valuable split of the traffic, Eq. (2); traffic that does not fit goes to an extra server class.

    `worth` (I, J) is what a server of class j earns per second with jobs of class i. The extra class, the last one,
    earns so little that it gets no more than it must.
    """
    excess = traffic.sum() - servers.sum()
    if excess < 0.0:
        return oracle(Problem(arrival_rate=traffic, servers=servers, mean_reward=worth, unbounded=True))
    extra = np.full((worth.shape[0], 1), worth.min() - 1.0 - np.ptp(worth))
    n = np.append(servers, np.ceil(excess) + 1.0)
    return oracle(Problem(arrival_rate=traffic, servers=n, mean_reward=np.hstack([worth, extra]), unbounded=True))


def best_rate(load: ObservedLoad) -> float:
    """Return the most reward per second, in the user's units, by the linear program of Eq. (2).

    If there are more jobs than the servers can serve, those that earn most per second of service are served.
    """
    worth = load.mean / load.seconds[:, None]
    share = best_split(worth, load.traffic, load.servers).share[:, : load.servers.size]
    return float(np.einsum("i,ij,ij->", load.rate, share, load.mean))


class BestRate:
    """The best possible reward per second, computed from time to time in a thread; `value` is None while unknown."""

    def __init__(self, load: Callable[[], ObservedLoad | None]) -> None:
        self.value: float | None = None
        self._load = load

    async def run(self) -> None:
        """Compute until cancelled, with pauses."""
        while True:
            began = time.monotonic()
            await self.compute()
            await asyncio.sleep(min(max(EVERY, SHARE * (time.monotonic() - began)), SELDOM))

    async def compute(self) -> None:
        """Compute once; a failure is only logged."""
        try:
            load = self._load()
            self.value = None if load is None else await asyncio.to_thread(best_rate, load)
        except Unavailable:
            self.value = None
        except BilinqError as error:
            self.value = None
            log.warning("the best possible reward cannot be computed: %s", error)
