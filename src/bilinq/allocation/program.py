"""Kernels: the numbers of the program, its solution where no server class is full, the certificate, and marks of pairs."""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel

USED, LOOSE, SHUT = range(3)  # marks of a pair: probably used; still to be settled; tied, but can carry nothing
FREE, SEEN, FULL = range(3)  # marks of a column: probably idle; has a price already; has no idle capacity
START, FILL, COLUMNS, ROWS, DEGREE, TODO = range(6)
"""Rows of `number`: where each column's pairs start; its next pair; columns and rows of a component; loose pairs of each
row, followed by those of each column; and which of them to settle next."""


@kernel
def marks(rows: int, places: int) -> BoolArray:
    """Return marks of pairs (3, I, K), with any content."""
    return np.empty((3, rows, places), np.bool_)


@kernel
def room(rows: int, columns: int) -> tuple[BoolArray, IntArray]:
    """Return marks of columns (3, J) and numbers (6, 2 (I + J) + 1), with any content."""
    return np.empty((3, columns), np.bool_), np.empty((6, 2 * (rows + columns) + 1), np.int64)


@kernel
def by_column(cols: IntArray, width: IntArray, mark: BoolArray, columns: int, number: IntArray) -> IntArray:
    """Return rows and packed places (2, pairs) of the marked pairs by column; fill number[START] with where each starts."""
    for j in range(columns + 1):
        number[START, j] = 0
    for i in range(width.size):
        for k in range(width[i]):
            if mark[i, k]:
                number[START, cols[i, k] + 1] += 1
    for j in range(columns):
        number[FILL, j] = number[START, j]
        number[START, j + 1] += number[START, j]
    where = np.empty((2, number[START, columns]), np.int64)
    for i in range(width.size):
        for k in range(width[i]):
            if mark[i, k]:
                g = number[FILL, cols[i, k]]
                where[0, g] = i
                where[1, g] = k
                number[FILL, cols[i, k]] = g + 1
    return where


OVER = 1e-12  # a column may exceed its capacity by this part: rounding
CAPPED = 1e-10  # a row sum this close to its cap, relatively, counts as being at the cap
TIE = 1e-11  # reduced costs below this part of the row price count as zero


@kernel
def prepare(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, weight: Array, limit: Array, a: Array,
    c: Array,
) -> bool:  # fmt: skip
    """Fill a_i = w_i Q_i / V and c_ij = gamma - r_ij; return whether every number obeys the rules."""
    bad = 0
    bad += not 0.0 < V < np.inf
    bad += not 1.0 < gamma < np.inf
    for j in range(capacity.size):
        bad += not 0.0 <= capacity[j] < np.inf
    for i in range(queue.size):
        a[i] = weight[i] * queue[i] / V
        bad += not (0.0 <= queue[i] < np.inf and 0.0 < weight[i] < np.inf and limit[i] >= 0.0)
        bad += not a[i] < np.inf
        for j in range(capacity.size):
            cost = gamma - reward[i, j]
            c[i, j] = cost
            bad += (cost <= 0.0) | (cost == np.inf) | (cost != cost)
    return bad == 0


@kernel
def unsaturated(a: Array, c: Array, n: Array, u: Array, y: Array, q: Array) -> bool:
    """Try zero prices, Eq. (8): fill y and q; return True if no server class is asked for more than it has."""
    load = np.zeros(n.size)
    q[:] = 0.0
    for i in range(a.size):
        least = np.inf
        for j in range(n.size):
            y[i, j] = 0.0
            if n[j] > 0.0:
                least = min(least, c[i, j])
        if a[i] == 0.0 or u[i] == 0.0:
            continue
        tied = 0.0
        for j in range(n.size):
            if c[i, j] <= least * (1.0 + TIE):
                tied += n[j]
        if tied == 0.0:
            return False
        rate = min(a[i] / least, u[i]) / tied
        for j in range(n.size):
            if c[i, j] <= least * (1.0 + TIE):
                y[i, j] = rate * n[j]
                load[j] += y[i, j]
                if load[j] > n[j] * (1.0 + OVER):
                    return False
    return True


@kernel
def trim(n: Array, y: Array) -> None:
    """Scale columns that exceed their capacity by rounding back to it."""
    for j in range(n.size):
        load = 0.0
        for i in range(y.shape[0]):
            load += y[i, j]
        if n[j] < load <= n[j] * (1.0 + 2.0 * OVER):
            for i in range(y.shape[0]):
                y[i, j] *= n[j] / load


@kernel
def price_absent(a: Array, c: Array, n: Array, u: Array, q: Array) -> None:
    """Set the price of each class without servers to the lowest at which nobody wants it."""
    for j in range(n.size):
        if n[j] > 0.0:
            continue
        q[j] = 0.0
        for i in range(a.size):
            if a[i] > 0.0 and u[i] > 0.0:
                price = np.inf
                for k in range(n.size):
                    if n[k] > 0.0:
                        price = min(price, q[k] + c[i, k])
                q[j] = max(q[j], price - c[i, j])


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
    """Return how far one row is from buying only at its lowest price, and from a marginal value equal to that price."""
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
