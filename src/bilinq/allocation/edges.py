"""Kernels: nodes and edges: what rows ask for at given prices, and which pairs are in use.

Rows and columns are nodes: row i is node i, column j is node I + j. `price` has the price of a row (what a service costs
it) or of a column, `held` the row sum or the load, `bound` the cap or the capacity. Pairs in use are edges. An edge may
carry nothing: it stays until a step removes it, so that the set of edges changes with each step and none is taken twice.
Without durations the edges form a forest.
"""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel, in_place_kernel, inlined_kernel

ROW, COLUMN, NEXT_OF_ROW, BEFORE_OF_ROW, NEXT_OF_COLUMN, BEFORE_OF_COLUMN = range(6)
"""Of an edge: its row node and its column node, and the edges beside it in the lists of both; -1 where a list ends."""
FIRST, ORDER, PARENT, BY = range(4)
"""Of a node: its first edge; the tree in the order in which it grew; the edge to its parent; the node that brings it in."""


@fast_kernel
def space(rows: int, columns: int) -> tuple[IntArray, Array, IntArray, Array, BoolArray]:
    """Return edges, their flows, numbers and values of nodes, and marks of the nodes in the tree; with any content."""
    nodes = rows + columns
    return (
        np.empty((6, 2 * nodes + 1), np.int64), np.empty(2 * nodes + 1), np.empty((4, 2 * nodes + 1), np.int64),
        np.empty((4, nodes)), np.empty(nodes, np.bool_),
    )  # fmt: skip


@in_place_kernel
def place(
    a: Array, c: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray, flow: Array, node: IntArray
) -> None:
    """Let each row ask one of its cheapest columns at the present prices: the one with the most room left."""
    rows, columns = c.shape
    timed = m.size > 0
    free = edge.shape[1] - 1
    for v in range(rows + columns):
        held[v] = 0.0
        node[FIRST, v] = -1
    for e in range(free):
        edge[NEXT_OF_ROW, e] = e + 1
    node[FIRST, rows + columns] = 0  # the list of edges that are not in use
    for i in range(rows):
        best = 0
        least = np.inf
        for j in range(columns):
            cost = c[i, j] + (m[i, j] * price[rows + j] if timed else price[rows + j])
            if cost < least or (cost == least and roomier(bound, held, rows + j, rows + best)):
                least = cost
                best = j
        price[i] = least
        held[i] = min(a[i] / least, bound[i])
        e = connect(i, rows + best, edge, node)
        flow[e] = held[i]
        held[rows + best] += flow[e] * m[i, best] if timed else flow[e]


@inlined_kernel
def roomier(bound: Array, held: Array, v: int, w: int) -> bool:
    """Return whether column node v is used less, relative to its capacity, than w."""
    return bool(held[v] * bound[w] < held[w] * bound[v])


@inlined_kernel
def connect(i: int, v: int, edge: IntArray, node: IntArray) -> int:
    """Return a new edge between row i and column node v."""
    spare = node[FIRST].size // 2
    e = int(node[FIRST, spare])
    node[FIRST, spare] = edge[NEXT_OF_ROW, e]
    edge[ROW, e] = i
    edge[COLUMN, e] = v
    for of, after, before in ((i, NEXT_OF_ROW, BEFORE_OF_ROW), (v, NEXT_OF_COLUMN, BEFORE_OF_COLUMN)):
        head = node[FIRST, of]
        edge[after, e] = head
        edge[before, e] = -1
        if head >= 0:
            edge[before, head] = e
        node[FIRST, of] = e
    return e


@inlined_kernel
def cut(e: int, edge: IntArray, node: IntArray) -> None:
    """Remove an edge."""
    for of, after, before in (
        (edge[ROW, e], NEXT_OF_ROW, BEFORE_OF_ROW), (edge[COLUMN, e], NEXT_OF_COLUMN, BEFORE_OF_COLUMN),
    ):  # fmt: skip
        if edge[before, e] >= 0:
            edge[after, edge[before, e]] = edge[after, e]
        else:
            node[FIRST, of] = edge[after, e]
        if edge[after, e] >= 0:
            edge[before, edge[after, e]] = edge[before, e]
    spare = node[FIRST].size // 2
    edge[NEXT_OF_ROW, e] = node[FIRST, spare]
    node[FIRST, spare] = e


@inlined_kernel
def gain_of(e: int, rows: int, m: Array, edge: IntArray) -> float:
    """Return the duration of an edge's pair."""
    return float(m[edge[ROW, e], edge[COLUMN, e] - rows]) if m.size > 0 else 1.0


@inlined_kernel
def above(v: int, rows: int, edge: IntArray, node: IntArray) -> int:
    """Return the parent of node v."""
    return int(edge[COLUMN, node[PARENT, v]] if v < rows else edge[ROW, node[PARENT, v]])


@in_place_kernel
def refresh(
    a: Array, c: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray, flow: Array,
    node: IntArray, inside: BoolArray,
) -> None:  # fmt: skip
    """Recompute prices along the edges, then row sums, flows and loads: removes what rounding has shifted.

    In each connected part the first column keeps its price; this is one without a price if there is any.
    """
    rows, columns = c.shape
    for v in range(rows + columns):
        inside[v] = False
    for free in (True, False):
        for v in range(rows, rows + columns):
            if not inside[v] and (price[v] == 0.0 or not free):
                follow_prices(v, rows, c, m, price, edge, node, inside)
    for j in range(columns):
        held[rows + j] = 0.0
    for i in range(rows):
        held[i] = min(a[i] / price[i], bound[i])
        total = 0.0
        e = node[FIRST, i]
        while e >= 0:
            total += flow[e]
            e = edge[NEXT_OF_ROW, e]
        scale = held[i] / total
        if not scale < np.inf:  # rounding has left nothing on the edges of this row
            flow[node[FIRST, i]], scale = np.inf, 0.0
        e = node[FIRST, i]
        while e >= 0:
            flow[e] = flow[e] * scale if flow[e] < np.inf else held[i]
            held[edge[COLUMN, e]] += flow[e] * gain_of(e, rows, m, edge)
            e = edge[NEXT_OF_ROW, e]


@in_place_kernel
def follow_prices(
    r: int, rows: int, c: Array, m: Array, price: Array, edge: IntArray, node: IntArray, inside: BoolArray
) -> None:
    """Set the prices of all nodes that edges connect with column node r, such that each edge costs its row the same."""
    node[ORDER, 0] = r
    inside[r] = True
    size, head = 1, 0
    while head < size:
        v = node[ORDER, head]
        head += 1
        e = node[FIRST, v]
        while e >= 0:
            w = edge[COLUMN, e] if v < rows else edge[ROW, e]
            if not inside[w]:
                inside[w] = True
                node[ORDER, size] = w
                size += 1
                node[PARENT, w] = e
                cost, gain = c[edge[ROW, e], edge[COLUMN, e] - rows], gain_of(e, rows, m, edge)
                if v < rows:  # costs first: they are often equal and far above the prices
                    by = node[PARENT, v]
                    j = edge[COLUMN, by]
                    rest = c[v, j - rows] - cost + gain_of(by, rows, m, edge) * price[j]
                    price[w] = max(rest / gain, 0.0)
                else:
                    price[w] = cost + gain * price[v]
            e = edge[NEXT_OF_ROW if v < rows else NEXT_OF_COLUMN, e]
