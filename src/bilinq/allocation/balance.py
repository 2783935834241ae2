"""Kernels: exact prices and flows by removing imbalances, one column after the other, from any prices.

At any prices each row asks its cheapest column for what it wants. A column is out of balance if it is asked for more than
it has, or for less although it has a price. `shift` removes one imbalance and makes no other worse. It grows a tree of rows
and columns from that column and moves all prices of the tree together until another pair becomes as cheap as those in use,
a flow vanishes, or the imbalance is gone. This is the primal-dual method for the transport problem (Hungarian method),
with demands that depend on prices, and with durations as gains. `edges` explains nodes and edges.
"""

import numpy as np

from bilinq.allocation.edges import (
    BY,
    COLUMN,
    FIRST,
    NEXT_OF_COLUMN,
    NEXT_OF_ROW,
    ORDER,
    PARENT,
    ROW,
    above,
    connect,
    cut,
    gain_of,
    refresh,
)
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import in_place_kernel, inlined_kernel

EXACT, ROUNDING = 1e-14, 2e-13  # imbalance, relative to the capacity, that counts as none; that is left to rounding
SAME_SPEED = 1e-12  # difference of speeds, relatively, that counts as none
PASSES = 4  # how often rounding errors are removed
SPEED, CHANGE, WHEN, ASKED = range(4)
"""Of a node: by how much its price moves for one of the root; change of its flow; clock at which it comes in; what a row
asks for after a move."""
GO_ON, REBUILD = range(2)  # what follows a move: the tree stays, or it has changed


@inlined_kernel
def unbalanced(bound: Array, price: Array, held: Array, rows: int, much: float) -> bool:
    """Return whether a column is asked for more than it has, or for less although it has a price, by the part `much`."""
    for v in range(rows, bound.size):
        excess = held[v] - bound[v]
        if excess > much * bound[v] or (price[v] > 0.0 and -excess > much * bound[v]):
            return True
    return False


@in_place_kernel
def balance(
    a: Array, c: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray, flow: Array, node: IntArray,
    value: Array, inside: BoolArray, budget: int,
) -> int:  # fmt: skip
    """Remove all imbalances; return how many steps of trees it took, more than `budget` if it gave up."""
    rows = a.size
    steps = 0
    for k in range(PASSES):
        if not unbalanced(bound, price, held, rows, ROUNDING if k else EXACT):
            break
        for r in range(rows, bound.size):
            excess = held[r] - bound[r]
            if abs(excess) > EXACT * bound[r] and (excess > 0.0 or price[r] > 0.0):
                sign = 1.0 if excess > 0.0 else -1.0
                steps += shift(r, sign, a, c, m, bound, price, held, edge, flow, node, value, inside, budget - steps)
                if steps > budget:
                    return steps
        refresh(a, c, m, bound, price, held, edge, flow, node, inside)
    return steps


@in_place_kernel
def shift(
    r: int, sign: float, a: Array, c: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray,
    flow: Array, node: IntArray, value: Array, inside: BoolArray, budget: int,
) -> int:  # fmt: skip
    """Remove the excess (`sign` 1) or the deficit (-1) of column node r; return how many steps it took."""
    rows, columns = c.shape
    nodes = rows + columns
    timed = m.size > 0
    first, last = (rows, nodes) if sign > 0.0 else (0, rows)  # nodes that can come in while prices move
    steps = 0
    while sign * (held[r] - bound[r]) > EXACT * bound[r] and (sign > 0.0 or price[r] > 0.0):
        for v in range(nodes):
            inside[v] = False
            value[WHEN, v] = np.inf
        node[ORDER, 0] = r
        inside[r] = True
        value[SPEED, r] = 1.0
        size, head, clock = 1, 0, 0.0
        inner, inner_row, inner_column = np.inf, 0, 0
        while True:
            steps += 1
            if steps > budget or node[FIRST, nodes] == edge.shape[1] - 1:
                return budget + 1
            sink = -1
            while head < size and sink < 0:
                v = node[ORDER, head]
                if v >= rows and v != r and absorbs(v, sign, bound, price, held):
                    sink = v
                    break
                head += 1
                size = follow_edges(v, rows, m, edge, node, value, inside, size)
                if v < rows and sign > 0.0:
                    watch_columns(v, clock, rows, c, m, price, node, value)
                if v >= rows and sign < 0.0:
                    watch_rows(v, clock, rows, c, m, price, node, value)
                if timed:
                    late, i, w = watch_inside(v, sign, rows, c, m, price, edge, node, value, inside)
                    if clock + late < inner:
                        inner, inner_row, inner_column = clock + late, i, w
            if sink >= 0:
                clear(node, value, size)
                value[CHANGE, sink] = sign
                follows = push(r, sign, rows, m, bound, price, held, edge, flow, node, value, size, sink, -1, 1.0)
                if follows == REBUILD or absorbs(sink, sign, bound, price, held):
                    break
                continue
            enter, least = -1, inner
            for v in range(first, last):
                if value[WHEN, v] < least and not inside[v]:
                    enter, least = v, value[WHEN, v]
            delta = max(least - clock, 0.0)
            low = -1
            if sign < 0.0:
                for g in range(size):
                    v = node[ORDER, g]
                    if v >= rows and price[v] <= delta * value[SPEED, v]:
                        low, delta = v, price[v] / value[SPEED, v]
            if delta > 0.0 or low >= 0:
                delta, follows = move(r, sign, rows, a, m, bound, price, held, edge, flow, node, value, size, delta)
                clock += delta
                if follows == REBUILD:
                    break
                if low >= 0:
                    price[low] = 0.0
                    break
            if enter >= 0:
                by = node[BY, enter]
                i, v = (by, enter) if sign > 0.0 else (enter, by)
                e = connect(i, v, edge, node)
                flow[e] = 0.0
                value[SPEED, enter] = 1.0
                if timed:
                    gain = m[i, v - rows]
                    value[SPEED, enter] = value[SPEED, by] / gain if sign > 0.0 else value[SPEED, by] * gain
                inside[enter] = True
                node[PARENT, enter] = e
                node[ORDER, size] = enter
                size += 1
            elif inner < np.inf:
                clear(node, value, size)
                turn(r, sign, inner_row, inner_column, rows, m, bound, price, held, edge, flow, node, value, size)
                break
            else:
                return budget + 1  # no step is possible: cannot happen with exact arithmetic
    return steps


