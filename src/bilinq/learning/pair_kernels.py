"""Kernels of `PairModel`: predictions and single observations, Eq. (58) and (59). Precision is in units of the noise."""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.jit import fast_kernel, kernel


@kernel
def standardise(features: Array, center: Array, scale: Array, x: Array) -> None:
    """Fill the regressors x (d,): a constant, then features (d - 1,) less `center` over `scale`; NaN becomes zero."""
    x[0] = 1.0
    for k in range(features.size):
        x[k + 1] = 0.0 if np.isnan(features[k]) else (features[k] - center[k + 1]) / scale[k + 1]


@fast_kernel
def predict(
    features: Array, kind: IntArray, rows: IntArray, center: Array, scale: Array, version: IntArray, total: Array,
    sums: Array, rewards: Array, shared: Array, doubt: Array, kappa: float, noise: float, inverse: Array, theta: Array,
    stamp: IntArray, mean: Array, width: Array,
) -> None:  # fmt: skip
    """Fill `rows` (K,) of `mean` and `width` (R, J) where the model has changed since `stamp` (R, J), Eq. (58)."""
    J, d = theta.shape
    x, z = np.empty(d), np.empty(d)
    for i in rows:
        c = kind[i]
        standardise(features[i], center, scale, x)
        for j in range(J):
            if stamp[i, j] == version[j]:
                continue
            stamp[i, j] = version[j]
            g = 1.0 / (total[c, j] + kappa)
            m = g * (rewards[c, j] + kappa * shared[c])
            for k in range(d):
                z[k] = x[k] - g * sums[c, j, k]
                m += z[k] * theta[j, k]
            q = g + (kappa * g) ** 2 * doubt[c]
            for k in range(d):
                s = 0.0
                for h in range(d):
                    s += inverse[j, k, h] * z[h]
                q += s * z[k]
            mean[i, j], width[i, j] = m, np.sqrt(noise * max(q, 0.0))


@fast_kernel
def observe(
    x: Array, c: int, j: int, y: float, weight: float, gram: Array, moment: Array, total: Array, sums: Array,
    rewards: Array, shared: Array, kappa: float, inverse: Array, theta: Array,
) -> tuple[float, float]:  # fmt: skip
    """Add an observation of class c on server class j, Eq. (59); return its error and the error's variance before it."""
    d = x.size
    g = 1.0 / (total[c, j] + kappa)
    z, step = np.empty(d), np.empty(d)
    m = g * (rewards[c, j] + kappa * shared[c])
    for k in range(d):
        z[k] = x[k] - g * sums[c, j, k]
        m += z[k] * theta[j, k]
    variance = 1.0 / weight + g
    for k in range(d):
        s = 0.0
        for h in range(d):
            s += inverse[j, k, h] * z[h]
        step[k] = s
        variance += s * z[k]
    error = y - m
    for k in range(d):
        theta[j, k] += step[k] * error / variance
        for h in range(d):
            inverse[j, k, h] -= step[k] * step[h] / variance
            gram[j, k, h] += weight * x[k] * x[h]
        moment[j, k] += weight * x[k] * y
        sums[c, j, k] += weight * x[k]
    total[c, j] += weight
    rewards[c, j] += weight * y
    return error, variance
