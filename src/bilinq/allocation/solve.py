"""Kernels: the solver. Prices that are nearly right, then exact ones with their flows, the tie rule, and the certificate."""

import numpy as np

from bilinq.allocation.balance import balance
from bilinq.allocation.edges import COLUMN, FIRST, NEXT_OF_ROW, place, space
from bilinq.allocation.interior import A, C, N, Q, U, advance, start_cold
from bilinq.allocation.packing import FEW, pack, take_in, thin, widen
from bilinq.allocation.program import OVER, TIE, certificate, prepare, price_absent, trim, unsaturated
from bilinq.allocation.split import split
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import inlined_kernel, kernel

BAD = -1  # returned instead of a number of steps where an argument breaks the rules
SMALL, DIRECT = 250, 1000
"""Number of pairs up to which prices start from one level for all columns; and up to which they may, if that fits well."""
MISPLACED, PLENTY = 0.5, 0.3
"""Part of all capacity that rows may ask for in excess at the first prices, in general and where demand is low, so that no
interior point steps are needed."""
LOW = 1.05  # demand at zero prices, relative to the capacity, that counts as low
NEAR = 2.0  # gap times the number of pairs, relative to the costs, at which interior point steps end
IDLE = 3.0  # a column whose price is below this multiple of what it is in idle columns, at the same gap, gets no price
TAKE_IN_FROM = 1e-2  # gap, relative to the costs, below which prices are good enough to add further pairs
COLD_PAIRS = 12  # pairs of each row at the start of a large program
STEPS = 60  # interior point steps before giving up; six to twelve are usual
JAM = 10  # steps in which the gap must halve where pairs were left out; otherwise the chosen pairs are the wrong ones
PATIENCE = 400  # steps of trees for each row and column before giving up; ten are many
NOISE = 1e-12  # relative change of the costs that ends a cycle of steps that lead nowhere


@kernel
def solve_batch(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array,
    eligible: BoolArray, duration: Array, q_last: Array, y: Array, q: Array, r: Array, gap: Array,
) -> int:  # fmt: skip
    """Fill y (B, I, J), q (B, J), certificates r (B,) and duality gaps (B,) of a batch; return its steps, or `BAD`."""
    size, rows, columns = reward.shape
    masked, timed, cold = eligible.size > 0, duration.size > 0, q_last.size == 0
    all_eligible, no_time, no_price = np.empty((0, 0), np.bool_), np.empty((0, 0)), np.empty(0)
    a, c, u = np.empty((size, rows)), np.empty(reward.shape), np.empty((size, rows))
    m, f = np.empty(duration.shape), np.ones((size, rows))
    for b in range(size):
        if not prepare(
            queue[b], reward[b], capacity[b], V[b], gamma[b], weight[b], limit[b],
            eligible[b] if masked else all_eligible, duration[b] if timed else no_time,
            a[b], c[b], m[b] if timed else no_time, u[b], f[b],
        ):  # fmt: skip
            return BAD
    steps = 0
    for b in range(size):
        unlike = timed and (m[b] != 1.0).any()
        more, r[b], gap[b] = solve_one(
            a[b], c[b], m[b] if unlike else no_time, capacity[b], u[b], no_price if cold else q_last[b], y[b], q[b]
        )
        steps += more
        for i in range(rows if timed else 0):
            for j in range(columns):
                y[b, i, j] /= f[b, i]
    return steps


@kernel
def solve_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, y: Array, q: Array
) -> tuple[int, float, float]:
    """Fill y and q of one program with the five plain arguments only; return steps (or `BAD`), certificate and gap."""
    rows, columns = reward.shape
    if not rows or not columns or queue.size != rows or capacity.size != columns:
        return BAD, np.inf, np.inf
    a, u = np.ones(rows), np.full(rows, np.inf)  # first weights and limits
    c = np.empty((rows, columns))
    no_time = c[:0]
    if not prepare(
        queue, reward, capacity, V, gamma, a, u, np.empty((0, 0), np.bool_), no_time, a, c, no_time, u, a
    ):  # fmt: skip
        return BAD, np.inf, np.inf
    return solve_one(a, c, no_time, capacity, u, u[:0], y, q)


@kernel
def solve_one(
    a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array
) -> tuple[int, float, float]:
    """Fill y (I, J) and prices q (J,) of a program; return its steps, the certificate and the duality gap.

    `q_last` are prices to start from; the start is cold where it has length zero or prices are not finite. The answer is
    feasible even if it cannot be certified.
    """
    steps = 0
    if unsaturated(a, c, m, n, u, y, q):
        trim(m, n, y, 2.0 * OVER)
    else:
        steps = saturated(a, c, m, n, u, q_last, y, q)
    r, gap = certificate(a, c, m, n, u, y, q)
    price_absent(a, c, m, n, u, q)
    return steps, r, gap


