"""The last digits of a fixed point: idle pairs at exactly zero, the used ones by Newton's method on their own."""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.distributed.interior import TINY, Program, filled, residual

TIDY, POLISH, RIDGE = 1e-11, 20, 1e-10
"""A polished answer is taken if its residual is below the first or the search's; the number of its steps; and a part of
the diagonal that is added, since ties leave the split of a row open."""
UNCLEAR = 1e-3
"""A pair is idle if its share of the row is below this part of its relative slack."""
DENSE, TIED = 300, 2
"""More used pairs than the first are solved for as a sparse system, since they form a forest or nearly so; with more than
the second for each row and column they are tied, and the search's answer stays."""


def polished(program: Program, b: int) -> Array:
    """Return member b (I, K) with idle pairs at zero and the rest by Newton's method on their own, if that is better."""
    p = program
    share = p.y[b] / np.maximum(p.y[b].sum(axis=1, keepdims=True), TINY)
    y = np.where(p.live[b] & (share > UNCLEAR * p.zeta[b] / filled(p.marginal[b])[:, None]), p.y[b], 0.0)
    best, left = p.y[b], max(_residual(p, b, p.y[b]), TIDY)
    if np.count_nonzero(y) > max(DENSE, TIED * (len(y) + p.n.shape[1])):
        return np.asarray(best)
    for _ in range(POLISH):
        now = _residual(p, b, y)
        if now <= left:
            best, left = y, now
        if now <= 1e-14:
            break
        y = _newton(p, b, y)
    return np.asarray(best)


def _residual(p: Program, b: int, y: Array) -> float:
    """Return the residual of y (I, K) in member b."""
    price = p.penalty.price(p.pairs.loads(y[None]), p.n[[b]])
    return float(residual(y[None], p.a[[b]], p.c[[b]] + p.pairs.spread(price), p.live[[b]])[0])


def _newton(p: Program, b: int, y: Array) -> Array:
    """Return one Newton step on the used pairs of y (I, K), as far as all stay positive; the first at zero leaves them."""
    i, k = np.nonzero(y)
    j, n = p.pairs.server(i, k), p.n[b]
    served, z = y.sum(axis=1)[i], p.pairs.loads(y[None])[0]
    off = p.a[b, i] / served - p.c[b, i, k] - p.penalty.price(z, n)[j]
    bend, slope = p.a[b, i] / served**2, p.penalty.slope(np.maximum(z, TINY), n)[j]
    step = (_dense if len(i) <= DENSE else _sparse)(i, j, bend, slope, off)
    new, most = y.copy(), np.where(step < 0.0, y[i, k] / np.where(step < 0.0, -step, 1.0), np.inf)
    length = min(1.0, float(most.min()))
    new[i, k] = np.where(most <= length, 0.0, y[i, k] + length * step)
    return new


def _dense(i: IntArray, j: IntArray, bend: Array, slope: Array, off: Array) -> Array:
    """Return the step x (P,) of used pairs with bend sum_row x + slope sum_column x = off."""
    matrix = np.where(i[:, None] == i, bend, 0.0) + np.where(j[:, None] == j, slope, 0.0)
    np.fill_diagonal(matrix, matrix.diagonal() * (1.0 + RIDGE))
    return np.linalg.solve(matrix, off)


def _sparse(i: IntArray, j: IntArray, bend: Array, slope: Array, off: Array) -> Array:
    """Return the same with the sums of rows and columns as further unknowns."""
    from scipy.sparse import block_array, coo_array, diags_array, eye_array
    from scipy.sparse.linalg import spsolve

    node = np.unique(np.concatenate([i, i.max() + 1 + j]), return_inverse=True)[1]
    place = node, np.tile(np.arange(len(i)), 2)
    sums = coo_array((np.ones(2 * len(i)), place))
    force = coo_array((np.concatenate([bend, slope]), place[::-1]), sums.shape[::-1])
    nodes = sums.shape[0]
    matrix = block_array([[diags_array(RIDGE * (bend + slope)), force], [sums, -eye_array(nodes)]], format="csc")
    return np.asarray(spsolve(matrix, np.concatenate([off, np.zeros(nodes)])))[: len(i)]