@inlined_kernel
def follow_edges(
    v: int, rows: int, m: Array, edge: IntArray, node: IntArray, value: Array, inside: BoolArray, size: int
) -> int:
    """Add the nodes that share an edge with v to the tree; return its new size."""
    timed = m.size > 0
    e = node[FIRST, v]
    while e >= 0:
        w = edge[COLUMN, e] if v < rows else edge[ROW, e]
        if not inside[w]:
            inside[w] = True
            node[PARENT, w] = e
            node[ORDER, size] = w
            size += 1
            value[SPEED, w] = 1.0
            if timed:
                gain = m[edge[ROW, e], edge[COLUMN, e] - rows]
                value[SPEED, w] = value[SPEED, v] / gain if v < rows else value[SPEED, v] * gain
        e = edge[NEXT_OF_ROW if v < rows else NEXT_OF_COLUMN, e]
    return size


@inlined_kernel
def watch_columns(
    i: int, clock: float, rows: int, c: Array, m: Array, price: Array, node: IntArray, value: Array
) -> None:
    """Note when row i, whose price rises, will find each column as cheap as those it uses."""
    when, by, q = value[WHEN, rows:], node[BY, rows:], price[rows:]
    now = clock - price[i]
    if m.size > 0:
        pace = 1.0 / value[SPEED, i]
        for j in range(c.shape[1]):
            late = clock + (c[i, j] + m[i, j] * q[j] - price[i]) * pace
            if late < when[j]:
                when[j] = late
                by[j] = i
        return
    for j in range(c.shape[1]):
        late = c[i, j] + q[j] + now
        if late < when[j]:
            when[j] = late
            by[j] = i


@inlined_kernel
def watch_rows(v: int, clock: float, rows: int, c: Array, m: Array, price: Array, node: IntArray, value: Array) -> None:
    """Note when each row will find column node v, whose price falls, as cheap as those it uses."""
    j = v - rows
    timed = m.size > 0
    for i in range(rows):
        late = c[i, j] + (m[i, j] * price[v] if timed else price[v]) - price[i]
        late = clock + (late / (m[i, j] * value[SPEED, v]) if timed else late)
        if late < value[WHEN, i]:
            value[WHEN, i] = late
            node[BY, i] = v


@inlined_kernel
def watch_inside(
    v: int, sign: float, rows: int, c: Array, m: Array, price: Array, edge: IntArray, node: IntArray, value: Array,
    inside: BoolArray,
) -> tuple[float, int, int]:  # fmt: skip
    """Return how long the pairs of v within the tree can stay as they are, and the row and column nodes of the first.

    With durations the prices of a tree move at different speeds. A pair that is no branch meets the price of its row, or,
    if it is an edge, leaves it at once.
    """
    best, row, column = np.inf, -1, -1
    for w in range(rows, inside.size) if v < rows else range(rows):
        if not inside[w]:
            continue
        i, u = (v, w) if v < rows else (w, v)
        j = u - rows
        rate = sign * (value[SPEED, i] - m[i, j] * value[SPEED, u])
        if rate > SAME_SPEED * value[SPEED, i]:
            late = max(c[i, j] + m[i, j] * price[u] - price[i], 0.0) / rate
            if late < best:
                best, row, column = late, i, u
    e = node[FIRST, v]
    while e >= 0:
        i, u = edge[ROW, e], edge[COLUMN, e]
        if inside[i] and inside[u]:
            rate = value[SPEED, i] - m[i, u - rows] * value[SPEED, u]
            if abs(rate) > SAME_SPEED * value[SPEED, i]:
                return 0.0, i, u
        e = edge[NEXT_OF_ROW if v < rows else NEXT_OF_COLUMN, e]
    return best, row, column


