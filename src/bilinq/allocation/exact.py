"""Exact prices and zeros from the pairs that an interior point uses."""

import numpy as np

from bilinq.allocation.interior import DY, DZ, FLOW, LOAD, PRICE, RAW, ROUNDING, TRUE_A, A, C, M, N, Q, T, U, Y, Z
from bilinq.allocation.program import COLUMNS, FREE, ROWS, SEEN, START, USED, by_column
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel, kernel

DECISIVE = 9.0
"""How different the relative changes of allocation and reduced cost in the last step must be to decide a pair."""


@fast_kernel
def guess(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, mark: BoolArray, flag: BoolArray
) -> int:
    """Mark the pairs that are probably used and the columns that are probably idle; return how many pairs.

    A long last step decides: it shrinks the reduced cost of a used pair, and the allocation of an idle one. After a short
    step the larger of both decides, each relative to its scale.
    """
    capacity = col[N].sum()
    level = row[A].sum() / capacity
    marked = 0
    for j in range(col.shape[1]):
        flag[FREE, j] = col[T, j] * level > col[Q, j] * col[N, j]
    for i in range(width.size):
        best = 0
        s = 0.0
        for k in range(width[i]):
            s += pair[Y, i, k]
        price = row[A, i] / s - row[M, i]
        for k in range(width[i]):
            growth = pair[DY, i, k] * pair[Z, i, k] - pair[DZ, i, k] * pair[Y, i, k]
            if abs(growth) > DECISIVE * pair[Y, i, k] * pair[Z, i, k]:
                mark[USED, i, k] = growth > 0.0
            else:
                mark[USED, i, k] = pair[Y, i, k] * price * capacity > pair[Z, i, k] * s * col[N, cols[i, k]]
            if pair[Z, i, k] < pair[Z, i, best]:
                best = k
        mark[USED, i, best] = True
        for k in range(width[i]):
            marked += mark[USED, i, k]
    return marked


@kernel
def recall(pair: Array, cols: IntArray, width: IntArray, y: Array, q: Array, mark: BoolArray, flag: BoolArray) -> None:
    """Mark the pairs that another solution `y` (I, J) uses (else the cheapest at its prices `q`), and its idle columns."""
    for j in range(q.size):
        flag[FREE, j] = q[j] == 0.0
    for i in range(width.size):
        best = 0
        some = False
        for k in range(width[i]):
            mark[USED, i, k] = y[i, cols[i, k]] > 0.0
            some = some or mark[USED, i, k]
            if q[cols[i, k]] + pair[C, i, k] < q[cols[i, best]] + pair[C, i, best]:
                best = k
        mark[USED, i, best] = mark[USED, i, best] or not some


@kernel
def exact_prices(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, mark: BoolArray, flag: BoolArray,
    number: IntArray,
) -> None:  # fmt: skip
    """Overwrite col[RAW], nearly right, and fill row[PRICE] with what the used pairs and the idle columns imply.

    A wrong guess leads to a negative price, a negative flow, a full idle column or a pair below the row's price.
    """
    size = col.shape[1]
    where = by_column(cols, width, mark[USED], size, number)
    for i in range(width.size):
        row[PRICE, i] = np.nan
    n_columns = 0
    for j in range(size):
        flag[SEEN, j] = flag[FREE, j]
        if flag[FREE, j]:
            col[RAW, j] = 0.0
            number[COLUMNS, n_columns] = j
            n_columns += 1
    root = -1
    while True:
        n_rows, n_columns = price_component(pair, row, col, cols, width, mark, flag, number, where, n_columns)
        if root >= 0 and n_rows > 0:
            shift = settling_shift(row, col, number, n_rows, n_columns)
            for g in range(n_columns):
                col[RAW, number[COLUMNS, g]] += shift
            for g in range(n_rows):
                row[PRICE, number[ROWS, g]] += shift
        root += 1
        while root < size and flag[SEEN, root]:
            root += 1
        if root == size:
            break
        flag[SEEN, root] = True
        number[COLUMNS, 0] = root
        n_columns = 1


