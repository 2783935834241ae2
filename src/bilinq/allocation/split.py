"""Kernels: the tie rule. All optimal allocations share row sums and prices; of these take the one that maximises

    sum over tight pairs of s_i n_j log y_ij,   Eq. (10).

This spreads each row over its tied server classes in proportion to their capacity, as far as capacities allow, and the
order of the classes does not matter. Flows that the constraints force are settled first; only cycles of ties need Newton.
A tight pair that can carry nothing (the rows that must use its column fill it) is left out of the sum. Its sign: the flow
vanishes while the columns' sums stay wrong.
"""

import numpy as np

from bilinq.allocation.interior import DEMAND, FLOW, LOAD, SERVED, SUPPLY, C, N, factor, solve
from bilinq.allocation.program import DEGREE, FULL, LOOSE, OVER, SHUT, START, TODO, by_column
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel

VANISHED = 1e-5  # part of its row and of its column below which a flow counts as vanishing
STALLED, STUCK = 0.9, 3
"""Newton stops after `STUCK` full steps whose change is above this part of the smallest so far: the row sums do not fit
the columns."""


@kernel
def split(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, q: Array, tie: float, mark: BoolArray,
    flag: BoolArray, number: IntArray,
) -> None:  # fmt: skip
    """Fill pair[FLOW] with the row sums row[SERVED] spread over the pairs that are tight at prices `q` (J,)."""
    for j in range(q.size):
        flag[FULL, j] = q[j] > 0.0
    for i in range(width.size):
        for k in range(width[i]):
            mark[SHUT, i, k] = False
    for _ in range(2 * q.size + 3):
        mark_tight(pair, cols, width, q, tie, mark)
        for i in range(width.size):
            row[DEMAND, i] = row[SERVED, i]
        for j in range(q.size):
            col[SUPPLY, j] = col[N, j]
        peel(pair, row, col, cols, width, mark[LOOSE], flag, number)
        if shut_exhausted(row, col, cols, width, mark, flag):
            continue
        if spread_rest(pair, row, col, cols, width, mark[LOOSE], flag):
            missed = centre(
                col, cols, width, row[SERVED], flag[FULL], mark[LOOSE], row[DEMAND], col[SUPPLY], pair[FLOW]
            )
            if missed > OVER and shut_vanished(pair, row, col, cols, width, mark):
                continue
        if not fill_overloaded(pair, col, cols, width, flag):
            return


@kernel
def mark_tight(pair: Array, cols: IntArray, width: IntArray, q: Array, tie: float, mark: BoolArray) -> None:
    """Mark the pairs whose price is the lowest of their row, up to `tie` of it, as loose unless they are shut."""
    for i in range(width.size):
        price = np.inf
        for k in range(width[i]):
            price = min(price, q[cols[i, k]] + pair[C, i, k])
        for k in range(width[i]):
            mark[LOOSE, i, k] = q[cols[i, k]] + pair[C, i, k] - price <= tie * price and not mark[SHUT, i, k]


@kernel
def peel(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, loose: BoolArray, flag: BoolArray,
    number: IntArray,
) -> None:  # fmt: skip
    """Settle rows and full columns with a single loose pair, until there is none; a settled pair is not loose any more."""
    rows, columns = width.size, col.shape[1]
    where = by_column(cols, width, loose, columns, number)
    end = 0
    for i in range(rows):
        number[DEGREE, i] = 0
        for k in range(width[i]):
            pair[FLOW, i, k] = 0.0
            number[DEGREE, i] += loose[i, k]
        number[TODO, end] = i
        end += number[DEGREE, i] == 1
    for j in range(columns):
        number[DEGREE, rows + j] = number[START, j + 1] - number[START, j]
        number[TODO, end] = rows + j
        end += number[DEGREE, rows + j] == 1 and flag[FULL, j]
    head = 0
    while head < end:
        v = number[TODO, head]
        head += 1
        if number[DEGREE, v] != 1:
            continue
        i, k = (
            first_loose_of_row(loose, v) if v < rows else first_loose_of_column(loose, where, number[START, v - rows])
        )
        j = cols[i, k]
        flow = row[DEMAND, i] if v < rows else col[SUPPLY, j]
        pair[FLOW, i, k] = flow
        row[DEMAND, i] -= flow
        col[SUPPLY, j] -= flow
        loose[i, k] = False
        number[DEGREE, i] -= 1
        number[DEGREE, rows + j] -= 1
        other = rows + j if v < rows else i
        number[TODO, end] = other
        end += number[DEGREE, other] == 1 and (other < rows or flag[FULL, j])


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
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, loose: BoolArray, flag: BoolArray
) -> bool:
    """Spread what is left of each row in proportion to capacity; return whether a full column gets a part."""
    some_full = False
    for i in range(width.size):
        total = 0.0
        for k in range(width[i]):
            if loose[i, k]:
                total += col[N, cols[i, k]]
                some_full = some_full or flag[FULL, cols[i, k]]
        if total == 0.0:
            continue
        for k in range(width[i]):
            if loose[i, k]:
                pair[FLOW, i, k] = max(row[DEMAND, i], 0.0) * col[N, cols[i, k]] / total
    return some_full