@inlined_kernel
def clear(node: IntArray, value: Array, size: int) -> None:
    """Set the flow changes of the tree to zero."""
    for g in range(size):
        value[CHANGE, node[ORDER, g]] = 0.0


@inlined_kernel
def absorbs(v: int, sign: float, bound: Array, price: Array, held: Array) -> bool:
    """Return whether column node v can take an excess (`sign` 1) or give to a deficit (-1)."""
    return sign * (bound[v] - held[v]) > EXACT * bound[v] or (sign < 0.0 and price[v] <= 0.0)


@inlined_kernel
def move(
    r: int, sign: float, rows: int, a: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray,
    flow: Array, node: IntArray, value: Array, size: int, delta: float,
) -> tuple[float, int]:  # fmt: skip
    """Move the tree's prices by `delta` at most, and flows with them; return by how much, and what follows."""
    timed = m.size > 0
    wanted = held[r] - bound[r]
    leave = -1
    done = delta == np.inf
    if done:
        delta = find_shift(a, bound, price, node, value, 0, size, rows, wanted, sign * np.inf)
    tolerance = 1e-13
    while True:
        clear(node, value, size)
        worst, bad = 1.0 + tolerance, -1
        tolerance *= 4.0  # rounding may let branches take turns in being the first to vanish
        for g in range(size - 1, 0, -1):
            v = node[ORDER, g]
            e = node[PARENT, v]
            if v < rows:
                value[ASKED, v] = min(a[v] / (price[v] + sign * value[SPEED, v] * delta), bound[v])
                less = value[CHANGE, v] + held[v] - value[ASKED, v]
                value[CHANGE, v] = less
                value[CHANGE, edge[COLUMN, e]] += less * m[v, edge[COLUMN, e] - rows] if timed else less
            else:
                less = -(value[CHANGE, v] / m[edge[ROW, e], v - rows] if timed else value[CHANGE, v])
                value[CHANGE, edge[ROW, e]] -= less
            if less > worst * flow[e] and v != leave:
                worst = less / flow[e]
                bad = v
        if leave < 0 and not done and sign * (value[CHANGE, r] - wanted) > 0.0:
            done = True
            delta = abs(find_shift(a, bound, price, node, value, 0, size, rows, wanted, sign * delta))
            continue
        if bad < 0:
            break
        leave, done = bad, False
        last = below(leave, rows, edge, node, value, size)
        e = node[PARENT, leave]
        much = sign * flow[e] * value[SPEED, edge[ROW, e]]
        delta = abs(find_shift(a, bound, price, node, value, value.shape[1], last, rows, much, sign * delta))
    for g in range(size):
        v = node[ORDER, g]
        price[v] = max(price[v] + sign * value[SPEED, v] * delta, 0.0)
        e = node[PARENT, v]
        if v < rows:
            held[v] = value[ASKED, v]
            flow[e] = max(flow[e] - value[CHANGE, v], 0.0)
        elif v != r:
            flow[e] = max(flow[e] + (value[CHANGE, v] / m[edge[ROW, e], v - rows] if timed else value[CHANGE, v]), 0.0)
    held[r] = bound[r] if done else held[r] - value[CHANGE, r]
    if leave >= 0:
        cut(node[PARENT, leave], edge, node)
    return delta, REBUILD if done or leave >= 0 else GO_ON


@in_place_kernel
def below(v: int, rows: int, edge: IntArray, node: IntArray, value: Array, size: int) -> int:
    """List v and what hangs on it behind the tree; return where the list ends."""
    last = int(value.shape[1])
    for g in range(size):
        w = node[ORDER, g]
        hangs = w == v or (g > 0 and value[CHANGE, above(w, rows, edge, node)] > 0.0)
        value[CHANGE, w] = 1.0 if hangs else 0.0
        node[ORDER, last] = w
        last += hangs
    return last


