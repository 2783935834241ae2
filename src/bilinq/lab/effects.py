"""Effects: the numbers that claims are about, measured over replications, with 95 % intervals; the price of learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from scipy.special import betaincinv, stdtr, stdtrit
from scipy.stats import binom

from bilinq.display import MINUS, number

if TYPE_CHECKING:
    from bilinq.arrays import Array, BoolArray, IntArray
    from bilinq.experiments import Record

Runs: TypeAlias = "Sequence[Record]"  # runs of a policy at several V in one setting

GROUPS = 25  # groups of replications that the jackknife leaves out, one at a time


@dataclass(frozen=True, slots=True)
class Effect:
    """A measured number, the ends of its 95 % interval (NaN with one replication), its unit, and degrees of freedom.

    The interval is Student's t with `freedom` degrees of freedom; its sides may have different widths. If `trials` is not
    zero, the number is the share of so many independent trials, and interval and tests are exact for binomial counts.
    """

    value: float
    low: float
    high: float
    unit: str = ""
    freedom: float = math.inf
    trials: int = 0

    @property
    def exact(self) -> bool:
        """Whether the number was calculated or counted, not sampled."""
        return self.low == self.value == self.high

    def doubt(self, end: float) -> float:
        """Return the two-sided p-value of the hypothesis that the true value is `end`; 1 without an interval.

        Examples
        --------
        >>> round(Effect(2.0, 1.0, 3.0).doubt(1.0), 3)
        0.05
        """
        if self.trials and math.isfinite(end):
            hits, law = round(self.value * self.trials), binom(self.trials, min(max(end, 0.0), 1.0))
            return min(1.0, 2.0 * float(min(law.cdf(hits), law.sf(hits - 1))))
        half = self.high - self.value if end > self.value else self.value - self.low
        if math.isnan(half) or end == self.value:
            return 1.0
        if half == 0.0 or math.isinf(end):
            return 0.0
        return 2.0 * _tail(abs(end - self.value) / half * _quantile(self.freedom), self.freedom)

    def row(self) -> dict[str, float]:
        """Return the cells "mean", "low" and "high" of a table's row."""
        return {"mean": self.value, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        width = self.high - self.low
        if not (math.isfinite(width) and width > 1e-9 * abs(self.value)):
            return number(self.value)
        digits = max(0, 1 - math.floor(math.log10(width)))  # two digits of the interval's width
        value, low, high = (f"{x:,.{digits}f}".replace("-", MINUS) for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


def _quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    return float(stdtrit(min(freedom, 1e9), 0.975))


def _tail(t: float, freedom: float) -> float:
    return float(stdtr(min(freedom, 1e9), -t))


def exact(value: float, unit: str = "") -> Effect:
    """Return a number that is calculated or counted, not sampled."""
    return Effect(value, value, value, unit)


def mean(values: Array, unit: str = "") -> Effect:
    """Return the mean of values (R,) with its interval, Student's t."""
    kept = values[~np.isnan(values)]
    if not kept.size:
        return Effect(math.nan, math.nan, math.nan, unit)
    error = float(kept.std(ddof=1)) / math.sqrt(kept.size) if kept.size > 1 else math.nan
    return _student(float(kept.mean()), error, kept.size - 1, unit)


def share(hits: BoolArray, unit: str = "") -> Effect:
    """Return the share of independent trials (R,) that are hits, with the interval of Clopper and Pearson.

    Examples
    --------
    >>> print(share(np.array([True] * 9 + [False])))
    0.90 [0.55, 1.00]
    """
    return _binomial(int(hits.sum()), len(hits), unit)


def _binomial(hits: int, trials: int, unit: str) -> Effect:
    low = float(betaincinv(hits, trials - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 0.975)) if hits < trials else 1.0
    return Effect(hits / trials, low, high, unit, trials=trials)


def pooled(found: Sequence[Effect]) -> Effect:
    """Return the mean of equal measurements on independent seeds; its degrees of freedom are those of Satterthwaite.

    Trials are counted together.

    Examples
    --------
    >>> print(pooled([Effect(1.0, 0.0, 2.0), Effect(3.0, 2.0, 4.0)]))
    2.0 [1.3, 2.7]
    """
    value = float(np.mean([effect.value for effect in found]))
    if all(effect.trials for effect in found):
        hits = sum(round(effect.value * effect.trials) for effect in found)
        return _binomial(hits, sum(effect.trials for effect in found), found[0].unit)
    errors = np.array([(effect.high - effect.low) / 2.0 / _quantile(effect.freedom) for effect in found])
    freedoms = np.array([min(effect.freedom, 1e9) for effect in found])
    total = float((errors**2).sum())
    freedom = total**2 / float((errors**4 / freedoms).sum()) if total > 0.0 else math.inf
    return _student(value, math.sqrt(total) / len(found), freedom, found[0].unit)


def _student(value: float, error: float, freedom: float, unit: str) -> Effect:
    half = _quantile(freedom) * error if freedom > 0 else math.nan
    return Effect(value, value - half, value + half, unit, freedom)


def difference(one: Array, other: Array, unit: str = "") -> Effect:
    """Return the mean of `one` - `other` over pairs of replications.

    Examples
    --------
    >>> print(difference(np.array([3.0, 5.0, 4.0, 6.0]), np.array([1.0, 3.5, 2.0, 3.5])))
    2.0 [1.4, 2.6]
    """
    return mean(one - other, unit)


def ratio(one: Array, other: Array, unit: str = "") -> Effect:
    """Return the mean of `one` over the mean of `other`, pairs of replications."""
    return estimate(lambda keep: float(one[keep].mean() / other[keep].mean()), len(one), unit)


def estimate(statistic: Callable[[IntArray], float], replications: int, unit: str = "") -> Effect:
    """Return any smooth function of means over replications, with its interval by the grouped jackknife.

    `statistic` gets the numbers of the replications to use. It may use several records: replications with the same number
    are left out of all of them together, whether they are pairs or independent.
    """
    everyone = np.arange(replications)
    value, groups = statistic(everyone), min(replications, GROUPS)
    if groups < 2:
        return Effect(value, math.nan, math.nan, unit)
    left_out = np.array([statistic(everyone[everyone % groups != group]) for group in range(groups)])
    error = math.sqrt((groups - 1) / groups * float(((left_out - left_out.mean()) ** 2).sum()))
    return _student(value, error, groups - 1, unit)


def slope(x: Array, y: Array) -> float:
    """Return the slope of log y over log x by least squares; NaN where a y is not positive."""
    if not (np.asarray(y) > 0).all():
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def at_level(level: float, x: Array, y: Array) -> float:
    """Return y where x is `level`, linear between the points; NaN outside of them.

    With x the queue and y the regret at several V it compares policies at an equal queue, as Eq. (32) does.
    """
    rank = np.argsort(x)
    return float(np.interp(level, x[rank], y[rank], left=math.nan, right=math.nan))


def late_growth(record: Record) -> Array:
    """Return the growth of regret per slot in the second half of a run (R,)."""
    path, half = record.paths["regret"].astype(np.float64), len(record.slot) // 2
    return np.asarray((path[:, -1] - path[:, half]) / float(record.slot[-1] - record.slot[half]))


def gap_at_equal_queue(policy: Runs, other: Record, measure: str) -> Effect:
    """Return a measure of a policy less that of another at the other's time-average queue."""

    def statistic(keep: IntArray) -> float:
        return _at_queue(policy, measure, _mean(other, "queue", keep), keep) - _mean(other, measure, keep)

    return estimate(statistic, other.replications, measure)


def ratio_at_equal_queue(policy: Runs, other: Record, measure: str, unit: str = "") -> Effect:
    """Return a measure of a policy over that of another at the other's time-average queue."""

    def statistic(keep: IntArray) -> float:
        return _at_queue(policy, measure, _mean(other, "queue", keep), keep) / _mean(other, measure, keep)

    return estimate(statistic, other.replications, unit)


def price(policy: Runs, known: Runs, queue: float | None = None) -> Effect:
    """Return the price of learning, Eq. (32): regret above that of known rewards at an equal time-average queue.

    The default `queue` to compare at is that of the policy's only run.
    """
    return estimate(lambda keep: _price(policy, known, queue, keep), known[0].replications, "regret")


def price_gap(one: Runs, other: Runs, known: Runs, queue: float | None = None) -> Effect:
    """Return the price of one policy less that of the other, both at `queue`, or each at its own."""

    def statistic(keep: IntArray) -> float:
        return _price(one, known, queue, keep) - _price(other, known, queue, keep)

    return estimate(statistic, known[0].replications, "regret")


def learnt(policy: Runs, blind: Runs, known: Runs, queue: float | None = None) -> Effect:
    """Return the share of the price of `blind`, which learns nothing, that the policy saves; 1 for known rewards."""

    def statistic(keep: IntArray) -> float:
        return 1.0 - _price(policy, known, queue, keep) / _price(blind, known, queue, keep)

    return estimate(statistic, known[0].replications, "of the gap")


def _price(policy: Runs, known: Runs, queue: float | None, keep: IntArray) -> float:
    if queue is None:
        (only,) = policy
        return _mean(only, "regret", keep) - _at_queue(known, "regret", _mean(only, "queue", keep), keep)
    return _at_queue(policy, "regret", queue, keep) - _at_queue(known, "regret", queue, keep)


def _at_queue(records: Runs, measure: str, queue: float, keep: IntArray) -> float:
    """Return a mean measure where the mean queue is `queue`, by interpolation between runs at several V."""
    x, y = (np.array([_mean(record, name, keep) for record in records]) for name in ("queue", measure))
    return at_level(queue, x, y)


def _mean(record: Record, name: str, keep: IntArray) -> float:
    return float(record.samples[name][keep].mean())
