"""Kernels of the learners. Replications are the first axis; p = d1 d2; z_ij = u_i (x) v_j is built one pair at a time."""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel


@kernel
def block(up: IntArray, vp: IntArray, q: int, k: int, m: int, members: IntArray) -> int:
    """Fill `members` with the coordinates of the block of coordinate (k, m), in order, and return their number, Eq. (52)."""
    n = 0
    for x in range(up[q, 1, k], up[q, 2, k]):
        for h in range(vp[q, 1, m], vp[q, 2, m]):
            members[n] = up[q, 0, x] * vp.shape[2] + vp[q, 0, h]
            n += 1
    return n


@kernel
def first_used(features: Array, r: int, i: int) -> int:
    """Return the first column in which feature vector i is not zero; -1 if there is none."""
    for x in range(features.shape[2]):
        if features[r, i, x] != 0.0:
            return x
    return -1


@kernel
def observe(
    u: Array, v: Array, up: IntArray, vp: IntArray, count: IntArray, total: Array, squares: Array, gram: Array,
    inverse: Array, b: Array, log_det: Array, seen: Array, square: Array,
) -> None:  # fmt: skip
    """Add a slot's observations, Eq. (11): one rank-one update per pair, however many servers served it, Eq. (17).

    All products of z_ij are in one block; it is the only one that changes.
    """
    d2 = v.shape[2]
    p = b.shape[1]
    members = np.empty(p, np.int64)
    z = np.empty(p)
    g = np.empty(p)
    for r in range(count.shape[0]):
        q = r if up.shape[0] > 1 else 0
        for i in range(count.shape[1]):
            for j in range(count.shape[2]):
                n = count[r, i, j]
                if n == 0:
                    continue
                seen[r] += n
                square[r] += squares[r, i, j]
                k = first_used(u, r, i)
                m = first_used(v, r, j)
                if k < 0 or m < 0:
                    continue
                size = 0
                for a in range(up[q, 1, k], up[q, 2, k]):
                    x = up[q, 0, a]
                    for c in range(vp[q, 1, m], vp[q, 2, m]):
                        h = vp[q, 0, c]
                        members[size] = x * d2 + h
                        z[size] = u[r, i, x] * v[r, j, h]
                        size += 1
                norm = 0.0
                for a in range(size):
                    x = members[a]
                    s = 0.0
                    for h in range(size):
                        s += inverse[r, x, h] * z[h]
                    g[a] = s
                    norm += s * z[a]
                    b[r, x] += total[r, i, j] * z[a]
                scale = n / (1.0 + n * norm)
                for a in range(size):
                    x = members[a]
                    for h in range(size):
                        inverse[r, x, h] -= scale * g[a] * g[h]
                        gram[r, x, h] += n * z[a] * z[h]
                log_det[r] += np.log1p(n * norm)


@kernel
def estimate(up: IntArray, vp: IntArray, inverse: Array, b: Array, theta: Array) -> None:
    """Fill theta_hat = Lambda^-1 b, Eq. (11)."""
    members = np.empty(b.shape[1], np.int64)
    own = np.empty(inverse.shape[2])
    for q in range(up.shape[0]):
        begin = q if up.shape[0] > 1 else 0
        end = q + 1 if up.shape[0] > 1 else b.shape[0]
        k = 0
        while k < up.shape[2]:
            m = 0
            while m < vp.shape[2]:
                size = block(up, vp, q, up[q, 0, k], vp[q, 0, m], members)
                for r in range(begin, end):
                    for a in range(size):
                        own[a] = b[r, members[a]]
                    for a in range(size):
                        x = members[a]
                        s = 0.0
                        for h in range(size):
                            s += inverse[r, x, h] * own[h]
                        theta[r, x] = s
                m = vp[q, 2, vp[q, 0, m]]
            k = up[q, 2, up[q, 0, k]]


@kernel
def noise_scale(
    up: IntArray, vp: IntArray, gram: Array, b: Array, theta: Array, lam: Array, seen: Array, square: Array,
    prior: float, scale: Array,
) -> None:  # fmt: skip
    """Fill the estimated noise scale: residual sum of squares over degrees of freedom, near `prior` while data are few."""
    p = b.shape[1]
    members = np.empty(p, np.int64)
    for r in range(b.shape[0]):
        scale[r] = square[r]
    for q in range(up.shape[0]):
        begin = q if up.shape[0] > 1 else 0
        end = q + 1 if up.shape[0] > 1 else b.shape[0]
        k = 0
        while k < up.shape[2]:
            m = 0
            while m < vp.shape[2]:
                size = block(up, vp, q, up[q, 0, k], vp[q, 0, m], members)
                for r in range(begin, end):
                    for a in range(size):
                        x = members[a]
                        fit = -lam[r] * theta[r, x]
                        for h in range(size):
                            fit += gram[r, x, h] * theta[r, members[h]]
                        scale[r] += theta[r, x] * (fit - 2.0 * b[r, x])
                m = vp[q, 2, vp[q, 0, m]]
            k = up[q, 2, up[q, 0, k]]
    for r in range(b.shape[0]):
        scale[r] = np.sqrt((prior * prior + max(scale[r], 0.0)) / (1.0 + max(seen[r] - p, 0.0)))


