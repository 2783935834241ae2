"""Paired differences between contestants: t intervals over seeds, and tests with Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from bilinq.arrays import Array
from bilinq.simulation.records import Interval, interval

LEVEL = 0.05  # chance that one or more of the differences of a measure are reported although there are none


@dataclass(frozen=True)
class Comparison:
    """A measure of a contestant less that of the reference, over pairs of runs on the same seed.

    Attributes
    ----------
    name, measure : str
    difference : Interval
        Mean difference with its own 95 % interval, Student's t.
    p : float
        Of the paired t test, corrected by Holm's method for all contestants of the measure.
    """

    name: str
    measure: str
    difference: Interval
    p: float

    @property
    def verdict(self) -> str:
        """Either "more", "less" or "no difference shown"."""
        if not self.p < LEVEL:
            return "no difference shown"
        return "more" if self.difference.mean > 0.0 else "less"


def compare(measure: str, samples: Mapping[str, Array], reference: str) -> tuple[Comparison, ...]:
    """Return the comparisons of all others with the reference; `samples` (R,) by name are paired."""
    others = [name for name in samples if name != reference]
    differences = [samples[name] - samples[reference] for name in others]
    corrected = holm([paired_p(values) for values in differences])
    return tuple(
        Comparison(name, measure, mean_of(values), p)
        for name, values, p in zip(others, differences, corrected, strict=True)
    )


def mean_of(values: Array) -> Interval:
    """Return the mean of values (R,) with its 95 % interval, Student's t; NaN if one of them is."""
    return Interval(np.nan, np.nan, np.nan) if np.isnan(values).any() else interval(values)


def paired_p(values: Array) -> float:
    """Return the two-sided p value of Student's t test that the mean of differences (R,) is zero; NaN if one of them is."""
    if values.size < 2 or np.isnan(values).any():
        return np.nan
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if spread <= 1e-12 * abs(mean) or spread == 0.0:  # the same on all seeds
        return 1.0 if mean == 0.0 else 0.0
    return float(2.0 * stdtr(values.size - 1, -abs(mean) / spread * np.sqrt(values.size)))


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected by Holm's step-down method; those that are NaN are not counted.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    given = np.array(p, np.float64)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    found = np.full(given.size, np.nan)
    found[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(order.size, 0, -1)), 1.0)
    return [float(value) for value in found]
