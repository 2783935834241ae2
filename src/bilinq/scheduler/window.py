"""Which of many waiting jobs the look-ahead looks at in a slot."""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.scheduler.board import Records

WINDOW = 256  # jobs that are all looked at; of more, the most urgent ones of each server class
LEAST, MORE = 64, 2  # how many are looked at for a server class, with two more for each idle server


def window(table: Records, pairs: Records, allowed: BoolArray, idle: Array, now: float, tau: float) -> IntArray:
    """Return the rows to look at, most urgent first: all, or of many the most urgent for each idle server class.

    With `allowed` (by pool) that is not empty, only jobs of such pools.
    """
    from bilinq.scheduler.look_ahead_kernels import waiting

    rows, keys = np.empty(table.size, np.int64), np.empty((2, table.size))
    n = waiting(table, allowed, now, tau, rows, keys)
    rows, keys = rows[:n], keys[:, :n]
    if n > WINDOW:
        kept = _select(pairs, rows, keys, idle)
        rows, keys = rows[kept], keys[:, kept]
    return rows[np.lexsort(keys)]


def _first(keys: Array, number: int) -> IntArray:
    """Return the `number` jobs (of more) that come first, in any order."""
    from bilinq.scheduler.look_ahead_kernels import first_jobs

    found = np.empty(number, np.int64)
    first_jobs(keys[0], keys[1], number, found)
    return found


def _select(pairs: Records, rows: IntArray, keys: Array, idle: Array) -> IntArray:
    """Return the most urgent jobs of each idle server class, 64 and two for each idle server, as indices of rows.

    Idle servers of other classes count too, since they may take the same jobs.
    Most often they are among the most urgent of all. Only for a server class that these leave with too few are all
    jobs looked at.
    """
    from bilinq.scheduler.look_ahead_kernels import eligible_jobs

    wanted = LEAST + MORE * int(idle.sum())
    some = _first(keys, 2 * wanted) if rows.size > 2 * wanted else np.arange(rows.size)
    some = some[np.lexsort(keys[:, some])]
    near, kept, found = rows[some], np.zeros(rows.size, np.bool_), np.empty(rows.size, np.int64)
    for j in np.flatnonzero(idle > 0.0).tolist():
        first = some[found[: eligible_jobs(pairs, near, j, found)]][:wanted]
        kept[first] = True
        if first.size < wanted and some.size < rows.size:
            own = found[: eligible_jobs(pairs, rows, j, found)]
            kept[own[_first(keys[:, own], wanted)] if own.size > wanted else own] = True
    return np.flatnonzero(kept)