@kernel
def sample(
    up: IntArray, vp: IntArray, inverse: Array, theta: Array, g: Array, slot: int, scale: Array, out: Array
) -> None:
    """Fill theta_hat + scale Lambda^(-1/2) g[:, slot], Eq. (16); the root is the Cholesky factor of the inverse.

    The factor of a block is a part of the factor of the whole, so the normal that a coordinate uses is the same in both.
    """
    members = np.empty(theta.shape[1], np.int64)
    low = np.empty((inverse.shape[2], inverse.shape[2]))
    own = np.empty(inverse.shape[2])
    for q in range(up.shape[0]):
        begin = q if up.shape[0] > 1 else 0
        end = q + 1 if up.shape[0] > 1 else theta.shape[0]
        k = 0
        while k < up.shape[2]:
            m = 0
            while m < vp.shape[2]:
                size = block(up, vp, q, up[q, 0, k], vp[q, 0, m], members)
                for r in range(begin, end):
                    for a in range(size):
                        own[a] = g[r, slot, members[a]]
                    for a in range(size):
                        x = members[a]
                        drawn = theta[r, x]
                        for h in range(a + 1):
                            s = inverse[r, x, h]
                            for c in range(h):
                                s -= low[a, c] * low[h, c]
                            low[a, h] = np.sqrt(max(s, 0.0)) if a == h else (s / low[h, h] if low[h, h] > 0.0 else 0.0)
                            drawn += scale[r] * low[a, h] * own[h]
                        out[r, x] = drawn
                m = vp[q, 2, vp[q, 0, m]]
            k = up[q, 2, up[q, 0, k]]


@kernel
def indices(
    u: Array, v: Array, up: IntArray, vp: IntArray, theta: Array, inverse: Array, beta: Array, out: Array
) -> None:
    """Fill clip(z' theta + beta sqrt(z' Lambda^-1 z)), Eq. (12), by contracting with v_j first, Eq. (17)."""
    d1 = u.shape[2]
    d2 = v.shape[2]
    half = np.empty(d1)
    inner = np.empty((d1, d1))
    w = np.empty(d2)
    for r in range(u.shape[0]):
        for j in range(v.shape[1]):
            for x in range(d1):
                half[x] = 0.0
                for h in range(d2):
                    half[x] += theta[r, x * d2 + h] * v[r, j, h]
            if beta[r] > 0.0:
                contract(up, vp, inverse, v, r, j, w, inner)
            for i in range(u.shape[1]):
                mean = 0.0
                width = 0.0
                for x in range(d1):
                    mean += u[r, i, x] * half[x]
                if beta[r] > 0.0:
                    for x in range(d1):
                        if u[r, i, x] == 0.0:
                            continue
                        for h in range(d1):
                            width += u[r, i, x] * inner[x, h] * u[r, i, h]
                    mean += beta[r] * np.sqrt(max(width, 0.0))
                out[r, i, j] = min(max(mean, -1.0), 1.0)


@kernel
def contract(up: IntArray, vp: IntArray, inverse: Array, v: Array, r: int, j: int, w: Array, inner: Array) -> None:
    """Fill the d1 x d1 matrix (I (x) v_j)' Lambda^-1 (I (x) v_j); w (d2,) is working space."""
    d1 = up.shape[2]
    d2 = vp.shape[2]
    q = r if up.shape[0] > 1 else 0
    m = first_used(v, r, j)
    if m < 0 or up[q, 2, 0] < d1:
        inner[:] = 0.0
    if m < 0:
        return
    start = vp[q, 1, m]
    size = vp[q, 2, m] - start
    for a in range(size):
        w[a] = v[r, j, vp[q, 0, start + a]]
    for x in range(d1):
        column = 0
        for k in range(up[q, 1, x], up[q, 2, x]):
            total = 0.0
            for a in range(size):
                row = x * d2 + vp[q, 0, start + a]
                for b in range(size):
                    total += w[a] * inverse[r, row, column + b] * w[b]
            inner[x, up[q, 0, k]] = total
            column += size


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
