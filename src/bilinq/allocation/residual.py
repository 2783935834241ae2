"""Kernel: the certificate of an allocation, Eq. (7), from the definition and nothing the solver knows."""

import numpy as np

from bilinq.arrays import Array
from bilinq.compiled import kernel

CAPPED = 1e-10
"""A row sum this close to its cap, relatively, counts as being at the cap."""


@kernel
def residual(a: Array, c: Array, n: Array, u: Array, y: Array, q: Array) -> float:
    """Return the largest relative violation of the optimality conditions of Eq. (7) by y (I, J) and q (J,)."""
    worst = 0.0
    load = np.zeros(n.size)
    cheapest = np.full(n.size, np.inf)
    for i in range(a.size):
        s = 0.0
        for j in range(n.size):
            s += y[i, j]
            worst = max(worst, -y[i, j])
            load[j] += y[i, j]
        if not s < np.inf:
            return np.inf
        if a[i] == 0.0 or u[i] == 0.0:
            worst = max(worst, s)
            continue
        worst = max(worst, s / u[i] - 1.0, row_violation(a[i], c[i], n, u[i], s, y[i], q))
        for j in range(n.size):
            cheapest[j] = min(cheapest[j], c[i, j])
    for j in range(n.size):
        if not q[j] >= 0.0 or (n[j] > 0.0 and q[j] == np.inf):
            return np.inf
        if n[j] > 0.0:
            idle = 1.0 - load[j] / n[j]
            worst = max(worst, -idle)
            if q[j] > 0.0:
                worst = max(worst, idle * q[j] / (q[j] + cheapest[j]))
        else:
            worst = max(worst, load[j])
    return worst


@kernel
def row_violation(a: float, c: Array, n: Array, u: float, s: float, y: Array, q: Array) -> float:
    """Return how far one row is from buying only at its lowest price and from valuing it at that price."""
    price = np.inf
    for j in range(n.size):
        if n[j] > 0.0:
            price = min(price, q[j] + c[j])
    if price == np.inf:
        return s
    value = a / s
    worst = value / price - 1.0
    if s >= u * (1.0 - CAPPED):
        worst = 0.0
    worst = max(worst, 1.0 - value / price)
    for j in range(n.size):
        if y[j] > 0.0:
            worst = max(worst, (q[j] + c[j]) / price - 1.0)
    return worst