@kernel
def saturated(a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array) -> int:
    """Solve where prices matter; rows and columns that take no part are left out: they get nothing, at no price.

    Returns the steps: those of the interior point and those of trees.
    """
    rows, columns = taking_part(a, c, n, u)
    y[:, :] = 0.0
    q[:] = 0.0
    if rows.size == 0:
        return 0
    size = rows.size
    if size < a.size or columns.size < n.size:
        a, c, m, bound = compact(a, c, m, n, u, rows, columns)
    else:
        bound = np.concatenate((u, n))
    price, held = np.zeros(bound.size), np.empty(bound.size)
    edge, flow, node, value, inside = space(size, columns.size)
    warm = q_last.size > 0
    for j in range(columns.size if warm else 0):
        price[size + j] = q_last[columns[j]]
        warm = warm and 0.0 <= q_last[columns[j]] < np.inf
    steps, patience = 0, PATIENCE * (size + columns.size)
    budget = 2 * (size + columns.size)
    if not warm:
        price[size:] = level(a, c, m, bound)
    place(a, c, m, bound, price, held, edge, flow, node)
    if not warm:
        budget = first_budget(c, m, bound, price, held)
    if budget > 0:
        steps = balance(a, c, m, bound, price, held, edge, flow, node, value, inside, budget)
    if steps > budget or budget == 0:
        steps += approach(a, c, m, bound, price[size:])
        place(a, c, m, bound, price, held, edge, flow, node)
        more = balance(a, c, m, bound, price, held, edge, flow, node, value, inside, patience)
        steps += more
        if more > patience:
            c = shaken(c)
            price[size:] = level(a, c, m, bound)
            place(a, c, m, bound, price, held, edge, flow, node)
            steps += balance(a, c, m, bound, price, held, edge, flow, node, value, inside, patience)
    for j in range(columns.size):
        q[columns[j]] = price[size + j]
    fill(c, m, bound, price, held, edge, flow, node, rows, columns, y)
    return steps


@kernel
def taking_part(a: Array, c: Array, n: Array, u: Array) -> tuple[IntArray, IntArray]:
    """Return the rows that want something and have an eligible server, and the columns with servers."""
    rows, columns = np.empty(a.size, np.int64), np.empty(n.size, np.int64)
    many, some = 0, 0
    for j in range(n.size):
        columns[some] = j
        some += n[j] > 0.0
    for i in range(a.size):
        wants = False
        if a[i] > 0.0 and u[i] > 0.0:
            for k in range(some):
                if c[i, columns[k]] < np.inf:
                    wants = True
                    break
        rows[many] = i
        many += wants
    return rows[:many], columns[:some]


@kernel
def compact(
    a: Array, c: Array, m: Array, n: Array, u: Array, rows: IntArray, columns: IntArray
) -> tuple[Array, Array, Array, Array]:
    """Return a, costs, durations, and caps with capacities, of the given rows and columns only."""
    demand, bound = np.empty(rows.size), np.empty(rows.size + columns.size)
    cost = np.empty((rows.size, columns.size))
    time = np.empty(cost.shape if m.size > 0 else (0, 0))
    for j in range(columns.size):
        bound[rows.size + j] = n[columns[j]]
    for i in range(rows.size):
        demand[i] = a[rows[i]]
        bound[i] = u[rows[i]]
        for j in range(columns.size):
            cost[i, j] = c[rows[i], columns[j]]
            if m.size > 0:
                time[i, j] = m[rows[i], columns[j]]
    return demand, cost, time, bound


@kernel
def level(a: Array, c: Array, m: Array, bound: Array) -> float:
    """Return about the price at which rows would ask for the whole capacity, at their least cost and shortest duration."""
    rows = a.size
    capacity = bound[rows:].sum()
    least, time = np.full(rows, np.inf), np.ones(rows)
    for i in range(rows):
        for j in range(c.shape[1]):
            least[i] = min(least[i], c[i, j])
        if m.size > 0:
            time[i] = m[i].min()
    price = 0.0
    for _ in range(8):
        demand, slope = 0.0, 0.0
        for i in range(rows):
            asked = a[i] / (least[i] + time[i] * price)
            if asked < bound[i]:
                demand += time[i] * asked
                slope += time[i] * time[i] * asked / (least[i] + time[i] * price)
            else:
                demand += time[i] * bound[i]
        if demand <= capacity * LOW or slope == 0.0:
            break
        price += (demand - capacity) / slope * (demand / capacity)
    return price


