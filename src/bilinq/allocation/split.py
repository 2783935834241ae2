"""Kernels: the tie rule. All optimal allocations share row sums and prices; of these take the one that maximises

    sum over tight pairs of s_i n_j / m_ij log y_ij,   Eq. (10).

This spreads each row over its tied server classes in proportion to their capacity, as far as capacities allow, and the
order of the classes does not matter. Flows that the constraints force are settled first; only cycles of ties need Newton.
A tight pair that can carry nothing (the rows that must use its column fill it) is left out of the sum. Its sign: the flow
vanishes while the columns' sums stay wrong.

Tight pairs are packed: row i has the columns `cols[i, :width[i]]`, with durations `m` (I, K) in the same places, empty if
all are one. Pairs that are still to be settled are `loose`, those that can carry nothing `shut`.
"""

import numpy as np

from bilinq.allocation.interior import factor, solve
from bilinq.allocation.program import OVER
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel

VANISHED = 1e-5  # part of its row and of its column below which a flow counts as vanishing
STALLED, STUCK = 0.9, 3
"""Newton stops after `STUCK` full steps whose change is above this part of the smallest so far: the row sums do not fit
the columns."""


@kernel
def split(cols: IntArray, width: IntArray, m: Array, n: Array, s: Array, full: BoolArray, flow: Array) -> None:
    """Fill `flow` (I, K) with the row sums s (I,) spread over the tight pairs; `full` columns (J,) have no idle capacity.

    Columns that turn out to be full are added to `full`.
    """
    shut = np.zeros(cols.shape, np.bool_)
    loose = np.empty(cols.shape, np.bool_)
    for _ in range(2 * n.size + 3):
        for i in range(width.size):
            for k in range(width[i]):
                loose[i, k] = not shut[i, k]
        demand, supply = s.copy(), n.copy()
        peel(cols, width, m, full, loose, demand, supply, flow)
        if shut_exhausted(cols, width, m, n, s, full, loose, demand, supply, shut):
            continue
        if spread_rest(cols, width, m, n, full, loose, demand, flow):
            missed = centre(cols, width, m, n, s, full, loose, demand, supply, flow)
            if missed > OVER and shut_vanished(cols, width, m, n, s, loose, flow, shut):
                continue
        if not fill_overloaded(cols, width, m, n, full, flow):
            return


@kernel
def by_column(cols: IntArray, width: IntArray, mark: BoolArray, columns: int) -> tuple[IntArray, IntArray]:
    """Return where each column's marked pairs start (J + 1,), and their rows and places (2, pairs) by column."""
    start = np.zeros(columns + 1, np.int64)
    for i in range(width.size):
        for k in range(width[i]):
            if mark[i, k]:
                start[cols[i, k] + 1] += 1
    for j in range(columns):
        start[j + 1] += start[j]
    where = np.empty((2, start[columns]), np.int64)
    fill = start.copy()
    for i in range(width.size):
        for k in range(width[i]):
            if mark[i, k]:
                g = fill[cols[i, k]]
                where[0, g] = i
                where[1, g] = k
                fill[cols[i, k]] = g + 1
    return start, where


@kernel
def peel(
    cols: IntArray, width: IntArray, m: Array, full: BoolArray, loose: BoolArray, demand: Array, supply: Array,
    flow: Array,
) -> None:  # fmt: skip
    """Settle rows and full columns with a single loose pair, until there is none; a settled pair is not loose any more."""
    rows, columns = width.size, full.size
    timed = m.size > 0
    start, where = by_column(cols, width, loose, columns)
    degree = np.zeros(rows + columns, np.int64)
    todo = np.empty(2 * (rows + columns), np.int64)
    end = 0
    for i in range(rows):
        for k in range(width[i]):
            flow[i, k] = 0.0
            degree[i] += loose[i, k]
        todo[end] = i
        end += degree[i] == 1
    for j in range(columns):
        degree[rows + j] = start[j + 1] - start[j]
        todo[end] = rows + j
        end += degree[rows + j] == 1 and full[j]
    head = 0
    while head < end:
        v = todo[head]
        head += 1
        if degree[v] != 1:
            continue
        i, k = first_loose_of_row(loose, v) if v < rows else first_loose_of_column(loose, where, start[v - rows])
        j = cols[i, k]
        time = m[i, k] if timed else 1.0
        flow[i, k] = demand[i] if v < rows else supply[j] / time
        demand[i] -= flow[i, k]
        supply[j] -= time * flow[i, k]
        loose[i, k] = False
        degree[i] -= 1
        degree[rows + j] -= 1
        other = rows + j if v < rows else i
        todo[end] = other
        end += degree[other] == 1 and (other < rows or full[j])


