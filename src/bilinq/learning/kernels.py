"""Kernels of the learners. Replications are the first axis; p = d1 d2; z_ij = u_i (x) v_j is built one pair at a time."""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel


@kernel
def observe(
    u: Array, v: Array, count: IntArray, total: Array, squares: Array, gram: Array, inverse: Array, b: Array,
    log_det: Array, seen: Array, square: Array,
) -> None:  # fmt: skip
    """Add a slot's observations, Eq. (11): one rank-one update per pair, however many servers served it, Eq. (17)."""
    d2 = v.shape[2]
    p = b.shape[1]
    z = np.empty(p)
    g = np.empty(p)
    for r in range(count.shape[0]):
        for i in range(count.shape[1]):
            for j in range(count.shape[2]):
                k = count[r, i, j]
                if k == 0:
                    continue
                for x in range(p):
                    z[x] = u[r, i, x // d2] * v[r, j, x % d2]
                norm = 0.0
                for x in range(p):
                    g[x] = 0.0
                    for h in range(p):
                        g[x] += inverse[r, x, h] * z[h]
                    norm += g[x] * z[x]
                    b[r, x] += total[r, i, j] * z[x]
                scale = k / (1.0 + k * norm)
                for x in range(p):
                    for h in range(p):
                        inverse[r, x, h] -= scale * g[x] * g[h]
                        gram[r, x, h] += k * z[x] * z[h]
                log_det[r] += np.log1p(k * norm)
                seen[r] += k
                square[r] += squares[r, i, j]


@kernel
def estimate(inverse: Array, b: Array, theta: Array) -> None:
    """Fill theta_hat = Lambda^-1 b, Eq. (11)."""
    for r in range(b.shape[0]):
        for x in range(b.shape[1]):
            theta[r, x] = 0.0
            for h in range(b.shape[1]):
                theta[r, x] += inverse[r, x, h] * b[r, h]


@kernel
def noise_scale(
    gram: Array, b: Array, theta: Array, lam: Array, seen: Array, square: Array, prior: float, scale: Array
) -> None:
    """Fill the estimated noise scale: residual sum of squares over degrees of freedom, near `prior` while data are few."""
    p = b.shape[1]
    for r in range(b.shape[0]):
        rss = square[r]
        for x in range(p):
            fit = -lam[r] * theta[r, x]
            for h in range(p):
                fit += gram[r, x, h] * theta[r, h]
            rss += theta[r, x] * (fit - 2.0 * b[r, x])
        scale[r] = np.sqrt((prior * prior + max(rss, 0.0)) / (1.0 + max(seen[r] - p, 0.0)))


@kernel
def sample(inverse: Array, theta: Array, g: Array, slot: int, scale: Array, out: Array) -> None:
    """Fill theta_hat + scale Lambda^(-1/2) g[:, slot], Eq. (16); the root is the Cholesky factor of the inverse."""
    p = theta.shape[1]
    low = np.empty((p, p))
    for r in range(theta.shape[0]):
        for x in range(p):
            out[r, x] = theta[r, x]
            for h in range(x + 1):
                s = inverse[r, x, h]
                for k in range(h):
                    s -= low[x, k] * low[h, k]
                low[x, h] = np.sqrt(max(s, 0.0)) if x == h else (s / low[h, h] if low[h, h] > 0.0 else 0.0)
                out[r, x] += scale[r] * low[x, h] * g[r, slot, h]


@kernel
def indices(u: Array, v: Array, theta: Array, inverse: Array, beta: Array, out: Array) -> None:
    """Fill clip(z' theta + beta sqrt(z' Lambda^-1 z)), Eq. (12), by contracting with v_j first, Eq. (17)."""
    d1 = u.shape[2]
    d2 = v.shape[2]
    half = np.empty(d1)
    inner = np.empty((d1, d1))
    for r in range(u.shape[0]):
        for j in range(v.shape[1]):
            for x in range(d1):
                half[x] = 0.0
                for h in range(d2):
                    half[x] += theta[r, x * d2 + h] * v[r, j, h]
            if beta[r] > 0.0:
                contract(inverse[r], v[r, j], inner)
            for i in range(u.shape[1]):
                mean = 0.0
                width = 0.0
                for x in range(d1):
                    mean += u[r, i, x] * half[x]
                if beta[r] > 0.0:
                    for x in range(d1):
                        for h in range(d1):
                            width += u[r, i, x] * inner[x, h] * u[r, i, h]
                    mean += beta[r] * np.sqrt(max(width, 0.0))
                out[r, i, j] = min(max(mean, -1.0), 1.0)


@kernel
def contract(inverse: Array, v: Array, inner: Array) -> None:
    """Fill the d1 x d1 matrix (I (x) v)' Lambda^-1 (I (x) v)."""
    d2 = v.size
    for x in range(inner.shape[0]):
        for h in range(inner.shape[0]):
            total = 0.0
            for a in range(d2):
                for b in range(d2):
                    total += v[a] * inverse[x * d2 + a, h * d2 + b] * v[b]
            inner[x, h] = total


@kernel
def count_indices(count: Array, total: Array, own: bool, low: float, out: Array) -> None:
    """Fill min(mean + sqrt(2 log h / h_ij), 1), Eq. (18) to (20): h is the row's count, or h_ij itself with `own`."""
    for r in range(count.shape[0]):
        for i in range(count.shape[1]):
            row = 0.0
            for j in range(count.shape[2]):
                row += count[r, i, j]
            for j in range(count.shape[2]):
                h = count[r, i, j]
                out[r, i, j] = 1.0
                if h > 0.0:
                    bonus = np.sqrt(2.0 * np.log(h if own else row) / h)
                    out[r, i, j] = min(max(total[r, i, j] / h + bonus, low), 1.0)


@kernel
def add_counts(count: Array, total: Array, new_count: IntArray, new_total: Array, left: BoolArray) -> None:
    """Add a slot's observations to the counters; the counters of rows that left go back to zero."""
    for r in range(count.shape[0]):
        for i in range(new_count.shape[1]):
            for j in range(count.shape[2]):
                count[r, i, j] = 0.0 if left[r, i] else count[r, i, j] + new_count[r, i, j]
                total[r, i, j] = 0.0 if left[r, i] else total[r, i, j] + new_total[r, i, j]
