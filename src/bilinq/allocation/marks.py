"""Kernels: marks of pairs and columns while a solution becomes exact, and the pairs of each column."""

import numpy as np

from bilinq.arrays import BoolArray, IntArray
from bilinq.jit import kernel

USED, LOOSE, SHUT = range(3)
"""Marks of a pair: probably used; still to be settled; tied, but can carry nothing."""
FREE, SEEN, FULL = range(3)
"""Marks of a column: probably idle; has a price already; has no idle capacity."""
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
