"""Kernels: from an expected allocation to numbers of services, one replication after the other.

Each reads its uniform numbers from a tape (R, length) at a cursor (R,), so that a run does not depend on how many
numbers are drawn at a time. They return the furthest cursor, or -1 if the tape is too short: then draw more numbers and
call again with the same cursor as before.
"""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.jit import kernel

ZERO = 1e-12  # a fraction this close to a whole number counts as that number


@kernel
def is_sound(y: Array, jobs: Array, servers: Array, slack: float) -> bool:
    """Return whether y (R, rows, J) fits `servers` (R, J), and all arguments are finite and at least zero."""
    for r in range(y.shape[0]):
        for i in range(y.shape[1]):
            if not 0.0 <= jobs[r, i] < np.inf:
                return False
        for j in range(y.shape[2]):
            total = 0.0
            for i in range(y.shape[1]):
                if not y[r, i, j] >= 0.0:
                    return False
                total += y[r, i, j]
            if not (servers[r, j] < np.inf and total <= servers[r, j] * (1.0 + slack) + slack and servers[r, j] >= 0.0):
                return False
    return True


@kernel
def draw_independent(y: Array, n: Array, tape: Array, cursor: IntArray, count: IntArray) -> int:
    """Fill `count` (R, rows, J): every server picks row i with probability y_ij / n_j, or no row, Eq. (29).

    Geometric jumps skip idle servers, so the cost depends on the picks, not on the servers.
    """
    rows, columns = y.shape[1:]
    below = np.empty(rows)
    for r in range(y.shape[0]):
        at = cursor[r]
        for j in range(columns):
            total = 0.0
            for i in range(rows):
                count[r, i, j] = 0
                total += y[r, i, j]
                below[i] = total
            if total <= 0.0:
                continue
            busy = min(total / n[r, j], 1.0)
            rate = np.log1p(-busy) if busy < 1.0 else -np.inf
            if at == tape.shape[1]:
                return -1
            server = np.floor(np.log(1.0 - tape[r, at]) / rate)
            at += 1
            while server < n[r, j]:
                if at + 1 >= tape.shape[1]:
                    return -1
                i = np.searchsorted(below, tape[r, at] * total, side="right")
                count[r, min(i, rows - 1), j] += 1
                server += 1.0 + np.floor(np.log(1.0 - tape[r, at + 1]) / rate)
                at += 2
        cursor[r] = at
    return int(cursor.max())


@kernel
def draw_distinct(y: Array, jobs: Array, tape: Array, cursor: IntArray, count: IntArray) -> int:
    """Fill `count` (R, rows, J) by dependent rounding, Eq. (30), so that no row gets more services than `jobs` (R, rows).

    Each y_ij, row sum and column sum goes up or down to a whole number, and each y_ij keeps its mean. Rows that want
    more services than they have jobs are scaled back to their jobs first.
    """
    rows, columns = y.shape[1:]
    part = np.empty((rows, columns))
    for r in range(y.shape[0]):
        for i in range(rows):
            total = 0.0
            for j in range(columns):
                total += y[r, i, j]
            fits = jobs[r, i] / total if total > jobs[r, i] else 1.0
            for j in range(columns):
                v = y[r, i, j] * fits
                whole = np.floor(v + ZERO)
                count[r, i, j] = np.int64(whole)
                part[i, j] = max(v - whole, 0.0)
        cursor[r] = round_parts(part, tape[r], cursor[r], count[r])
        if cursor[r] < 0:
            return -1
    return int(cursor.max())


@kernel
def round_parts(part: Array, tape: Array, at: int, count: IntArray) -> int:
    """Round the fractions `part` (rows, J) to zero or one along paths and cycles of pairs; return the new cursor, or -1.

    Alternate pairs of a path go up and down by the same amount, so the sums of its inner rows and columns do not change.
    The probabilities of the two directions are such that every pair keeps its mean.
    """
    rows, columns = part.shape
    row_degree = np.zeros(rows, np.int64)
    column_degree = np.zeros(columns, np.int64)
    for i in range(rows):
        for j in range(columns):
            if part[i, j] <= ZERO:
                part[i, j] = 0.0
            else:
                row_degree[i] += 1
                column_degree[j] += 1
    path_row = np.empty(rows + columns + 2, np.int64)
    path_column = np.empty(rows + columns + 2, np.int64)
    while True:
        first, last = find_path(part, row_degree, column_degree, path_row, path_column)
        if last == 0:
            return at
        if at == tape.size:
            return -1
        up, down = largest_shifts(part, path_row[first:last], path_column[first:last])
        shift = up if tape[at] * (up + down) < down else -down
        at += 1
        for k in range(first, last):
            i = path_row[k]
            j = path_column[k]
            part[i, j] += shift if (k - first) % 2 == 0 else -shift
            if part[i, j] >= 1.0 - ZERO:
                count[i, j] += 1
            elif part[i, j] > ZERO:
                continue
            part[i, j] = 0.0
            row_degree[i] -= 1
            column_degree[j] -= 1


@kernel
def largest_shifts(part: Array, path_row: IntArray, path_column: IntArray) -> tuple[float, float]:
    """Return how far the first pair of a path can go up and down, while alternate pairs stay between zero and one."""
    up = np.inf
    down = np.inf
    for k in range(path_row.size):
        f = part[path_row[k], path_column[k]]
        if k % 2 == 0:
            up = min(up, 1.0 - f)
            down = min(down, f)
        else:
            up = min(up, f)
            down = min(down, 1.0 - f)
    return up, down


@kernel
def find_path(
    part: Array, row_degree: IntArray, column_degree: IntArray, path_row: IntArray, path_column: IntArray
) -> tuple[int, int]:
    """Find a cycle of fractional pairs, or a path that cannot be made longer; return its first and last place in the lists.

    A path starts at a row or column with one fractional pair if there is any. A walk that returns to a row or column has
    closed a cycle; the part of the walk before the cycle is left out.
    """
    row, column = path_start(row_degree, column_degree)
    if row < 0 and column < 0:
        return 0, 0
    row_seen = np.full(part.shape[0], -1)
    column_seen = np.full(part.shape[1], -1)
    at_row = row >= 0
    length = 0
    last_row = -1
    last_column = -1
    while True:
        if at_row:
            if row_seen[row] >= 0:
                return row_seen[row], length
            row_seen[row] = length
            column = first_positive(part[row], last_column)
            if column < 0:
                return 0, length
        else:
            if column_seen[column] >= 0:
                return column_seen[column], length
            column_seen[column] = length
            row = first_positive(part[:, column], last_row)
            if row < 0:
                return 0, length
        path_row[length] = row
        path_column[length] = column
        length += 1
        last_row = row if at_row else -1
        last_column = -1 if at_row else column
        at_row = not at_row


@kernel
def path_start(row_degree: IntArray, column_degree: IntArray) -> tuple[int, int]:
    """Return the row or the column where a path starts, and -1 for the other; both are -1 if no pair is left."""
    for i in range(row_degree.size):
        if row_degree[i] == 1:
            return i, -1
    for j in range(column_degree.size):
        if column_degree[j] == 1:
            return -1, j
    for i in range(row_degree.size):
        if row_degree[i] > 0:
            return i, -1
    return -1, -1


@kernel
def first_positive(values: Array, skip: int) -> int:
    """Return the first place with a positive value other than `skip`, or -1."""
    for k in range(values.size):
        if values[k] > 0.0 and k != skip:
            return k
    return -1