@kernel
def first_loose_of_row(loose: BoolArray, i: int) -> tuple[int, int]:
    """Return row and place of the first loose pair of row i."""
    k = 0
    while not loose[i, k]:
        k += 1
    return i, k


@kernel
def first_loose_of_column(loose: BoolArray, where: IntArray, start: int) -> tuple[int, int]:
    """Return row and place of the first loose pair of the column whose pairs begin at `start` of `where`."""
    g = start
    while not loose[where[0, g], where[1, g]]:
        g += 1
    return where[0, g], where[1, g]


@kernel
def spread_rest(
    cols: IntArray, width: IntArray, m: Array, n: Array, full: BoolArray, loose: BoolArray, demand: Array, flow: Array
) -> bool:
    """Spread what is left of each row in proportion to capacity; return whether a full column gets a part."""
    some_full = False
    timed = m.size > 0
    for i in range(width.size):
        total = 0.0
        for k in range(width[i]):
            if loose[i, k]:
                total += n[cols[i, k]] / m[i, k] if timed else n[cols[i, k]]
                some_full = some_full or full[cols[i, k]]
        if total == 0.0:
            continue
        for k in range(width[i]):
            if loose[i, k]:
                part = n[cols[i, k]] / m[i, k] if timed else n[cols[i, k]]
                flow[i, k] = max(demand[i], 0.0) * part / total
    return some_full


@kernel
def shut_exhausted(
    cols: IntArray, width: IntArray, m: Array, n: Array, s: Array, full: BoolArray, loose: BoolArray, demand: Array,
    supply: Array, shut: BoolArray,
) -> bool:  # fmt: skip
    """Shut the loose pairs whose row or full column has nothing left to place; return whether there were any."""
    found = False
    for i in range(width.size):
        for k in range(width[i]):
            j = cols[i, k]
            time = m[i, k] if m.size > 0 else 1.0
            left = min(demand[i], supply[j] / time) if full[j] else demand[i]
            if loose[i, k] and left <= OVER * min(s[i], n[j] / time):
                shut[i, k] = True
                found = True
    return found


@kernel
def shut_vanished(
    cols: IntArray, width: IntArray, m: Array, n: Array, s: Array, loose: BoolArray, flow: Array, shut: BoolArray
) -> bool:
    """Shut the loose pairs whose flow vanishes; return whether there were any."""
    found = False
    for i in range(width.size):
        for k in range(width[i]):
            time = m[i, k] if m.size > 0 else 1.0
            if loose[i, k] and flow[i, k] < VANISHED * min(s[i], n[cols[i, k]] / time):
                shut[i, k] = True
                found = True
    return found


@kernel
def fill_overloaded(cols: IntArray, width: IntArray, m: Array, n: Array, full: BoolArray, flow: Array) -> bool:
    """Mark columns as full if they got more than their capacity; return whether there were any new ones."""
    load = np.zeros(n.size)
    for i in range(width.size):
        for k in range(width[i]):
            load[cols[i, k]] += flow[i, k] * m[i, k] if m.size > 0 else flow[i, k]
    found = False
    for j in range(n.size):
        if not full[j] and load[j] > n[j] * (1.0 + OVER):
            full[j] = True
            found = True
    return found


