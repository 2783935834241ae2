"""Kernels: a primal-dual interior point method for the allocation program, Eq. (6), on a packed set of pairs.

It comes close to the optimum in few steps, however far its start is; `balance` does the rest.

The state is five arrays. Row i works on the columns `cols[i, :width[i]]`. `pair` (fields, I, K) keeps the numbers of such
pairs, `row` (fields, I) those of job classes, and `col` (fields, J) those of server classes. The names below are the
fields. The central path is weighted (a pair by a_i n_j / N, a column by n_j A / N, a cap by a_i), so that a tiny class
converges as fast, relatively, as a big one.
"""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.jit import fast_kernel, inlined_kernel, kernel

SAFETY = 0.995  # how far towards the boundary one step may go
MATRIX_FROM = 48  # rows from which a blocked matrix product beats plain loops
ROUNDING = 4e-15
"""Violations below this part of the numbers they come from are rounding errors, which the last steps would amplify."""

C, Y, Z, DY, DZ, D, OVER_Z, PULL = range(8)
"""Of a pair: cost, allocation, reduced cost, their steps, y / z, 1 / z, and what the row asks for at fixed prices."""
A, U, M, E, DM, DE, S, H, F, PULLS, CAP, GAP_M, OFF, RISE = range(14)
"""Of a row: a_i, its cap (infinite if none), the cap's price and slack, their steps, row sum, curvature, 1 / (1 + h sum D),
sum of pulls, the price change that the cap alone asks for, wanted change of the product m e, violated cap, and the step of
its price."""
N, Q, T, DQ, DT, IDLE, GAP_T, EXCESS, LOAD, OVER_LOAD = range(10)
"""Of a column: capacity, price, idle capacity, their steps, violated capacity, wanted change of the product t q, diagonal
excess of the price system, sum_i D + t / q and its inverse."""


@fast_kernel
def start_cold(pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray) -> None:
    """Set an interior point whose row prices are at least twice A / N."""
    base = 2.0 * row[A].sum() / col[N].sum()
    for j in range(col.shape[1]):
        col[Q, j] = 2.0 * base
        col[T, j] = col[N, j]
        col[DQ, j] = 0.0
        col[DT, j] = 0.0
    for i in range(row.shape[1]):
        row[M:, i] = 0.0
        row[E, i] = 1.0
        least = np.inf
        for k in range(width[i]):
            least = min(least, pair[C, i, k])
        price = max(base, least)
        total = 0.0
        for k in range(width[i]):
            pair[Z, i, k] = pair[C, i, k] + 2.0 * base - price
            pair[Y, i, k] = col[N, cols[i, k]] * min(1.0, 10.0 * price / pair[Z, i, k])
            total += pair[Y, i, k]
        settle_row(pair, row, col, cols, width, i, price, max(price, 2.0 * row[A, i] / row[U, i]), total)
    for j in range(col.shape[1]):
        col[T, j] = max(col[T, j], 0.25 * col[N, j])


@inlined_kernel
def settle_row(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, i: int, price: float, marginal: float,
    total: float,
) -> None:  # fmt: skip
    """Scale row i from sum `total` to a_i / `marginal`, charge its columns, and open its cap."""
    service = row[A, i] / marginal
    for k in range(width[i]):
        pair[Y, i, k] *= service / total
        col[T, cols[i, k]] -= pair[Y, i, k]
    if row[U, i] < np.inf:
        row[M, i] = max(marginal - price, 0.1 * price)
        row[E, i] = max(row[U, i] - service, 0.01 * row[U, i])


@fast_kernel
def measure(pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, every: bool) -> float:
    """Fill what the step needs from the point; return the sum of its complementarity products."""
    gap = 0.0
    for j in range(col.shape[1]):
        col[IDLE, j] = col[N, j] - col[T, j]
        gap += col[T, j] * col[Q, j]
    for i in range(row.shape[1]):
        s = 0.0
        d = 0.0
        for k in range(width[i]):
            y = pair[Y, i, k]
            z = pair[Z, i, k]
            s += y
            gap += y * z
            col[IDLE, (k if every else cols[i, k])] -= y
            z = 1.0 / z
            pair[OVER_Z, i, k] = z
            pair[D, i, k] = y * z
            d += y * z
        row[S, i] = s
        if row[U, i] < np.inf:
            row[OFF, i] = beyond(row[U, i] - s - row[E, i], row[U, i])
        gap += row[M, i] * row[E, i]
        row[H, i] = row[A, i] / (s * s) + row[M, i] / row[E, i]
        row[F, i] = 1.0 / (1.0 + row[H, i] * d)
    for j in range(col.shape[1]):
        col[IDLE, j] = beyond(col[IDLE, j], col[N, j])
    return gap


