"""Regressors of `PairModel`: a constant, standardised features of jobs and their squares, Eq. (71), and those of servers."""

import numpy as np

from bilinq.arrays import Array

SQUARED = 32  # features beyond which their squares are left out
UNKNOWN = 1e300  # scale of a square before features are standardised: it counts as nothing
FARTHEST = 1e3  # a square does not grow beyond
LARGEST_SHARED = 256  # coefficients of the shared part beyond which features of servers are left to the deviations


def unknown_standards(features: int, squares: bool) -> tuple[Array, Array]:
    """Return center and scale of regressors, without the constant, before features were standardised."""
    if not squares:
        return np.zeros(features), np.ones(features)
    return np.zeros(2 * features), np.tile([1.0, UNKNOWN], features)


def square_of(h: int, center: Array, scale: Array, to_center: float, to_scale: float) -> Array:
    """Return how the square of a feature, standardised by another center and scale, follows from regressors (d,), Eq. (71).

    The feature is regressor h, and its square, so far, regressor h + 1.
    """
    row, a, b = np.zeros(center.size), scale[h] / to_scale, (center[h] - to_center) / to_scale
    row[0], row[h], row[h + 1] = b * b + a * a * center[h + 1], 2.0 * a * b, a * a * scale[h + 1]
    return row


def carried_over(theta: Array, change: Array) -> Array:
    """Return the coefficients of regressors `change` @ x that say the same as `theta` (J, d) of x, by substitution.

    `change` is as in `Memory.transform`.
    """
    made = theta.copy()
    for k in range(len(change) - 1, 0, -1):
        if k + 1 < len(change):
            made[:, k] -= change[k + 1, k] * made[:, k + 1]
        made[:, k] /= change[k, k]
    made[:, 0] -= made[:, 1:] @ change[1:, 0]
    return made


def server_regressors(features: Array, d: int) -> Array:
    """Return a constant and features of servers (J, e) with mean 0 and root mean square 1; a constant if they tell nothing.

    They do not where there are as many of them as server classes (one-hot features, for example): coefficients of each
    server class then say the same.
    """
    J, e = features.shape
    if not 0 < e < J or d * (1 + e) > LARGEST_SHARED:
        return np.ones((J, 1))
    away = features - features.mean(axis=0)
    size = np.sqrt((away * away).mean(axis=0))
    return np.concatenate([np.ones((J, 1)), away / np.where(size > 0.0, size, 1.0)], axis=1)
