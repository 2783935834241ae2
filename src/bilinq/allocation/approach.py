"""Kernels: prices that are nearly right, by interior point steps on some or all pairs; for programs that are not small."""

import numpy as np

from bilinq.allocation.interior import A, C, N, Q, U, advance, start_cold
from bilinq.allocation.packing import FEW, pack, take_in, thin, widen
from bilinq.arrays import Array
from bilinq.jit import kernel, part_kernel

NEAR = 2.0  # gap times the number of pairs, relative to the costs, at which interior point steps end
IDLE = 3.0  # a column whose price is below this multiple of what it is in idle columns, at the same gap, gets no price
TAKE_IN_FROM = 1e-2  # gap, relative to the costs, below which prices are good enough to add further pairs
COLD_PAIRS = 12  # pairs of each row at the start of a large program
STEPS = 60  # interior point steps before giving up; six to twelve are usual
JAM = 10  # steps in which the gap must halve where pairs were left out; otherwise the chosen pairs are the wrong ones


@part_kernel
def approach(a: Array, c: Array, m: Array, bound: Array, q: Array) -> int:
    """Overwrite prices q (J,) with nearly right ones by interior point steps; return the steps.

    They start with the cheapest pairs of each row; if those are the wrong ones, with every pair, of which most are removed
    when prices have ruled them out. Small and wide programs use every pair from the start.
    """
    rows, columns = c.shape
    if m.size > 0:
        return 0
    few = columns <= FEW or rows < columns
    steps = 0
    for attempt in range(1 if few else 0, 2):
        more, arrived = search(a, c, bound, attempt == 1, not few, q)
        steps += more
        if arrived:
            break
    return steps


@kernel
def search(a: Array, c: Array, bound: Array, all_pairs: bool, thinning: bool, q: Array) -> tuple[int, bool]:
    """Fill prices q (J,) by interior point steps; return their number and whether they led to prices nearly right.

    The steps use all pairs, until most are ruled out with `thinning`, or some. The search gives up, since it works on the
    wrong pairs, when prices ask for more further pairs at once than an optimum can use, or when the gap hardly shrinks.
    """
    rows, columns = c.shape
    every = all_pairs and c.max() < np.inf  # then rows contain all columns in order
    thinning = thinning and all_pairs
    row, col = np.zeros((14, rows)), np.zeros((10, columns))
    for i in range(rows):
        row[A, i], row[U, i] = a[i], bound[i]
    for j in range(columns):
        col[N, j] = bound[rows + j]
    tame(row, col, c)
    member = np.zeros(c.shape, np.bool_)
    pair, cols, width = pack(c, np.zeros(columns), columns if all_pairs else COLD_PAIRS, member)
    order = min(rows, columns) if every else columns
    schur = np.empty((order, order))
    start_cold(pair, row, col, cols, width)
    unit = row[A].sum() / col[N].sum()
    scale = min(1.0, pair[C].sum() / width.sum() / unit)
    bar = 0.0 if all_pairs else TAKE_IN_FROM * scale
    some_left_out = thinning or not all_pairs
    halved, half = 0, np.inf
    for k in range(STEPS):
        mu = advance(pair, row, col, cols, width, every, schur)
        if not mu < np.inf:
            return k + 1, False
        for j in range(columns):
            q[j] = col[Q, j] if col[Q, j] > IDLE * mu * unit else 0.0
        if mu * c.size <= NEAR * scale and (all_pairs or bar < TAKE_IN_FROM * scale):
            return k + 1, True
        if mu <= half:
            half = 0.5 * mu
            halved = k
        if some_left_out and k - halved > JAM:
            break
        if thinning and thin(pair, col, cols, width, member):
            every = thinning = all_pairs = False
            bar = 0.1 * mu
        elif not all_pairs and mu < bar:
            bar = 0.1 * mu
            before = width.sum()
            while take_in(pair, row, col, cols, width, c, member, mu) > 0:
                pair, cols = widen(pair, cols, columns)
            if width.sum() - before > rows + columns:
                break
    return k + 1, False


@kernel
def tame(row: Array, col: Array, c: Array) -> None:
    """Lower each a_i that is far above what fills its cap at any likely price; larger values only cost precision."""
    if row[U].min() == np.inf:
        return
    capacity = col[N].sum()
    highest = 0.0
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            if c[i, j] < np.inf:
                highest = max(highest, c[i, j])
    low, high = 0.0, row[A].sum() / capacity
    for _ in range(40):
        middle = 0.5 * (low + high)
        demand = 0.0
        for i in range(row.shape[1]):
            demand += min(row[U, i], row[A, i] / middle)
        if demand > capacity:
            low = middle
        else:
            high = middle
    for i in range(row.shape[1]):
        row[A, i] = min(row[A, i], 10.0 * (high + highest) * row[U, i])
