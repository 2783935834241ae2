"""Effects: a number that a claim is about, measured over replications, with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from bilinq.arrays import Array, IntArray
from bilinq.simulation.records import interval

MINUS = "\N{MINUS SIGN}"
GROUPS = 20
"""Groups of replications that the jackknife leaves out in turn."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A measured number, the ends of its 95 % interval (NaN where there is one replication), and what it is."""

    value: float
    low: float
    high: float
    unit: str = ""

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


def mean(values: Array, unit: str = "") -> Effect:
    """Return the mean of values (R,) with its interval, Student's t."""
    found = interval(values)
    return Effect(found.mean, found.low, found.high, unit)


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

    Parameters
    ----------
    statistic : callable
        Given the numbers of the replications to use, it returns the value. It may look at several records: replications
        with the same number are left out of all of them together, whether they are pairs or independent.
    replications : int
    """
    everyone = np.arange(replications)
    value, groups = statistic(everyone), min(replications, GROUPS)
    if groups < 2:
        return Effect(value, math.nan, math.nan, unit)
    left_out = np.array([statistic(everyone[everyone % groups != group]) for group in range(groups)])
    error = math.sqrt((groups - 1) / groups * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stdtrit(groups - 1, 0.975)) * error
    return Effect(value, value - half, value + half, unit)


def slope(x: Array, y: Array) -> float:
    """Return the slope of log y over log x by least squares; NaN where a y is not positive."""
    if not (np.asarray(y) > 0).all():
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def number(value: float) -> str:
    """Return three significant digits for people, with a real minus sign and no exponent below a million."""
    if not math.isfinite(value):
        return "?"
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        digits = 0 if value == 0.0 else max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.2e}"
    return text.replace("-", MINUS)


def at_level(level: float, x: Array, y: Array) -> float:
    """Return y where x is `level`, linear between the points; NaN outside of them.

    With x the queue and y the regret at several V it compares policies at an equal queue, as Eq. (32) does.
    """
    rank = np.argsort(x)
    return float(np.interp(level, x[rank], y[rank], left=math.nan, right=math.nan))