@inlined_kernel
def beyond(violation: float, scale: float) -> float:
    """Return `violation`, or zero where it is within rounding of `scale`."""
    return violation if abs(violation) > ROUNDING * scale else 0.0


@fast_kernel
def price_system(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, every: bool, schur: Array
) -> Array:
    """Return the Cholesky factor of the system for the price step, an M-matrix of order J, or I if `schur` is smaller."""
    if schur.shape[0] < col.shape[1]:
        return row_system(pair, row, col, schur)
    for j in range(col.shape[1]):
        col[EXCESS, j] = col[T, j] / col[Q, j]
    for i in range(row.shape[1]):
        for k in range(width[i]):
            col[EXCESS, (k if every else cols[i, k])] += pair[D, i, k] * row[F, i]
    for g in range(schur.shape[0]):
        for h in range(g):
            schur[g, h] = 0.0
    if every and schur.shape[0] >= MATRIX_FROM:
        gram(pair[D], row[H] * row[F], schur)
        return factor(schur, col[EXCESS])
    for i in range(row.shape[1]):
        weight = row[H, i] * row[F, i]
        for k in range(width[i]):
            v = weight * pair[D, i, k]
            j = cols[i, k]
            if every:
                for g in range(k):
                    schur[k, g] -= v * pair[D, i, g]
                continue
            for g in range(k):
                other = cols[i, g]
                schur[max(j, other), min(j, other)] -= v * pair[D, i, g]
    return factor(schur, col[EXCESS])


@fast_kernel
def row_system(pair: Array, row: Array, col: Array, schur: Array) -> Array:
    """Return the factor of the system in the rows' prices, for few rows that contain all columns in order."""
    rows, columns = row.shape[1], col.shape[1]
    for j in range(columns):
        col[LOAD, j] = col[T, j] / col[Q, j]
        col[EXCESS, j] = col[LOAD, j]
    for i in range(rows):
        for j in range(columns):
            col[LOAD, j] += pair[D, i, j]
    for j in range(columns):
        col[OVER_LOAD, j] = 1.0 / col[LOAD, j]
        col[EXCESS, j] *= col[OVER_LOAD, j]
    for i in range(rows):
        rise = 1.0 / row[H, i]
        for j in range(columns):
            rise += pair[D, i, j] * col[EXCESS, j]
        row[RISE, i] = rise
    if rows >= MATRIX_FROM:
        gram(pair[D].T.copy(), col[OVER_LOAD], schur)
        return factor(schur, row[RISE])
    for i in range(rows):
        for g in range(i):
            shared = 0.0
            for j in range(columns):
                shared += pair[D, i, j] * pair[D, g, j] * col[OVER_LOAD, j]
            schur[i, g] = -shared
    return factor(schur, row[RISE])


@fast_kernel
def direction(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, every: bool, lower: Array, mu: float,
    second: float,
) -> float:  # fmt: skip
    """Fill the step to products `mu` times their weight; return the longest multiple that keeps the point positive.

    The products of the previous step are subtracted `second` times (Mehrotra's correction). `second` is smaller after a
    short step, or the method may cycle.
    """
    per_server = mu / col[N].sum()
    per_column = per_server * row[A].sum()
    for j in range(col.shape[1]):
        col[GAP_T, j] = per_column * col[N, j] - col[T, j] * col[Q, j] - second * col[DT, j] * col[DQ, j]
        col[DQ, j] = col[GAP_T, j] / col[Q, j] - col[IDLE, j]
    for i in range(row.shape[1]):
        price = row[A, i] / row[S, i] - row[M, i]
        if row[U, i] < np.inf:
            row[GAP_M, i] = mu * row[A, i] - row[M, i] * row[E, i] - second * row[DM, i] * row[DE, i]
            row[CAP, i] = (row[GAP_M, i] - row[M, i] * row[OFF, i]) / row[E, i]
        pulls = 0.0
        for k in range(width[i]):
            j = k if every else cols[i, k]
            product = per_server * row[A, i] * col[N, j] - second * pair[DY, i, k] * pair[DZ, i, k]
            slack = price - pair[C, i, k] - col[Q, j] + pair[Z, i, k]
            slack = beyond(slack, price + row[M, i] + col[Q, j])
            pull = pair[D, i, k] * slack - pair[Y, i, k] + product * pair[OVER_Z, i, k]
            pair[DZ, i, k] = product
            pair[PULL, i, k] = pull
            pulls += pull
            col[DQ, j] += pull
        row[PULLS, i] = pulls
    if lower.shape[0] < col.shape[1]:
        solve_by_row(pair, row, col, lower)
    else:
        for i in range(row.shape[1]):
            rise = (row[H, i] * row[PULLS, i] + row[CAP, i]) * row[F, i]
            for k in range(width[i]):
                col[DQ, (k if every else cols[i, k])] -= rise * pair[D, i, k]
        solve(lower, col[DQ])
    return complete(pair, row, col, cols, width, every)


