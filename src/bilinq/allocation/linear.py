"""Kernels: Cholesky factor and solve of the symmetric M-matrices inside one allocation.

Such a matrix is given by its off-diagonal entries (none is positive) and by the excess of each row: the diagonal minus
the absolute sum of the other entries. Elimination in these terms only adds numbers of one sign. So the factor is accurate
entry by entry, even where the matrix is singular to working precision (a component whose prices hardly matter).
"""

import numpy as np

from bilinq.arrays import Array
from bilinq.jit import fast_kernel, kernel

LAPACK_FROM = 401
"""Order from which LAPACK is used: faster, but with threads and without accuracy entry by entry."""


@fast_kernel
def gram(d: Array, weight: Array, m: Array) -> None:
    """Fill the part of `m` (k, k) below the diagonal with that of -d' diag(weight) d, for `d` (h, k).

    With eight rows at a time this is as fast as a BLAS on one core. On several cores a BLAS is hardly faster at these
    sizes, and far slower while another process uses one of them.
    """
    size = m.shape[0]
    for k in range(size):
        for g in range(k):
            m[k, g] = 0.0
    whole = d.shape[0] - d.shape[0] % 8
    for i in range(0, whole, 8):
        for k in range(size):
            v0, v1 = weight[i] * d[i, k], weight[i + 1] * d[i + 1, k]
            v2, v3 = weight[i + 2] * d[i + 2, k], weight[i + 3] * d[i + 3, k]
            v4, v5 = weight[i + 4] * d[i + 4, k], weight[i + 5] * d[i + 5, k]
            v6, v7 = weight[i + 6] * d[i + 6, k], weight[i + 7] * d[i + 7, k]
            for g in range(k):
                half = v0 * d[i, g] + v1 * d[i + 1, g] + v2 * d[i + 2, g] + v3 * d[i + 3, g]
                m[k, g] -= half + v4 * d[i + 4, g] + v5 * d[i + 5, g] + v6 * d[i + 6, g] + v7 * d[i + 7, g]
    for i in range(whole, d.shape[0]):
        for k in range(size):
            v = weight[i] * d[i, k]
            for g in range(k):
                m[k, g] -= v * d[i, g]


@fast_kernel
def factor(m: Array, excess: Array) -> Array:
    """Return the lower Cholesky factor of the M-matrix with lower triangle `m` (k, k) and `excess` (k,); overwrites both."""
    size = m.shape[0]
    if size >= LAPACK_FROM:
        close(m, excess)
        m[:] = np.linalg.cholesky(m)
        return m
    for k in range(size):
        pivot = excess[k]
        for i in range(k + 1, size):
            beside = m[i, k]
            for h in range(k):
                beside -= m[i, h] * m[k, h]
            m[i, k] = beside
            pivot -= beside
        if not pivot > 0.0:
            pivot = np.inf
        root = np.sqrt(pivot)
        m[k, k] = root
        for i in range(k + 1, size):
            excess[i] -= m[i, k] * excess[k] / pivot
            m[i, k] /= root
    return m


@kernel
def close(m: Array, excess: Array) -> None:
    """Complete the symmetric matrix from its lower triangle and excess, with a slightly larger diagonal."""
    size = m.shape[0]
    for i in range(size):
        m[i, i] = 0.0
        for j in range(i):
            m[j, i] = m[i, j]
    for i in range(size):
        beside = 0.0
        for j in range(size):
            beside -= m[i, j]
        m[i, i] = beside * (1.0 + 1e-15 * size) + max(excess[i], 1e-300)


@fast_kernel
def solve(lower: Array, b: Array) -> None:
    """Overwrite `b` (k,) with the solution of lower lower' x = b."""
    size = lower.shape[0]
    for i in range(size):
        x = b[i]
        for j in range(i):
            x -= lower[i, j] * b[j]
        b[i] = x / lower[i, i]
    for i in range(size - 1, -1, -1):
        b[i] /= lower[i, i]
        x = b[i]
        for j in range(i):
            b[j] -= lower[i, j] * x
