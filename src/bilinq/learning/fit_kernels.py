"""Kernels of the regressions behind `PairModel`: their equations, evidence and solution, Eq. (58), (60) and (61).

Symmetric matrices are read and written in their lower half, except for the inverse.
"""

import numpy as np

from bilinq.arrays import Array
from bilinq.jit import fast_kernel, in_place_kernel, inlined_kernel
from bilinq.learning.memory import Memory


@in_place_kernel
def eliminate(
    m: Memory, j: int, mean: Array, shared: Array, kappa: float, precision: Array, right: Array
) -> tuple[float, float]:
    """Fill P_j - Lambda (d, d) and the right side (d,) of Eq. (58) for prior means `mean` (d,) and `shared` (I,).

    Return what is left of the squares, and the logarithm of the determinant of class pairs, Eq. (60). Class pairs without
    observations change nothing.
    """
    d = right.size
    square, determinant = m.square[j], 0.0
    for k in range(d):
        s = 0.0
        for h in range(d):
            s += m.gram[j, k, h] * mean[h]
        right[k] = m.moment[j, k] - s
        square += mean[k] * (s - 2.0 * m.moment[j, k])
        for h in range(k + 1):
            precision[k, h] = m.gram[j, k, h]
    for c in range(shared.size):
        n, b = m.total[c, j], shared[c]
        if n == 0.0:
            continue
        x, g, s = m.sums[c, j], 1.0 / (n + kappa), 0.0
        for k in range(d):
            s += x[k] * mean[k]
        rest = m.rewards[c, j] - s - n * b
        square += b * (2.0 * s + n * b - 2.0 * m.rewards[c, j]) - g * rest * rest
        determinant += np.log(n / kappa + 1.0)
        for k in range(d):
            right[k] -= x[k] * (b + g * rest)
            a, row = g * x[k], precision[k]
            for h in range(k + 1):
                row[h] -= a * x[h]
    return square, determinant


@in_place_kernel
def eliminate_all(
    m: Memory, mean: Array, shared: Array, kappa: float, precision: Array, right: Array
) -> tuple[float, float]:
    """Do the same for all server classes, and return the sums."""
    square, determinant = 0.0, 0.0
    for j in range(len(mean)):
        one, two = eliminate(m, j, mean[j], shared, kappa, precision[j], right[j])
        square += one
        determinant += two
    return square, determinant


@inlined_kernel
def products(rows: Array, k: int, b: Array, begin: int, end: int) -> tuple[float, float, float, float]:
    """Return the products of four rows from number k on with b, from place `begin` to before `end`.

    Four at a time share what they read. Slices begin at zero, which the compiler needs to know to vectorise the loop.
    """
    a0, a1, a2, a3 = rows[k, begin:end], rows[k + 1, begin:end], rows[k + 2, begin:end], rows[k + 3, begin:end]
    c, s0, s1, s2, s3 = b[begin:end], 0.0, 0.0, 0.0, 0.0
    for h in range(end - begin):
        s0 += a0[h] * c[h]
        s1 += a1[h] * c[h]
        s2 += a2[h] * c[h]
        s3 += a3[h] * c[h]
    return s0, s1, s2, s3


@inlined_kernel
def product(a: Array, b: Array, begin: int, end: int) -> float:
    """Return the product of a and b, from place `begin` to before `end`."""
    a, b, s = a[begin:end], b[begin:end], 0.0
    for h in range(end - begin):
        s += a[h] * b[h]
    return s


@in_place_kernel
def factorise(precision: Array, ridge: Array, L: Array) -> float:
    """Fill L with the Cholesky factor of `precision` + diag(`ridge`); return the logarithm of the determinant.

    Without rounding no pivot is below its ridge, since `precision` is at least zero. With rounding none is either.
    """
    d, determinant = ridge.size, 0.0
    for i in range(0, d - 3, 4):
        for k in range(i):
            s0, s1, s2, s3 = products(L, i, L[k], 0, k)
            pivot = L[k, k]
            L[i, k], L[i + 1, k] = (precision[i, k] - s0) / pivot, (precision[i + 1, k] - s1) / pivot
            L[i + 2, k], L[i + 3, k] = (precision[i + 2, k] - s2) / pivot, (precision[i + 3, k] - s3) / pivot
        for row in range(i, i + 4):
            determinant += factorise_row(precision, ridge, L, row, i)
    for row in range(d - d % 4, d):
        determinant += factorise_row(precision, ridge, L, row, 0)
    return determinant