@inlined_kernel
def solve_by_row(pair: Array, row: Array, col: Array, lower: Array) -> None:
    """Replace col[DQ], the shortage of each column, by the price step, computed from the rows' prices."""
    for j in range(col.shape[1]):
        col[DQ, j] *= col[OVER_LOAD, j]
    for i in range(row.shape[1]):
        rise = row[PULLS, i] + row[CAP, i] / row[H, i]
        for j in range(col.shape[1]):
            rise -= pair[D, i, j] * col[DQ, j]
        row[RISE, i] = rise
    solve(lower, row[RISE])
    for i in range(row.shape[1]):
        rise = row[RISE, i]
        for j in range(col.shape[1]):
            col[DQ, j] -= pair[D, i, j] * rise * col[OVER_LOAD, j]


@inlined_kernel
def complete(pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, every: bool) -> float:
    """Fill the rest of the step from its price part; return the longest multiple that keeps the point positive."""
    worst = 1e-300
    for j in range(col.shape[1]):
        col[DT, j] = (col[GAP_T, j] - col[T, j] * col[DQ, j]) / col[Q, j]
        worst = max(worst, -col[DT, j] / col[T, j], -col[DQ, j] / col[Q, j])
    for i in range(row.shape[1]):
        pulls = row[PULLS, i]
        for k in range(width[i]):
            pulls -= pair[D, i, k] * col[DQ, (k if every else cols[i, k])]
        rise = (row[H, i] * pulls + row[CAP, i]) * row[F, i]
        ds = 0.0
        for k in range(width[i]):
            over_y = 1.0 / pair[Y, i, k]
            dy = pair[PULL, i, k] - pair[D, i, k] * (rise + col[DQ, (k if every else cols[i, k])])
            dz = pair[DZ, i, k] * over_y - pair[Z, i, k] * (1.0 + dy * over_y)
            ds += dy
            pair[DY, i, k] = dy
            pair[DZ, i, k] = dz
            worst = max(worst, -dy * over_y, -dz * pair[OVER_Z, i, k])
        if row[U, i] < np.inf:
            bend = row[A, i] / (row[S, i] * row[S, i])
            if row[M, i] > bend * row[E, i]:
                row[DM, i] = rise - bend * ds
                row[DE, i] = (row[GAP_M, i] - row[E, i] * row[DM, i]) / row[M, i]
            else:
                row[DE, i] = row[OFF, i] - ds
                row[DM, i] = (row[GAP_M, i] - row[M, i] * row[DE, i]) / row[E, i]
            worst = max(worst, -row[DE, i] / row[E, i], -row[DM, i] / row[M, i])
    return 1.0 / worst


@inlined_kernel
def move(pair: Array, row: Array, col: Array, width: IntArray, length: float, keep: float) -> float:
    """Return the sum of complementarity products `length` along the step; move there if `keep` is 1, not if it is 0."""
    gap = 0.0
    go = length * keep
    for j in range(col.shape[1]):
        gap += (col[T, j] + length * col[DT, j]) * (col[Q, j] + length * col[DQ, j])
        col[T, j] += go * col[DT, j]
        col[Q, j] += go * col[DQ, j]
    for i in range(row.shape[1]):
        for k in range(width[i]):
            gap += (pair[Y, i, k] + length * pair[DY, i, k]) * (pair[Z, i, k] + length * pair[DZ, i, k])
            pair[Y, i, k] += go * pair[DY, i, k]
            pair[Z, i, k] += go * pair[DZ, i, k]
        gap += (row[M, i] + length * row[DM, i]) * (row[E, i] + length * row[DE, i])
        row[M, i] += go * row[DM, i]
        row[E, i] += go * row[DE, i]
    return gap


@fast_kernel
def advance(pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, every: bool, schur: Array) -> float:
    """Take one predictor-corrector step; return the relative gap. With `every`, rows contain all columns in order."""
    weight = 2.0 * row[A].sum()
    for i in range(row.shape[1]):
        if row[U, i] < np.inf:
            weight += row[A, i]
    gap = measure(pair, row, col, cols, width, every)
    mu = float(gap / weight)
    lower = price_system(pair, row, col, cols, width, every, schur)
    length = min(1.0, direction(pair, row, col, cols, width, every, lower, 0.0, 0.0))
    aim = move(pair, row, col, width, length, 0.0) / gap
    length = direction(pair, row, col, cols, width, every, lower, mu * aim * aim * aim, min(1.0, 2.0 * length))
    return float(move(pair, row, col, width, min(1.0, SAFETY * length), 1.0) / weight)


LAPACK_FROM = 401  # order from which LAPACK is used: faster, but with threads and without accuracy entry by entry


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
        lower = np.linalg.cholesky(m)
        for i in range(size):
            for j in range(size):
                m[i, j] = lower[i, j]
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
