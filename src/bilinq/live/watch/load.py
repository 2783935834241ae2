"""The load of a running service as a problem, and the best possible reward for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from bilinq.errors import BilinqError, Unavailable
from bilinq.live.watch.window import Span, in_order
from bilinq.problem import Problem
from bilinq.problem.oracle import Oracle, oracle

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.scheduler.classes import RewardRange
    from bilinq.scheduler.scheduler import Scheduler

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
        return oracle(Problem(arrival_rate=traffic, servers=servers, mean_reward=worth))
    extra = np.full((worth.shape[0], 1), worth.min() - 1.0 - np.ptp(worth))
    n = np.append(servers, np.ceil(excess) + 1.0)
    return oracle(Problem(arrival_rate=traffic, servers=n, mean_reward=np.hstack([worth, extra])))


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