@kernel
def first_budget(c: Array, m: Array, bound: Array, price: Array, held: Array) -> int:
    """Return how many steps of trees to try from the first prices, before interior point steps are worth their time.

    Zero if too much is misplaced at these prices. Interior point steps cannot handle durations.
    """
    rows, columns = c.shape
    if c.size <= SMALL or m.size > 0:
        return int(PATIENCE * (rows + columns))
    excess = 0.0
    for v in range(rows, bound.size):
        excess += max(held[v] - bound[v], 0.0)
    excess /= bound[rows:].sum()
    if c.size <= DIRECT and excess <= MISPLACED:
        return int(PATIENCE * (rows + columns))
    return 5 * min(rows, columns) if price[rows] == 0.0 and excess <= PLENTY else 0


@kernel
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
    row[A], row[U], col[N] = a, bound[:rows], bound[rows:]
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


@kernel
def shaken(c: Array) -> Array:
    """Return the costs changed by a trace that differs from pair to pair, so that there are no ties."""
    state = 1
    near = np.empty(c.shape)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            state = (state * 48271) % 2147483647
            near[i, j] = c[i, j] * (1.0 + NOISE * state / 2147483647.0)
    return near


@kernel
def fill(
    c: Array, m: Array, bound: Array, price: Array, held: Array, edge: IntArray, flow: Array, node: IntArray,
    rows: IntArray, columns: IntArray, y: Array,
) -> None:  # fmt: skip
    """Copy the flows to y (I, J): those of the edges, or where there are ties, those of the tie rule if they fit."""
    timed = m.size > 0
    size = rows.size
    n = bound[size:]
    width = count_tight(c, m, price)
    tied = ambiguous(width, price, edge, flow, node)
    if tied:
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
        for i in range(size):
            total = 0.0
            for k in range(width[i]):
                tied = tied and spread[i, k] >= -FITS * held[i]
                spread[i, k] = max(spread[i, k], 0.0)
                total += spread[i, k]
                load[cols[i, k]] += spread[i, k] * (time[i, k] if timed else 1.0)
            tied = tied and abs(total - held[i]) <= FITS * held[i]
        for j in range(n.size):
            tied = tied and load[j] <= n[j] * (1.0 + FITS)
            tied = tied and (price[size + j] == 0.0 or load[j] >= n[j] * (1.0 - FITS))
    for i in range(size):
        if tied:
            for k in range(width[i]):
                y[rows[i], columns[cols[i, k]]] = spread[i, k]
        else:
            e = node[FIRST, i]
            while e >= 0:
                y[rows[i], columns[edge[COLUMN, e] - size]] += flow[e]
                e = edge[NEXT_OF_ROW, e]
    fit(m, n, bound, rows, columns, y)


FITS = 1e-10  # part by which the flows of the tie rule may miss the sum of a row or a column


@inlined_kernel
def tight(i: int, j: int, c: Array, m: Array, price: Array) -> bool:
    """Return whether a pair costs its row no more than the row's price, up to rounding."""
    v = c.shape[0] + j
    return bool(c[i, j] + (m[i, j] * price[v] if m.size > 0 else price[v]) <= price[i] * (1.0 + TIE))


@kernel
def count_tight(c: Array, m: Array, price: Array) -> IntArray:
    """Return how many tight pairs each row has (I,)."""
    width = np.zeros(c.shape[0], np.int64)
    for i in range(width.size):
        for j in range(c.shape[1]):
            width[i] += tight(i, j, c, m, price)
    return width


@kernel
def ambiguous(width: IntArray, price: Array, edge: IntArray, flow: Array, node: IntArray) -> bool:
    """Return whether other flows fit the same prices: a tight pair is not in use, or flow can move between idle columns."""
    rows = width.size
    group = np.arange(price.size)  # columns that rows connect, as trees: each column points to another of its group
    idle = np.zeros(price.size, np.bool_)
    for v in range(rows, price.size):
        idle[v] = price[v] == 0.0
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


@kernel
def fit(m: Array, n: Array, bound: Array, rows: IntArray, columns: IntArray, y: Array) -> None:
    """Scale down columns above their capacity and rows above their cap: rounding, or an answer that is not exact."""
    for j in range(columns.size):
        load = 0.0
        for i in range(rows.size):
            load += (m[i, j] if m.size > 0 else 1.0) * y[rows[i], columns[j]]
        if load > n[j]:
            for i in range(rows.size):
                y[rows[i], columns[j]] *= n[j] / load
    for i in range(rows.size):
        total = 0.0
        for j in range(columns.size):
            total += y[rows[i], columns[j]]
        if total > bound[i]:
            for j in range(columns.size):
                y[rows[i], columns[j]] *= bound[i] / total