@kernel
def shut_exhausted(row: Array, col: Array, cols: IntArray, width: IntArray, mark: BoolArray, flag: BoolArray) -> bool:
    """Shut the loose pairs whose row or full column has nothing left to place; return whether there were any."""
    found = False
    for i in range(width.size):
        for k in range(width[i]):
            j = cols[i, k]
            left = min(row[DEMAND, i], col[SUPPLY, j]) if flag[FULL, j] else row[DEMAND, i]
            if mark[LOOSE, i, k] and left <= OVER * min(row[SERVED, i], col[N, j]):
                mark[SHUT, i, k] = True
                found = True
    return found


@kernel
def shut_vanished(pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, mark: BoolArray) -> bool:
    """Shut the loose pairs whose flow vanishes; return whether there were any."""
    found = False
    for i in range(width.size):
        for k in range(width[i]):
            if mark[LOOSE, i, k] and pair[FLOW, i, k] < VANISHED * min(row[SERVED, i], col[N, cols[i, k]]):
                mark[SHUT, i, k] = True
                found = True
    return found


@kernel
def fill_overloaded(pair: Array, col: Array, cols: IntArray, width: IntArray, flag: BoolArray) -> bool:
    """Mark columns without a price as full if they got more than their capacity; return whether there were any."""
    for j in range(col.shape[1]):
        col[LOAD, j] = 0.0
    for i in range(width.size):
        for k in range(width[i]):
            col[LOAD, cols[i, k]] += pair[FLOW, i, k]
    found = False
    for j in range(col.shape[1]):
        if not flag[FULL, j] and col[LOAD, j] > col[N, j] * (1.0 + OVER):
            flag[FULL, j] = True
            found = True
    return found


@kernel
def centre(
    col: Array, cols: IntArray, width: IntArray, s: Array, full: BoolArray, loose: BoolArray, demand: Array,
    supply: Array, y: Array,
) -> float:  # fmt: skip
    """Move the loose pairs to the maximiser of Eq. (10) by damped Newton steps; return by how much columns are missed."""
    size = full.size
    step = np.zeros(y.shape)
    schur = np.empty((size, size))
    excess = np.empty(size)
    beta = np.empty(size)
    alpha = np.empty(width.size)
    least = np.inf
    stuck = 0
    for _ in range(60):
        assemble(col, cols, width, s, full, loose, demand, supply, y, step, schur, excess, alpha, beta)
        solve(factor(schur, excess), beta)
        worst = 0.0
        change = 0.0
        for i in range(width.size):
            total = 0.0
            pull = 0.0
            for k in range(width[i]):
                if loose[i, k]:
                    total += step[i, k]
                    pull += step[i, k] * beta[cols[i, k]]
            for k in range(width[i]):
                if loose[i, k]:
                    step[i, k] = y[i, k] - step[i, k] * (alpha[i] - pull / total + beta[cols[i, k]])
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
    return mismatch(col, cols, width, full, loose, supply, y, excess)


@kernel
def mismatch(
    col: Array, cols: IntArray, width: IntArray, full: BoolArray, loose: BoolArray, supply: Array, y: Array, load: Array
) -> float:
    """Return by how much, relatively, the loose pairs miss what is left of the full columns they are in."""
    for j in range(full.size):
        load[j] = 0.0
    for i in range(width.size):
        for k in range(width[i]):
            if loose[i, k]:
                load[cols[i, k]] += y[i, k]
    worst = 0.0
    for j in range(full.size):
        if full[j] and load[j] > 0.0:
            worst = max(worst, abs(load[j] - supply[j]) / col[N, j])
    return worst


@kernel
def assemble(
    col: Array, cols: IntArray, width: IntArray, s: Array, full: BoolArray, loose: BoolArray, demand: Array,
    supply: Array, y: Array, d: Array, schur: Array, excess: Array, alpha: Array, beta: Array,
) -> None:  # fmt: skip
    """Fill the Newton system of Eq. (10) for the columns' multipliers: D = y^2 / (s n), matrix and right-hand side.

    A column that is not full, or has no loose pair, gets the equation beta = 0.
    """
    size = full.size
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
                d[i, k] = y[i, k] * y[i, k] / (s[i] * col[N, cols[i, k]])
                total += d[i, k]
                tied += d[i, k] if full[cols[i, k]] else 0.0
                alpha[i] += 2.0 * y[i, k]
                beta[cols[i, k]] += 2.0 * y[i, k]
        if total == 0.0:
            continue
        alpha[i] /= total
        for k in range(width[i]):
            j = cols[i, k]
            if not (loose[i, k] and full[j]):
                continue
            beta[j] -= d[i, k] * alpha[i]
            excess[j] += d[i, k] * (1.0 - tied / total + 1e-14)
            for g in range(k):
                other = cols[i, g]
                if loose[i, g] and full[other]:
                    schur[max(j, other), min(j, other)] -= d[i, k] * d[i, g] / total
    for j in range(size):
        if excess[j] == 0.0:
            excess[j] = 1.0
            beta[j] = 0.0
