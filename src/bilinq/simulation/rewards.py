"""Laws of observed rewards: normal as in the paper's experiments, zero or one, and heavy-tailed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from bilinq.arrays import Array, positive, require, scalar
from bilinq.errors import BadInput
from bilinq.problem.instances import Instances


class RewardLaw(ABC):
    """How the observed reward of a service varies around its mean. What policies earn in expectation is the mean."""

    def check(self, instances: Instances) -> None:  # noqa: B027, most laws fit every problem
        """Raise `BadInput` if no reward of this law can have such a mean."""

    @abstractmethod
    def numbers(self, rng: np.random.Generator, count: int) -> Array:
        """Return a random number for each of `count` services (count,)."""

    @abstractmethod
    def rewards(self, mean: Array, noise: Array, number: Array) -> Array:
        """Return the rewards of services (N,) with these means, noise scales and random numbers."""


@dataclass(frozen=True)
class NormalRewards(RewardLaw):
    """The mean plus normal noise of the problem's scale."""

    def numbers(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_normal(count)

    def rewards(self, mean: Array, noise: Array, number: Array) -> Array:
        return mean + noise * number


@dataclass(frozen=True)
class BinaryRewards(RewardLaw):
    """One with the mean reward as its chance, else zero: success or failure, a click or none. Noise has no effect.

    Examples
    --------
    >>> BinaryRewards().rewards(np.array([0.2, 0.8]), np.array([0.4, 0.4]), np.array([0.5, 0.5]))
    array([0., 1.])
    """

    def check(self, instances: Instances) -> None:
        mean, allowed = instances.mean_reward, instances.eligible
        used = mean if allowed is None else mean[allowed]
        require("mean_reward", used, lambda x: (x >= 0.0) & (x <= 1.0), "in [0, 1] for rewards of zero or one")

    def numbers(self, rng: np.random.Generator, count: int) -> Array:
        return rng.random(count)

    def rewards(self, mean: Array, noise: Array, number: Array) -> Array:
        return (number < mean).astype(np.float64)


@dataclass(frozen=True)
class HeavyTailedRewards(RewardLaw):
    """The mean plus noise of the problem's scale times Student's t: a few rewards are far from the others.

    Parameters
    ----------
    freedom : float
        Degrees of freedom, above one, so that there is a mean. Up to two the variance is infinite.
    limit : float, optional
        Rewards beyond this are reported as the limit, of either sign; the mean of what is reported then differs a little.
    """

    freedom: float = 1.5
    limit: float | None = None

    def __post_init__(self) -> None:
        if scalar("freedom", self.freedom) <= 1.0:
            raise BadInput(f"freedom must be above 1, or rewards have no mean; got {self.freedom:g}")
        if self.limit is not None:
            scalar("limit", self.limit, positive)

    def numbers(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_t(self.freedom, count)

    def rewards(self, mean: Array, noise: Array, number: Array) -> Array:
        found = mean + noise * number
        return found if self.limit is None else np.clip(found, -self.limit, self.limit)