@in_place_kernel
def factorise_row(precision: Array, ridge: Array, L: Array, i: int, first: int) -> float:
    """Fill row i of L from column `first` on, with those before given; return the logarithm of its pivot."""
    a = L[i]
    for k in range(first, i):
        a[k] = (precision[i, k] - product(a, L[k], 0, k)) / L[k, k]
    pivot = max(precision[i, i] - product(a, a, 0, i), 0.0) + ridge[i]
    a[i] = np.sqrt(pivot)
    return float(np.log(pivot))


@in_place_kernel
def forward(L: Array, right: Array, w: Array) -> float:
    """Fill w (d,) with L^-1 `right`; return the square of its length."""
    length = 0.0
    for i in range(w.size):
        a, s = L[i], right[i]
        for h in range(i):
            s -= a[h] * w[h]
        w[i] = s / a[i]
        length += w[i] * w[i]
    return length


@fast_kernel
def explain_all(precision: Array, right: Array, ridge: Array) -> tuple[float, float]:
    """Return what coefficients explain of the squares in all server classes, and the log-determinant of all P_j."""
    d = ridge.size
    L, w, explained, determinant = np.empty((d, d)), np.empty(d), 0.0, 0.0
    for j in range(len(right)):
        determinant += factorise(precision[j], ridge, L)
        explained += forward(L, right[j], w)
    return explained, determinant


@in_place_kernel
def shift(L: Array, right: Array, mean: Array, w: Array, theta: Array) -> None:
    """Fill theta (d,) with `mean` + P^-1 `right`, by the Cholesky factor of P."""
    d = w.size
    forward(L, right, w)
    for i in range(d - 1, -1, -1):
        w[i] /= L[i, i]
        a, s = L[i], w[i]
        for h in range(i):
            w[h] -= s * a[h]
    for k in range(d):
        theta[k] = mean[k] + w[k]


@in_place_kernel
def invert(L: Array, U: Array, inverse: Array) -> None:
    """Fill `inverse` (d, d) with that of L L'; the upper half of U (d, d) becomes the transpose of L^-1."""
    d = len(L)
    for k in range(d):
        U[k, k] = 1.0 / L[k, k]
    for k in range(0, d, 4):
        substitute(L, U, k, min(4, d - k))
    for k in range(d):
        u, row, h = U[k], inverse[k], 0
        while h <= k - 3:
            row[h], row[h + 1], row[h + 2], row[h + 3] = products(U, h, u, k, d)
            h += 4
        for last in range(h, k + 1):
            row[last] = product(U[last], u, k, d)
        for h in range(k):
            inverse[h, k] = row[h]


@in_place_kernel
def substitute(L: Array, U: Array, k: int, n: int) -> None:
    """Fill the rows k to k + n - 1 of U, n <= 4, right of the diagonal, which is given."""
    for row in range(k, k + n):
        for h in range(k, row):
            U[row, h] = 0.0
    for i in range(k + 1, len(L)):
        if n == 4 and i >= k + 4:
            s0, s1, s2, s3 = products(U, k, L[i], k, i)
            U[k, i], U[k + 1, i] = -s0 * U[i, i], -s1 * U[i, i]
            U[k + 2, i], U[k + 3, i] = -s2 * U[i, i], -s3 * U[i, i]
            continue
        for row in range(k, min(k + n, i)):
            U[row, i] = -product(U[row], L[i], row, i) * U[i, i]


@fast_kernel
def solve_all(precision: Array, right: Array, ridge: Array, mean: Array, theta: Array) -> None:
    """Fill the coefficients theta (J, d)."""
    d = ridge.size
    L, w = np.empty((d, d)), np.empty(d)
    for j in range(len(right)):
        factorise(precision[j], ridge, L)
        shift(L, right[j], mean[j], w, theta[j])


