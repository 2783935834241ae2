"""Kernels: from a nearly optimal point to prices that are exact to rounding.

At the optimum the used pairs form a graph. Along a used pair the row price is q_j + c_ij, so one number fixes all prices
of a connected component: zero at a server class with idle capacity, else the number at which the component's demand
equals its capacity, Eq. (9).
"""

import numpy as np

from bilinq.allocation.interior import ROUNDING, A, C, M, N, Q, T, U, Y, Z
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.compiled import fast_kernel, kernel


@fast_kernel
def guess(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, tight: BoolArray, free: BoolArray
) -> int:
    """Mark the pairs that look used and the columns that look idle, by primal against dual share; return the pairs."""
    capacity = col[N].sum()
    level = row[A].sum() / capacity
    marked = 0
    for j in range(free.size):
        free[j] = col[T, j] * level > col[Q, j] * col[N, j]
    for i in range(width.size):
        best = 0
        s = 0.0
        for k in range(width[i]):
            s += pair[Y, i, k]
        price = row[A, i] / s - row[M, i]
        for k in range(width[i]):
            tight[i, k] = pair[Y, i, k] * price * capacity > pair[Z, i, k] * s * col[N, cols[i, k]]
            if pair[Z, i, k] < pair[Z, i, best]:
                best = k
        tight[i, best] = True
        for k in range(width[i]):
            marked += tight[i, k]
    return marked


@kernel
def recall(pair: Array, cols: IntArray, width: IntArray, y: Array, q: Array, tight: BoolArray, free: BoolArray) -> None:
    """Mark the pairs that another solution `y` (I, J) used, or the cheapest at its prices `q`, and its idle columns."""
    for j in range(free.size):
        free[j] = q[j] == 0.0
    for i in range(width.size):
        best = 0
        some = False
        for k in range(width[i]):
            tight[i, k] = y[i, cols[i, k]] > 0.0
            some = some or tight[i, k]
            if q[cols[i, k]] + pair[C, i, k] < q[cols[i, best]] + pair[C, i, best]:
                best = k
        tight[i, best] = tight[i, best] or not some


@kernel
def by_column(cols: IntArray, width: IntArray, tight: BoolArray, start: IntArray) -> IntArray:
    """Return rows and packed places (2, pairs) of the tight pairs, column after column; fill where each one starts."""
    for j in range(start.size):
        start[j] = 0
    for i in range(width.size):
        for k in range(width[i]):
            if tight[i, k]:
                start[cols[i, k] + 1] += 1
    for j in range(start.size - 1):
        start[j + 1] += start[j]
    where = np.empty((2, start[-1]), np.int64)
    fill = start.copy()
    for i in range(width.size):
        for k in range(width[i]):
            if tight[i, k]:
                g = fill[cols[i, k]]
                where[0, g] = i
                where[1, g] = k
                fill[cols[i, k]] += 1
    return where


@kernel
def exact_prices(
    pair: Array,
    a: Array,
    row: Array,
    col: Array,
    cols: IntArray,
    width: IntArray,
    tight: BoolArray,
    free: BoolArray,
    q: Array,
    price: Array,
) -> None:
    """Overwrite `q` (J,), nearly right, and fill `price` (I,) with what the tight pairs and the idle columns imply.

    A wrong guess shows: in a negative price, a negative flow, a full idle column or a pair below the row's price.
    """
    seen = free.copy()
    start = np.empty(q.size + 1, np.int64)
    where = by_column(cols, width, tight, start)
    price[:] = np.nan
    columns = np.empty(q.size, np.int64)
    members = np.empty(width.size, np.int64)
    n_columns = 0
    for j in range(q.size):
        if free[j]:
            q[j] = 0.0
            columns[n_columns] = j
            n_columns += 1
    root = -1
    while True:
        n_rows = 0
        head = 0
        while head < n_columns:
            j = columns[head]
            head += 1
            for g in range(start[j], start[j + 1]):
                i = where[0, g]
                if not np.isnan(price[i]):
                    continue
                price[i] = q[j] + pair[C, i, where[1, g]]
                members[n_rows] = i
                n_rows += 1
                for k in range(width[i]):
                    other = cols[i, k]
                    if tight[i, k] and not seen[other]:
                        seen[other] = True
                        q[other] = price[i] - pair[C, i, k]
                        columns[n_columns] = other
                        n_columns += 1
        if root >= 0 and n_rows > 0:
            shift = settling_shift(a, row, col, price, members, n_rows, columns, n_columns)
            for g in range(n_columns):
                q[columns[g]] += shift
            for g in range(n_rows):
                price[members[g]] += shift
        root += 1
        while root < q.size and seen[root]:
            root += 1
        if root == q.size:
            break
        seen[root] = True
        columns[0] = root
        n_columns = 1


@kernel
def settling_shift(
    a: Array, row: Array, col: Array, price: Array, members: IntArray, n_rows: int, columns: IntArray, n_columns: int
) -> float:
    """Return the change of all prices at which a component's rows want just its capacity, by safeguarded Newton."""
    capacity = 0.0
    for g in range(n_columns):
        capacity += col[N, columns[g]]
    lowest = np.inf
    for g in range(n_rows):
        lowest = min(lowest, price[members[g]])
    low = -lowest
    high = np.inf
    shift = 0.0
    for _ in range(100):
        demand = 0.0
        slope = 0.0
        uncap = np.inf
        for g in range(n_rows):
            i = members[g]
            v = a[i] / (price[i] + shift)
            if v < row[U, i]:
                demand += v
                slope += v / (price[i] + shift)
            else:
                demand += row[U, i]
                uncap = min(uncap, a[i] / row[U, i] - price[i])
        excess = demand - capacity
        if slope == 0.0 and excess <= ROUNDING * capacity:
            break
        step = excess / slope if slope > 0.0 else 1.01 * (uncap - shift)
        if abs(step) <= 1e-16 * (lowest + shift):
            break
        if excess > 0.0:
            low = shift
        else:
            high = shift
        shift += step
        if not low < shift < high:
            shift = 0.5 * (low + high) if high < np.inf else 2.0 * low + lowest
    return shift


@kernel
def revise(
    pair: Array,
    col: Array,
    cols: IntArray,
    width: IntArray,
    tight: BoolArray,
    free: BoolArray,
    q: Array,
    price: Array,
    y: Array,
    tie: float,
) -> int:
    """Change the guess where its implied prices `q` and `price` or flows `y` (I, K) contradict it; return how often."""
    found = 0
    load = np.zeros(q.size)
    worst = 0.0
    drop_row, drop_place = -1, -1
    for i in range(width.size):
        best = 0
        for k in range(width[i]):
            j = cols[i, k]
            load[j] += y[i, k]
            if tight[i, k] and y[i, k] < -tie * col[N, j]:
                found += 1
                if y[i, k] < worst * col[N, j]:
                    worst = y[i, k] / col[N, j]
                    drop_row, drop_place = i, k
            if q[j] + pair[C, i, k] < q[cols[i, best]] + pair[C, i, best]:
                best = k
        if q[cols[i, best]] + pair[C, i, best] < price[i] * (1.0 - tie) and not tight[i, best]:
            tight[i, best] = True
            found += 1
    for j in range(q.size):
        if q[j] < 0.0 or (free[j] and load[j] > col[N, j] * (1.0 + tie)):
            free[j] = q[j] < 0.0
            found += 1
    if worst < 0.0:
        tight[drop_row, drop_place] = False
    return found
