"""Kernels: Cholesky factor and solve of the symmetric M-matrices inside one allocation.

Such a matrix is given by what stands beside its diagonal (none of it positive) and by the excess of each row: diagonal
minus the size of the rest. Elimination in these terms only adds numbers of one sign, so the factor is accurate entry by
entry even where the matrix is singular to working precision (a component whose prices hardly matter).
"""

import numpy as np

from bilinq.arrays import Array
from bilinq.compiled import fast_kernel, kernel

LAPACK_FROM = 129
"""Order from which speed goes before accuracy entry by entry."""


@fast_kernel
def factor(m: Array, excess: Array) -> Array:
    """Return the lower Cholesky factor of the M-matrix with lower triangle `m` (k, k) and `excess` (k,); destroys both."""
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
    """Complete the symmetric matrix from its lower triangle and excess, the diagonal a little raised."""
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
