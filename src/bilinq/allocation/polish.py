"""Newton steps on the pairs in use: for the rare answers that rounding keeps above the tolerance.

With durations, prices of columns that share rows move at different speeds, so that rounding in one column may be a large
imbalance in another, however often it is removed. Newton steps on all conditions at once have no such order of columns.
"""

import numpy as np

from bilinq.allocation.arguments import Program
from bilinq.allocation.program import certificate
from bilinq.arrays import Array

STEPS = 4


def polish(program: Program, b: int, y: Array, q: Array, residual: Array, gap: Array) -> None:
    """Replace answer b of a batch, y (B, I, J) and q (B, J), with its certificate, by a better one if there is one."""
    with np.errstate(all="ignore"):
        a = program.weight[b] * program.queue[b] / program.V[b]
        c = program.gamma[b] - program.reward[b]
        if program.eligible.size:
            c = np.where(program.eligible[b], c, np.inf)
        m = program.duration[b] if program.duration.size else np.ones(c.shape)
        n, u = program.capacity[b], program.limit[b]
        some = y[b].copy(), np.where(n > 0.0, q[b], 0.0)
        for _ in range(STEPS):
            some = _step(a, c, m, n, u, *some)
            worst, distance = certificate(a, c, m, n, u, *some)
            if worst < residual[b]:
                y[b], q[b] = some[0], np.where(n > 0.0, some[1], q[b])
                residual[b], gap[b] = worst, distance


def _step(a: Array, c: Array, m: Array, n: Array, u: Array, y: Array, q: Array) -> tuple[Array, Array]:
    """Return flows and prices after a Newton step on the conditions of Eq. (7) for used pairs and columns with a price.

    Where no pair is used, or numbers overflow, there is none, and they stay as they are.
    """
    i, j = np.nonzero(y > 0.0)
    if not i.size:
        return y, q
    priced = np.flatnonzero(q > 0.0)
    first = np.r_[True, i[1:] != i[:-1]]  # the first pair of each row
    lead = np.maximum.accumulate(np.where(first, np.arange(i.size), 0))
    flow, time, cost = y[i, j], m[i, j], c[i, j] + m[i, j] * q[j]
    total = np.bincount(i, flow, a.size)[i]
    capped = a[i] > u[i] * cost
    error = np.where(first, np.where(capped, u[i] - total, a[i] / cost - total), cost[lead] - cost)
    load = n[priced] - np.bincount(j, time * flow, n.size)[priced]
    of_pairs, of_prices = np.zeros((i.size, i.size)), np.zeros((i.size, n.size))
    same_row = i[:, None] == i
    of_pairs[first] = same_row[first]
    k = np.arange(i.size)
    of_prices[k, j] += np.where(first, np.where(capped, 0.0, a[i] * time / cost**2), time)
    np.subtract.at(of_prices, (k, j[lead]), np.where(first, 0.0, time[lead]))
    loads = np.where(j == priced[:, None], time, 0.0)
    matrix = np.block([[of_pairs, of_prices[:, priced]], [loads, np.zeros((priced.size, priced.size))]])
    wanted = np.concatenate((error, load))
    if not (np.isfinite(matrix).all() and np.isfinite(wanted).all()):
        return y, q
    move = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    after, price = y.copy(), q.copy()
    after[i, j] = np.maximum(flow + move[: i.size], 0.0)
    price[priced] = np.maximum(q[priced] + move[i.size :], 0.0)
    used = (m * after).sum(axis=0)
    return after * np.where(used > n, n / used, 1.0), price
