"""Whether a sample agrees with a theoretical mean, at a stated false-alarm rate."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t

from bilinq.arrays import Array


def agrees(values: ArrayLike, expected: ArrayLike, *, false_alarm: float) -> bool:
    """Return whether independent `values` (R, ...) have the mean `expected` (...).

    Student's t, two-sided, in each component at `false_alarm` over their number: if all means are as expected, the
    answer is False with at most that chance. A component that never varies must be as expected, up to rounding.
    """
    sample = np.asarray(values, dtype=float)
    mean, error = sample.mean(axis=0), sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    reach = float(t.ppf(1.0 - false_alarm / (2 * max(mean.size, 1)), len(sample) - 1))
    return bool((np.abs(mean - np.asarray(expected)) <= reach * error + 1e-9).all())


def relative_error(values: ArrayLike, expected: ArrayLike) -> Array:
    """Return how far the mean of `values` (R, ...) is from `expected` (...), relatively."""
    wanted = np.asarray(expected, dtype=float)
    return np.asarray(np.asarray(values, dtype=float).mean(axis=0) / wanted - 1.0)