@kernel
def centre(
    cols: IntArray, width: IntArray, m: Array, n: Array, s: Array, full: BoolArray, loose: BoolArray, demand: Array,
    supply: Array, y: Array,
) -> float:  # fmt: skip
    """Move the loose pairs to the maximiser of Eq. (10) by damped Newton steps; return by how much columns are missed."""
    size = n.size
    step = np.zeros(y.shape)
    schur = np.empty((size, size))
    excess = np.empty(size)
    beta = np.empty(size)
    alpha = np.empty(width.size)
    least = np.inf
    stuck = 0
    for _ in range(60):
        assemble(cols, width, m, n, s, full, loose, demand, supply, y, step, schur, excess, alpha, beta)
        solve(factor(schur, excess), beta)
        worst = 0.0
        change = 0.0
        for i in range(width.size):
            total = 0.0
            pull = 0.0
            for k in range(width[i]):
                if loose[i, k]:
                    total += step[i, k]
                    pull += step[i, k] * beta[cols[i, k]] * (m[i, k] if m.size > 0 else 1.0)
            for k in range(width[i]):
                if loose[i, k]:
                    price = beta[cols[i, k]] * (m[i, k] if m.size > 0 else 1.0)
                    step[i, k] = y[i, k] - step[i, k] * (alpha[i] - pull / total + price)
                    worst = max(worst, -step[i, k] / y[i, k])
                    change = max(change, abs(step[i, k]) / s[i])
        length = min(1.0, 0.9 / max(worst, 1e-300))
        for i in range(width.size):
            for k in range(width[i]):
                if loose[i, k]:
                    y[i, k] += length * step[i, k]
        if length < 1.0:
            continue
        stuck = stuck + 1 if change > STALLED * least else 0
        least = min(least, change)
        if change < 1e-13 or stuck == STUCK:
            break
    return mismatch(cols, width, m, n, full, loose, supply, y)


@kernel
def mismatch(
    cols: IntArray, width: IntArray, m: Array, n: Array, full: BoolArray, loose: BoolArray, supply: Array, y: Array
) -> float:
    """Return by how much, relatively, the loose pairs miss what is left of the full columns they are in."""
    load = np.zeros(n.size)
    for i in range(width.size):
        for k in range(width[i]):
            if loose[i, k]:
                load[cols[i, k]] += y[i, k] * m[i, k] if m.size > 0 else y[i, k]
    worst = 0.0
    for j in range(n.size):
        if full[j] and load[j] > 0.0:
            worst = max(worst, abs(load[j] - supply[j]) / n[j])
    return worst


@kernel
def assemble(
    cols: IntArray, width: IntArray, m: Array, n: Array, s: Array, full: BoolArray, loose: BoolArray, demand: Array,
    supply: Array, y: Array, d: Array, schur: Array, excess: Array, alpha: Array, beta: Array,
) -> None:  # fmt: skip
    """Fill the Newton system of Eq. (10) for the columns' multipliers: D = y^2 m / (s n), matrix and right-hand side.

    A column that is not full, or has no loose pair, gets the equation beta = 0.
    """
    size = n.size
    for j in range(size):
        excess[j] = 0.0
        beta[j] = -supply[j]
        for g in range(size):
            schur[j, g] = 0.0
    for i in range(width.size):
        total = 0.0
        tied = 0.0
        alpha[i] = -demand[i]
        for k in range(width[i]):
            if loose[i, k]:
                time = m[i, k] if m.size > 0 else 1.0
                d[i, k] = y[i, k] * y[i, k] * time / (s[i] * n[cols[i, k]])
                total += d[i, k]
                tied += d[i, k] * time if full[cols[i, k]] else 0.0
                alpha[i] += 2.0 * y[i, k]
                beta[cols[i, k]] += 2.0 * time * y[i, k]
        if total == 0.0:
            continue
        alpha[i] /= total
        for k in range(width[i]):
            j = cols[i, k]
            if not (loose[i, k] and full[j]):
                continue
            time = m[i, k] if m.size > 0 else 1.0
            beta[j] -= time * d[i, k] * alpha[i]
            excess[j] += time * d[i, k] * (time - tied / total + 1e-14 * time)
            for g in range(k):
                other = cols[i, g]
                if loose[i, g] and full[other]:
                    both = time * (m[i, g] if m.size > 0 else 1.0)
                    schur[max(j, other), min(j, other)] -= both * d[i, k] * d[i, g] / total
    for j in range(size):
        if excess[j] == 0.0:
            excess[j] = 1.0
            beta[j] = 0.0
