"""Kernels: which pairs the interior point method works on.

An optimum uses about I + J - 1 of the I J pairs. So large programs start with the cheapest pairs of each row and add
others when the prices make them attractive. Where all rows want the same columns those are the wrong pairs: then the
first steps use every pair, and pairs leave when prices have ruled them out. The certificate always covers every pair.
"""

import numpy as np

from bilinq.allocation.interior import A, C, M, N, Q, T, Y, Z
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel

FEW = 24  # every pair is used up to this many columns, and where there are more columns than rows
STRIDE = 7919  # distance between the columns at which two neighbouring rows start their search; a prime
REACH = 10.0  # how far above the row's price a pair may cost to be added, in units of the gap
TRACE = 0.1  # a pair is ruled out if it carries less than this part of its share in proportion to capacity
RULED_OUT = 0.75  # the part of all pairs that must be ruled out before it pays to remove them


@fast_kernel
def pack(c: Array, q: Array, some: int, member: BoolArray) -> tuple[Array, IntArray, IntArray]:
    """Return `pair`, `cols` and `width` for the `some` cheapest eligible pairs of each row at prices `q` (J,); mark them.

    With `some` = J these are all eligible pairs, in order.
    """
    rows, columns = c.shape
    first = min(some, columns)
    room = min(columns, 3 * first)
    pair = np.zeros((8, rows, room))
    cols = np.zeros((rows, room), np.int64)
    width = np.empty(rows, np.int64)
    for i in range(rows):
        cheapest(c, q, i, first, cols)
        width[i] = 0
        for k in range(first):
            j = cols[i, k]
            if c[i, j] < np.inf:
                cols[i, width[i]] = j
                pair[C, i, width[i]] = c[i, j]
                member[i, j] = True
                width[i] += 1
    return pair, cols, width


@fast_kernel
def cheapest(c: Array, q: Array, i: int, wanted: int, cols: IntArray) -> None:
    """Fill the first `wanted` places of cols[i] with the columns of least c_ij + q_j; in order if all are wanted.

    Each row starts its search at another column, so that rows with many ties do not all choose the same ones.
    """
    size = 0
    columns = c.shape[1]
    begin = 0 if wanted == columns else (i * STRIDE) % columns
    for step in range(columns):
        j = (begin + step) % columns
        k = min(size, wanted - 1)
        if wanted < columns:
            v = c[i, j] + q[j]
            if size == wanted and v >= c[i, cols[i, k]] + q[cols[i, k]]:
                continue
            while k > 0 and v < c[i, cols[i, k - 1]] + q[cols[i, k - 1]]:
                cols[i, k] = cols[i, k - 1]
                k -= 1
        cols[i, k] = j
        size = min(size + 1, wanted)


@fast_kernel
def take_in(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, c: Array, member: BoolArray, mu: float
) -> int:
    """Add the pairs that are cheaper than their row's price, or nearly; return how many found no room.

    They start small: together at most a tenth of their row's sum, and half of the idle capacity of their column.
    """
    old = width.copy()
    added = np.zeros(c.shape[1])
    scale = mu / col[N].sum()
    lacking = 0
    for i in range(width.size):
        s = 0.0
        for k in range(width[i]):
            s += pair[Y, i, k]
        price = row[A, i] / s - row[M, i]
        bar = price * (1.0 + REACH * mu / c.shape[1])
        for j in range(c.shape[1]):
            if c[i, j] + col[Q, j] >= bar or member[i, j]:
                continue
            k = width[i]
            if k == cols.shape[1]:
                lacking += 1
                continue
            member[i, j] = True
            width[i] = k + 1
            cols[i, k] = j
            pair[C, i, k] = c[i, j]
        new = width[i] - old[i]
        for k in range(old[i], width[i]):
            j = cols[i, k]
            weight = scale * row[A, i] * col[N, j]
            pair[Z, i, k] = max(c[i, j] + col[Q, j] - price, 10.0 * new * weight / s)
            pair[Y, i, k] = weight / pair[Z, i, k]
            added[j] += pair[Y, i, k]
    for i in range(width.size):
        for k in range(old[i], width[i]):
            crowding = max(1.0, 2.0 * added[cols[i, k]] / col[T, cols[i, k]])
            pair[Y, i, k] /= crowding
            pair[Z, i, k] *= crowding
    return lacking


@fast_kernel
def thin(pair: Array, col: Array, cols: IntArray, width: IntArray, member: BoolArray) -> bool:
    """Remove the pairs that are ruled out, if there are many; return whether they were removed. Row sums do not change."""
    part = TRACE / col[N].sum()
    staying = 0
    for i in range(width.size):
        bar = part * pair[Y, i, : width[i]].sum()
        for k in range(width[i]):
            staying += pair[Y, i, k] > bar * col[N, cols[i, k]]
    if staying > (1.0 - RULED_OUT) * width.sum():
        return False
    for i in range(width.size):
        total = pair[Y, i, : width[i]].sum()
        kept = 0.0
        size = 0
        for k in range(width[i]):
            j = cols[i, k]
            member[i, j] = pair[Y, i, k] > part * total * col[N, j]
            if member[i, j]:
                cols[i, size] = j
                for f in range(pair.shape[0]):
                    pair[f, i, size] = pair[f, i, k]
                kept += pair[Y, i, k]
                size += 1
        width[i] = size
        for k in range(size):
            pair[Y, i, k] *= total / kept
    return True


@fast_kernel
def widen(pair: Array, cols: IntArray, columns: int) -> tuple[Array, IntArray]:
    """Return `pair` and `cols` with room for twice as many pairs in a row."""
    fields, rows, old = pair.shape
    room = min(columns, 2 * old)
    wide = np.zeros((fields, rows, room))
    wide_cols = np.zeros((rows, room), np.int64)
    for i in range(rows):
        for k in range(old):
            wide_cols[i, k] = cols[i, k]
            for f in range(fields):
                wide[f, i, k] = pair[f, i, k]
    return wide, wide_cols
