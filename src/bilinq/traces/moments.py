"""Count, mean and variance of numbers in groups, gathered batch by batch without keeping the numbers."""

import numpy as np

from bilinq.arrays import Array, IntArray


class Moments:
    """Count, mean and sum of squared deviations of each of K groups, merged pairwise as Chan, Golub and LeVeque do.

    Attributes
    ----------
    count : (K,) int array
    mean, deviation : (K,) arrays
        Zero in groups without numbers.

    Examples
    --------
    >>> moments = Moments(2)
    >>> moments.add(np.array([0, 0, 1]), np.array([1.0, 2.0, 5.0]))
    >>> moments.add(np.array([0]), np.array([6.0]))
    >>> moments.mean, moments.variance
    (array([3., 5.]), array([ 7., nan]))
    """

    def __init__(self, groups: int) -> None:
        self.count: IntArray = np.zeros(groups, np.int64)
        self.mean: Array = np.zeros(groups)
        self.deviation: Array = np.zeros(groups)

    def add(self, group: IntArray, value: Array) -> None:
        """Take in values (M,), each with the number of its group (M,)."""
        size = self.count.size
        fresh = np.bincount(group, minlength=size)
        mean = np.bincount(group, value, size) / np.maximum(fresh, 1)
        deviation = np.bincount(group, (value - mean[group]) ** 2, size)
        total = np.maximum(self.count + fresh, 1)
        step = mean - self.mean
        self.deviation += deviation + step**2 * self.count * fresh / total
        self.mean += step * fresh / total
        self.count += fresh

    @property
    def variance(self) -> Array:
        """Sample variance of each group (K,), NaN below two numbers."""
        return np.where(self.count > 1, self.deviation / np.maximum(self.count - 1, 1), np.nan)
