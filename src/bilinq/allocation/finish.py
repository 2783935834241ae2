"""Kernels: from exact prices to the allocation: the flows of the edges, or where there are ties, those of the tie rule."""

import numpy as np

from bilinq.allocation.edges import COLUMN, FIRST, NEXT_OF_ROW
from bilinq.allocation.program import TIE
from bilinq.allocation.split import split
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import bare_kernel, inlined_kernel, kernel

FITS = 1e-10  # part by which the flows of the tie rule may miss the sum of a row or a column


@kernel
def fill(
    c: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray, flow: Array, node: IntArray,
    rows: IntArray, columns: IntArray, y: Array,
) -> None:  # fmt: skip
    """Copy the flows to y (I, J): those of the edges, or where there are ties, those of the tie rule if they fit."""
    width = np.empty(rows.size, np.int64)
    count_tight(c, m, price, width)
    group, idle = np.empty(price.size, np.int64), np.empty(price.size, np.bool_)
    if not (
        ambiguous(width, price, edge, flow, node, group, idle)
        and spread_ties(c, m, bound, price, held, width, rows, columns, y)
    ):
        copy_flows(edge, flow, node, rows, columns, y)
    fit(m, bound, rows, columns, y)


@kernel
def spread_ties(
    c: Array, m: Array, bound: Array, price: Array, held: Array, width: IntArray, rows: IntArray, columns: IntArray,
    y: Array,
) -> bool:  # fmt: skip
    """Copy the flows of the tie rule to y (I, J) and return True if they fit the sums of rows and columns."""
    timed, size = m.size > 0, rows.size
    n = bound[size:]
    load = np.zeros(n.size)
    cols = np.empty((size, width.max()), np.int64)
    time = np.empty(cols.shape if timed else (0, 0))
    for i in range(size):
        k = 0
        for j in range(n.size):
            if tight(i, j, c, m, price):
                cols[i, k] = j
                if timed:
                    time[i, k] = m[i, j]
                k += 1
    spread, full = np.empty(cols.shape), price[size:] > 0.0
    split(cols, width, time, n, held[:size], full, spread)
    fits = True
    for i in range(size):
        total = 0.0
        for k in range(width[i]):
            fits = fits and spread[i, k] >= -FITS * held[i]
            spread[i, k] = max(spread[i, k], 0.0)
            total += spread[i, k]
            load[cols[i, k]] += spread[i, k] * (time[i, k] if timed else 1.0)
        fits = fits and abs(total - held[i]) <= FITS * held[i]
    for j in range(n.size):
        fits = fits and load[j] <= n[j] * (1.0 + FITS)
        fits = fits and (price[size + j] == 0.0 or load[j] >= n[j] * (1.0 - FITS))
    if fits:
        for i in range(size):
            for k in range(width[i]):
                y[rows[i], columns[cols[i, k]]] = spread[i, k]
    return fits


@bare_kernel
def copy_flows(edge: IntArray, flow: Array, node: IntArray, rows: IntArray, columns: IntArray, y: Array) -> None:
    """Copy the flows of the edges to y (I, J)."""
    for i in range(rows.size):
        e = node[FIRST, i]
        while e >= 0:
            y[rows[i], columns[edge[COLUMN, e] - rows.size]] += flow[e]
            e = edge[NEXT_OF_ROW, e]


@inlined_kernel
def tight(i: int, j: int, c: Array, m: Array, price: Array) -> bool:
    """Return whether a pair costs its row no more than the row's price, up to rounding."""
    v = c.shape[0] + j
    return bool(c[i, j] + (m[i, j] * price[v] if m.size > 0 else price[v]) <= price[i] * (1.0 + TIE))


@bare_kernel
def count_tight(c: Array, m: Array, price: Array, width: IntArray) -> None:
    """Count how many tight pairs each row has (I,)."""
    for i in range(width.size):
        width[i] = 0
        for j in range(c.shape[1]):
            width[i] += tight(i, j, c, m, price)


@bare_kernel
def ambiguous(
    width: IntArray, price: Array, edge: IntArray, flow: Array, node: IntArray, group: IntArray, idle: BoolArray
) -> bool:
    """Return whether other flows fit the same prices: a tight pair is not in use, or flow can move between idle columns.

    `group` and `idle` (I + J,) are overwritten: columns that rows connect are trees, in which each points to another of
    its group, and whether one of them has no price.
    """
    rows = width.size
    for v in range(price.size):
        group[v] = v
        idle[v] = v >= rows and price[v] == 0.0
    for i in range(rows):
        used, first = 0, -1
        e = node[FIRST, i]
        while e >= 0:
            if flow[e] > 0.0:
                used += 1
                v = edge[COLUMN, e]
                while group[v] != v:
                    v = group[v]
                if first < 0:
                    first = v
                elif v != first:
                    if idle[v] and idle[first]:
                        return True
                    group[v] = first
                    idle[first] = idle[first] or idle[v]
            e = edge[NEXT_OF_ROW, e]
        if width[i] > used:
            return True
    return False


@bare_kernel
def fit(m: Array, bound: Array, rows: IntArray, columns: IntArray, y: Array) -> None:
    """Scale down columns above their capacity and rows above their cap: rounding, or an answer that is not exact."""
    for j in range(columns.size):
        load, most = 0.0, bound[rows.size + j]
        for i in range(rows.size):
            load += (m[i, j] if m.size > 0 else 1.0) * y[rows[i], columns[j]]
        if load > most:
            for i in range(rows.size):
                y[rows[i], columns[j]] *= most / load
    for i in range(rows.size):
        total = 0.0
        for j in range(columns.size):
            total += y[rows[i], columns[j]]
        if total > bound[i]:
            for j in range(columns.size):
                y[rows[i], columns[j]] *= bound[i] / total
