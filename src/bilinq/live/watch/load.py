"""What came in the last minute and who could serve it: what the best possible and predictions are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from bilinq.arrays import Array
from bilinq.live.classes import RewardRange
from bilinq.live.scheduler import Scheduler
from bilinq.live.watch.window import Span, in_order
from bilinq.oracle import Oracle, oracle
from bilinq.problem import Problem


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