@kernel
def price_component(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, mark: BoolArray, flag: BoolArray,
    number: IntArray, where: IntArray, n_columns: int,
) -> tuple[int, int]:  # fmt: skip
    """Set prices along the used pairs that can be reached from the listed columns; return how many rows and columns."""
    n_rows = 0
    head = 0
    while head < n_columns:
        j = number[COLUMNS, head]
        head += 1
        for g in range(number[START, j], number[START, j + 1]):
            i = where[0, g]
            if not np.isnan(row[PRICE, i]):
                continue
            row[PRICE, i] = col[RAW, j] + pair[C, i, where[1, g]]
            number[ROWS, n_rows] = i
            n_rows += 1
            for k in range(width[i]):
                other = cols[i, k]
                if mark[USED, i, k] and not flag[SEEN, other]:
                    flag[SEEN, other] = True
                    col[RAW, other] = row[PRICE, i] - pair[C, i, k]
                    number[COLUMNS, n_columns] = other
                    n_columns += 1
    return n_rows, n_columns


@kernel
def settling_shift(row: Array, col: Array, number: IntArray, n_rows: int, n_columns: int) -> float:
    """Return the change of all prices at which the demand of a component's rows equals its capacity.

    Safeguarded Newton steps on 1 / demand, which is nearly linear in the shift and exactly so for a single row.
    """
    capacity = 0.0
    for g in range(n_columns):
        capacity += col[N, number[COLUMNS, g]]
    lowest = np.inf
    for g in range(n_rows):
        lowest = min(lowest, row[PRICE, number[ROWS, g]])
    low = -lowest
    high = np.inf
    shift = 0.0
    for _ in range(100):
        demand = 0.0
        slope = 0.0
        uncap = np.inf
        for g in range(n_rows):
            i = number[ROWS, g]
            over = 1.0 / (row[PRICE, i] + shift)
            v = row[TRUE_A, i] * over
            if v < row[U, i]:
                demand += v
                slope += v * over
            else:
                demand += row[U, i]
                uncap = min(uncap, row[TRUE_A, i] / row[U, i] - row[PRICE, i])
        excess = demand - capacity
        if slope == 0.0 and excess <= ROUNDING * capacity:
            break
        step = excess / slope * (demand / capacity) if slope > 0.0 else 1.01 * (uncap - shift)
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
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, mark: BoolArray, flag: BoolArray,
    tie: float,
) -> int:  # fmt: skip
    """Change the guess where its implied prices or flows contradict it; return the number of contradictions.

    Of the pairs with a negative flow only the one leaves that the interior point considers least used, since one wrong
    pair makes the flows of others negative.
    """
    found = 0
    for j in range(col.shape[1]):
        col[LOAD, j] = 0.0
    least = np.inf
    drop_row, drop_place = -1, -1
    for i in range(width.size):
        best = 0
        for k in range(width[i]):
            j = cols[i, k]
            flow = pair[FLOW, i, k]
            col[LOAD, j] += flow
            if mark[USED, i, k] and flow < -tie * col[N, j]:
                found += 1
                trust = pair[Y, i, k] / (pair[Z, i, k] * row[A, i] * col[N, j])
                if drop_row < 0 or trust < least:
                    least = trust
                    drop_row, drop_place = i, k
            if col[RAW, j] + pair[C, i, k] < col[RAW, cols[i, best]] + pair[C, i, best]:
                best = k
        cheapest = col[RAW, cols[i, best]] + pair[C, i, best]
        if cheapest < row[PRICE, i] * (1.0 - tie) and not mark[USED, i, best]:
            mark[USED, i, best] = True
            found += 1
    for j in range(col.shape[1]):
        if col[RAW, j] < 0.0 or (flag[FREE, j] and col[LOAD, j] > col[N, j] * (1.0 + tie)):
            flag[FREE, j] = col[RAW, j] < 0.0
            found += 1
    if drop_row >= 0:
        mark[USED, drop_row, drop_place] = False
    return found
