"""The load of a running service as a problem, and the best possible reward for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BilinqError, Unavailable
from bilinq.live.watch.window import Span, in_order
from bilinq.problem import Problem
from bilinq.problem.oracle import Oracle, oracle
from bilinq.scheduler.classes import RewardRange
from bilinq.scheduler.scheduler import Scheduler


@dataclass(frozen=True)
class Load:
    """The load of the last minute, in seconds and the user's units.

    Attributes
    ----------
    rate : (I,) array
        Services that were asked for, per second.
    seconds : (I,) array
        How long a service takes; the mean of all classes where a class has finished none.
    servers : (J,) array
        Servers that wait or serve.
    mean : (I, J) array
        Learnt rewards.
    reward : RewardRange
        Their range.
    earned : float
        Reward per second.
    """

    rate: Array
    seconds: Array
    servers: Array
    mean: Array
    reward: RewardRange
    earned: float

    @classmethod
    def of(cls, scheduler: Scheduler | None, jobs: Sequence[str], servers: Sequence[int], minute: Span) -> Self | None:
        """Return the load, or None while there is nothing to say: no rewards, no jobs, no servers, nothing learnt."""
        finished, units = np.array(in_order(jobs, minute.finished)), np.array(in_order(jobs, minute.units))
        earned, known = minute.earned, None if scheduler is None else scheduler.beliefs()
        if scheduler is None or known is None or earned is None:
            return None
        if not (finished.sum() and units.sum() and sum(servers)):
            return None
        spent = np.array(in_order(jobs, minute.seconds), dtype=float)
        seconds = np.where(finished > 0, spent / np.maximum(finished, 1), spent.sum() / finished.sum())
        rate, n = units / minute.lasted, np.array(servers, dtype=float)
        return cls(rate, np.maximum(seconds, 1e-6), n, known.mean, scheduler.reward, earned)

    @property
    def traffic(self) -> Array:
        """How many servers each job class keeps busy (I,)."""
        return np.asarray(self.rate * self.seconds)

    @property
    def factor(self) -> float:
        """The part of all servers that is needed."""
        return float(self.traffic.sum() / self.servers.sum())

    @property
    def scaled(self) -> Array:
        """Learnt rewards as the policy sees them, from -1 to 1 (I, J)."""
        return np.asarray((self.mean - self.reward.middle) / self.reward.unit)


def best_split(worth: Array, traffic: Array, servers: Array) -> Oracle:
    """Return the split of the traffic that is worth most, Eq. (2); what does not fit is left to a last class of servers.

    `worth` (I, J) is what a server of class j gains per second with jobs of class i. The last class pays so little that
    it gets no more than it must.
    """
    excess = traffic.sum() - servers.sum()
    if excess < 0.0:
        return oracle(Problem(arrival_rate=traffic, servers=servers, mean_reward=worth))
    nobody = np.full((worth.shape[0], 1), worth.min() - 1.0 - np.ptp(worth))
    n = np.append(servers, np.ceil(excess) + 1.0)
    return oracle(Problem(arrival_rate=traffic, servers=n, mean_reward=np.hstack([worth, nobody])))


log = logging.getLogger("bilinq.live")

EVERY, SELDOM = 1.0, 5.0
"""Least and most seconds between two computations."""
SHARE = 50.0
"""As many times its own duration a computation leaves to everything else, within these bounds."""


def best_rate(load: Load) -> float:
    """Return the most reward per second, in the user's units, by the linear program of Eq. (2).

    Of more jobs than the servers can take, those that pay most per second of service are taken.
    """
    worth = load.mean / load.seconds[:, None]
    share = best_split(worth, load.traffic, load.servers).share[:, : load.servers.size]
    return float(np.einsum("i,ij,ij->", load.rate, share, load.mean))


class Best:
    """The best possible, computed now and then beside everything else; `value` is None before there is anything to say."""

    def __init__(self, load: Callable[[], Load | None]) -> None:
        self.value: float | None = None
        self._load = load

    async def run(self) -> None:
        """Compute again and again, and give way in between."""
        while True:
            began = time.monotonic()
            await self.compute()
            await asyncio.sleep(min(max(EVERY, SHARE * (time.monotonic() - began)), SELDOM))

    async def compute(self) -> None:
        """Compute once; what fails is only logged."""
        try:
            load = self._load()
            self.value = None if load is None else await asyncio.to_thread(best_rate, load)
        except Unavailable:
            self.value = None
        except BilinqError as error:
            self.value = None
            log.warning("the best possible reward cannot be computed: %s", error)
