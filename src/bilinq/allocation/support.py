"""Kernel: room to work on a guessed support, taken once for all the guesses of a search.

Small programs are solved in microseconds, of which a dozen small arrays for each guess would be a good part.
"""

import numpy as np

from bilinq.arrays import BoolArray, IntArray
from bilinq.compiled import kernel

USED, LOOSE, SHUT = range(3)
"""Marks of a pair: looks used; still to be settled; tied, but can carry nothing."""
FREE, SEEN, FULL = range(3)
"""Marks of a column: looks idle; has a price already; has no idle capacity."""
START, FILL, COLUMNS, ROWS, DEGREE, TODO = range(6)
"""Numbers: where each column's pairs start; its next one; columns and rows of a component; loose pairs of each row and
then of each column; and which of them to settle next."""


@kernel
def marks(rows: int, places: int) -> BoolArray:
    """Return marks of pairs (3, I, K), with any content."""
    return np.empty((3, rows, places), np.bool_)


@kernel
def room(rows: int, columns: int) -> tuple[BoolArray, IntArray]:
    """Return marks of columns (3, J) and numbers (6, 2 (I + J) + 1), with any content."""
    return np.empty((3, columns), np.bool_), np.empty((6, 2 * (rows + columns) + 1), np.int64)