@in_place_kernel
def find_shift(
    a: Array, bound: Array, price: Array, node: IntArray, value: Array, first: int, last: int, rows: int,
    change: float, far: float,
) -> float:  # fmt: skip
    """Return the shift between 0 and `far` (of either sign) at which the demand of the listed rows has fallen by `change`.

    Safeguarded Newton steps on 1 / demand, which is nearly linear in the shift and exactly so for a single row.
    """
    demand, slope, opens = total_demand(a, bound, price, node, value, first, last, rows, 0.0)
    target = demand - change
    exact = 1e-16 * demand
    near, x = 0.0, 0.0
    for _ in range(200):
        if (demand > target) == (change > 0.0):
            near = x
        else:
            far = x
        if abs(demand - target) <= exact:
            break
        new = 1.01 * opens if change > 0.0 else far
        if slope > 0.0:
            new = x + (demand - target) / slope * (demand / target if target > 0.0 else 1.0)
        if not min(near, far) < new < max(near, far):
            new = 0.5 * (near + far) if abs(far) < np.inf else 2.0 * x + opens
        if new in (x, near, far):
            break
        x = new
        demand, slope, opens = total_demand(a, bound, price, node, value, first, last, rows, x)
    return x


@inlined_kernel
def total_demand(
    a: Array, bound: Array, price: Array, node: IntArray, value: Array, first: int, last: int, rows: int, x: float
) -> tuple[float, float, float]:
    """Return what the listed rows ask for after a shift by x, times their speeds; its slope; the shift that opens a cap."""
    total, slope, opens = 0.0, 0.0, np.inf
    for g in range(first, last):
        i = node[ORDER, g]
        if i >= rows:
            continue
        speed = value[SPEED, i]
        over = 1.0 / (price[i] + speed * x)
        asked = a[i] * over
        if asked < bound[i]:
            total += asked * speed
            slope += asked * over * speed * speed
        else:
            total += bound[i] * speed
            at = (a[i] / bound[i] - price[i]) / speed
            opens = min(opens, max(at, x + 1e-15 * price[i] / speed))  # the row may be at its cap exactly
    return total, slope, opens


@inlined_kernel
def turn(
    r: int, sign: float, i: int, v: int, rows: int, m: Array, bound: Array, price: Array, held: Array, edge: IntArray,
    flow: Array, node: IntArray, value: Array, size: int,
) -> None:  # fmt: skip
    """Send flow around the cycle that the pair of row i and column node v closes, in the direction that helps the root."""
    gain = m[i, v - rows]
    way = 1.0 if sign * (value[SPEED, i] - gain * value[SPEED, v]) > 0.0 else -1.0
    e = node[FIRST, i]
    while e >= 0 and edge[COLUMN, e] != v:
        e = edge[NEXT_OF_ROW, e]
    if e < 0:
        e = connect(i, v, edge, node)
        flow[e] = 0.0
    value[CHANGE, i] = way
    value[CHANGE, v] = -way * gain
    push(r, sign, rows, m, bound, price, held, edge, flow, node, value, size, -1, e, way)


@inlined_kernel
def push(
    r: int, sign: float, rows: int, m: Array, bound: Array, price: Array, held: Array, edge: IntArray, flow: Array,
    node: IntArray, value: Array, size: int, sink: int, extra: int, way: float,
) -> int:  # fmt: skip
    """Move as much flow as possible in the direction that starts with value[CHANGE]; return what follows.

    It starts at column node `sink`, or with the edge `extra`, which is no branch and gains (`way` 1) or loses (-1).
    """
    for g in range(size - 1, 0, -1):
        v = node[ORDER, g]
        if value[CHANGE, v] != 0.0:
            gain = gain_of(node[PARENT, v], rows, m, edge)
            value[CHANGE, above(v, rows, edge, node)] += value[CHANGE, v] * (gain if v < rows else 1.0 / gain)
    whole = max((held[r] - bound[r]) / value[CHANGE, r], 0.0)
    much = whole
    gone = -1
    if sink >= 0 and (sign > 0.0 or price[sink] > 0.0):
        much = min(much, abs(bound[sink] - held[sink]))
    if way < 0.0 and flow[extra] <= much:
        much = flow[extra]
        gone = extra
    for g in range(1, size):
        v = node[ORDER, g]
        e = node[PARENT, v]
        less = value[CHANGE, v] if v < rows else -value[CHANGE, v] / gain_of(e, rows, m, edge)
        if less > 0.0 and flow[e] <= less * much:
            much = flow[e] / less
            gone = e
    for g in range(1, size):
        v = node[ORDER, g]
        e = node[PARENT, v]
        less = value[CHANGE, v] if v < rows else -value[CHANGE, v] / gain_of(e, rows, m, edge)
        flow[e] = max(flow[e] - less * much, 0.0)
    if extra >= 0:
        flow[extra] = max(flow[extra] + way * much, 0.0)
    if gone >= 0:
        cut(gone, edge, node)
    done = much == whole
    held[r] = bound[r] if done else held[r] - much * value[CHANGE, r]
    if sink >= 0:
        held[sink] += sign * much
    return REBUILD if done or gone >= 0 else GO_ON