@fast_kernel
def invert_all(precision: Array, right: Array, ridge: Array, mean: Array, theta: Array, inverse: Array) -> None:
    """Fill the coefficients theta (J, d) and the inverse precision (J, d, d)."""
    d = ridge.size
    L, U, w = np.empty((d, d)), np.empty((d, d)), np.empty(d)
    for j in range(len(right)):
        factorise(precision[j], ridge, L)
        shift(L, right[j], mean[j], w, theta[j])
        invert(L, U, inverse[j])


@fast_kernel
def integrate_all(
    precision: Array, right: Array, ridge: Array, V: Array, shared: Array, moment: Array
) -> tuple[float, float]:
    """Add precision (d e, d e) and right side (d e,) of the shared part after deviations are integrated out, Eq. (61).

    Of server class j with features v they are Lambda - Lambda P_j^-1 Lambda and Lambda P_j^-1 `right`, each (x) v.
    Return what deviations alone explain of the squares, and the log-determinant of all P_j.
    """
    d, e = ridge.size, V.shape[1]
    L, U, inverse = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    w, theta, none = np.empty(d), np.empty(d), np.zeros(d)
    explained, determinant = 0.0, 0.0
    for j in range(len(right)):
        v = V[j]
        determinant += factorise(precision[j], ridge, L)
        shift(L, right[j], none, w, theta)
        invert(L, U, inverse)
        for a in range(d):
            explained += theta[a] * right[j, a]
            for x in range(e):
                moment[a * e + x] += v[x] * ridge[a] * theta[a]
                row, s = shared[a * e + x], v[x] * ridge[a]
                for h in range(a + 1):
                    t = s * ((h == a) - inverse[a, h] * ridge[h])
                    for y in range(e):
                        row[h * e + y] += t * v[y]
    return explained, determinant


@inlined_kernel
def combine(x: Array, first: Array, left: Array, own: Array) -> None:
    """Replace x (d,) by `first` x[0] + `left` x[k - 1] + `own` x[k]; x[0] stays."""
    for k in range(x.size - 1, 0, -1):
        x[k] = first[k] * x[0] + left[k] * x[k - 1] + own[k] * x[k]


@in_place_kernel
def transform(m: Memory, first: Array, left: Array, own: Array) -> None:
    """Replace the sums of regressors by those of `first` x[0] + `left` x[k - 1] + `own` x[k]; x[0] stays."""
    J, d = m.moment.shape
    for j in range(J):
        gram = m.gram[j]
        for k in range(d - 1, 0, -1):
            before, row = gram[k - 1], gram[k]
            for h in range(d):
                row[h] = first[k] * gram[0, h] + left[k] * before[h] + own[k] * row[h]
        for k in range(d):
            combine(gram[k], first, left, own)
        combine(m.moment[j], first, left, own)
        for c in range(len(m.total)):
            if m.total[c, j] > 0.0:
                combine(m.sums[c, j], first, left, own)


@in_place_kernel
def unexplained(m: Memory, rest: Array) -> None:
    """Fill what the coefficients leave of the values of each pair of classes (I, J)."""
    for c in range(rest.shape[0]):
        for j in range(rest.shape[1]):
            s = m.rewards[c, j]
            if m.total[c, j] > 0.0:
                for k in range(m.theta.shape[1]):
                    s -= m.sums[c, j, k] * m.theta[j, k]
            rest[c, j] = s


@in_place_kernel
def class_loss(number: Array, rest: Array, kappa: float, shared: float, noise: float) -> float:
    """Return minus twice the log-likelihood of class pairs, Eq. (60), up to a constant.

    `number` and `rest` (I, J) are observations and sums of what coefficients leave of them. Deviations shrink by `kappa`
    observations, and what the server classes share of a job class by `shared`.
    """
    determinant, explained = 0.0, 0.0
    for c in range(number.shape[0]):
        weight, total = 0.0, 0.0
        for j in range(number.shape[1]):
            n, r = number[c, j], rest[c, j]
            if n > 0.0:
                part = kappa / (n + kappa)
                weight += part * n
                total += part * r
                determinant -= np.log(part)
                explained += r * r / (n + kappa)
        determinant += np.log1p(weight / shared)
        explained += total * total / (weight + shared)
    return float(determinant - explained / noise)
