"""What another policy would have earned, from jobs that were served under one whose chances are known.

`bilinq.evaluate` applies these estimates to a log, the shadow of the live service to its last decisions.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import stdtrit

from bilinq.arrays import Array, BoolArray
from bilinq.simulation.records import Interval

ENOUGH = 30.0  # effective jobs below which no estimate is recommended
NEGLIGIBLE = 1e-3  # weight of a policy on a pair that overlap is not asked for: it moves a mean by this much at most
LEAST = 0.01  # smallest chance of the first policy that is accepted where the other has weight
TAIL = 0.01  # fraction of the jobs whose share of all weights is reported


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
    """Jobs (N,) as two policies see them, and the estimates that follow, each with a 95 % interval.

    Attributes
    ----------
    weight : (N,) array
        Chance of the server under the other policy over that under the first.
    earned : (N,) array
        Rewards.
    expected : (N,) array
        Predicted reward under the other policy: over its chances, the prediction of each server.
    predicted : (N,) array
        Predicted reward of the server that served the job. Predictions must not use the job's own reward.
    """

    weight: Array
    earned: Array
    expected: Array
    predicted: Array

    def joined(self, other: "Scores") -> "Scores":
        """Return the jobs of both."""
        parts = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in self.__dataclass_fields__
        }
        return Scores(**parts)

    @cached_property
    def robust(self) -> Array:
        """The doubly robust score of each job (N,): the prediction plus the weighted residual."""
        return np.asarray(self.expected + self.weight * (self.earned - self.predicted))

    @cached_property
    def effective_jobs(self) -> float:
        """How many jobs of the other policy's own these are worth: (sum of weights)^2 / sum of squared weights."""
        w = self.weight
        return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0

    @property
    def enough(self) -> bool:
        """Whether the estimates are worth reading."""
        return self.effective_jobs >= ENOUGH

    @property
    def mean_weight(self) -> float:
        """Close to one if the chances are right."""
        return float(self.weight.mean())

    @property
    def doubly_robust(self) -> Interval:
        """The mean reward under the other policy; right if either the predictions or the chances are."""
        return interval(self.robust, self.effective_jobs)

    @property
    def inverse_propensity(self) -> Interval:
        """The mean of weighted rewards."""
        return interval(self.weight * self.earned, self.effective_jobs)

    @property
    def self_normalised(self) -> Interval:
        """The same over the sum of the weights."""
        w = self.weight
        mean = float(w @ self.earned / w.sum()) if w.any() else np.nan
        scaled = w * (self.earned - mean) / max(self.mean_weight, 1e-300)
        return interval(scaled, self.effective_jobs, centre=mean)

    @property
    def logged(self) -> Interval:
        """The mean reward that was earned."""
        return interval(self.earned, self.weight.size)

    @property
    def gain(self) -> Interval:
        """Doubly robust minus logged, job by job."""
        return interval(self.robust - self.earned, self.effective_jobs)

    @property
    def tail(self) -> float:
        """Share of all weight on the 1 % of the jobs with the largest weights."""
        w = self.weight
        most = max(1, round(TAIL * w.size))
        return float(np.sort(w)[-most:].sum() / w.sum()) if w.any() else np.nan

    def doubts(self) -> list[str]:
        """Return what speaks against the estimates, as sentences."""
        found, w = [], self.weight
        error = float(w.std(ddof=1) / np.sqrt(w.size))
        if abs(w.mean() - 1.0) > 4.0 * error + 1e-9:
            found.append(f"Doubt: weights average {w.mean():.3g} instead of 1, so the probabilities are not right.")
        if not self.enough:
            worth = f"worth {self.effective_jobs:.0f} jobs of the policy, fewer than {ENOUGH:.0f}"
            found.append(f"Doubt: the log is {worth}.")
        return found


def interval(values: Array, worth: float, centre: float | None = None) -> Interval:
    """Return the mean of `values` (N,), or `centre`, with its 95 % interval by Student's t for `worth` jobs."""
    middle = float(values.mean()) if centre is None else centre
    half = float(stdtrit(max(worth - 1.0, 1.0), 0.975) * values.std(ddof=1) / np.sqrt(values.size))
    return Interval(middle, middle - half, middle + half)


def too_rare(policy: Array, chance: Array, least: float = LEAST) -> BoolArray:
    """Return where a policy has weight although the first one hardly ever chooses so; both are chances."""
    return np.asarray((policy > NEGLIGIBLE) & (chance < least))
