"""Kernels: the solver. Prices that are nearly right, then exact ones with their flows, the tie rule, and the certificate."""

import numpy as np

from bilinq.allocation.approach import approach
from bilinq.allocation.balance import balance
from bilinq.allocation.edges import COLUMN, FIRST, NEXT_OF_ROW, place, space
from bilinq.allocation.program import OVER, TIE, certificate, prepare, price_absent, trim, unsaturated
from bilinq.allocation.split import split
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import inlined_kernel, kernel, part_kernel

BAD = -1  # returned instead of a number of steps where an argument breaks the rules
UNFINISHED = np.inf  # the certificate where a small program needs the steps that only the kernels for all sizes have
SMALL, DIRECT = 250, 1000
"""Number of pairs up to which prices start from one level for all columns; and up to which they may, if that fits well."""
MISPLACED, PLENTY = 0.5, 0.3
"""Part of all capacity that rows may ask for in excess at the first prices, in general and where demand is low, so that no
interior point steps are needed."""
LOW = 1.05  # demand at zero prices, relative to the capacity, that counts as low
PATIENCE = 400  # steps of trees for each row and column before giving up; ten are many
NOISE = 1e-12  # relative change of the costs that ends a cycle of steps that lead nowhere


@kernel
def solve_batch(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array,
    eligible: BoolArray, duration: Array, q_last: Array, y: Array, q: Array, r: Array, gap: Array,
) -> int:  # fmt: skip
    """Fill y (B, I, J), q (B, J), certificates r (B,) and duality gaps (B,) of a batch; return its steps, or `BAD`."""
    no_time, no_price = np.empty((0, 0)), np.empty(0)
    good, a, c, m, u, f = prepare_batch(queue, reward, capacity, V, gamma, weight, limit, eligible, duration)
    if not good:
        return BAD
    steps = 0
    for b in range(r.size):
        time = m[b] if m.size > 0 and (m[b] != 1.0).any() else no_time
        more, r[b], gap[b] = solve_one(
            a[b], c[b], time, capacity[b], u[b], q_last[b] if q_last.size > 0 else no_price, y[b], q[b]
        )
        steps += more
    restore(f, m, y)
    return steps


@kernel
def solve_small_batch(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array,
    eligible: BoolArray, duration: Array, q_last: Array, y: Array, q: Array, r: Array, gap: Array,
) -> int:  # fmt: skip
    """Do the same as `solve_batch` for programs of at most `SMALL` pairs, by `solve_small`."""
    no_time, no_price = np.empty((0, 0)), np.empty(0)
    good, a, c, m, u, f = prepare_batch(queue, reward, capacity, V, gamma, weight, limit, eligible, duration)
    if not good:
        return BAD
    steps = 0
    for b in range(r.size):
        time = m[b] if m.size > 0 and (m[b] != 1.0).any() else no_time
        more, r[b], gap[b] = solve_small(
            a[b], c[b], time, capacity[b], u[b], q_last[b] if q_last.size > 0 else no_price, y[b], q[b]
        )
        steps += more
    restore(f, m, y)
    return steps


@kernel
def prepare_batch(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array,
    eligible: BoolArray, duration: Array,
) -> tuple[bool, Array, Array, Array, Array, Array]:  # fmt: skip
    """Return whether all arguments are good; a (B, I), costs, durations and caps as the solver needs them, and scales."""
    size, rows, _ = reward.shape
    masked, timed = eligible.size > 0, duration.size > 0
    all_eligible, no_time = np.empty((0, 0), np.bool_), np.empty((0, 0))
    a, c, u = np.empty((size, rows)), np.empty(reward.shape), np.empty((size, rows))
    m, f = np.empty(duration.shape), np.ones((size, rows))
    good = True
    for b in range(size):
        good = good and prepare(
            queue[b], reward[b], capacity[b], V[b], gamma[b], weight[b], limit[b],
            eligible[b] if masked else all_eligible, duration[b] if timed else no_time,
            a[b], c[b], m[b] if timed else no_time, u[b], f[b],
        )  # fmt: skip
    return good, a, c, m, u, f


@kernel
def restore(f: Array, m: Array, y: Array) -> None:
    """Divide the services y (B, I, J) by the scales f (B, I) of durations, if there are durations."""
    for b in range(len(y) if m.size > 0 else 0):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                y[b, i, j] /= f[b, i]


@kernel
def solve_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, y: Array, q: Array
) -> tuple[int, float, float]:
    """Fill y and q of one program with the five plain arguments only; return steps (or `BAD`), certificate and gap."""
    good, a, c, u = prepare_plain(queue, reward, capacity, V, gamma)
    return solve_one(a, c, c[:0], capacity, u, u[:0], y, q) if good else (BAD, np.inf, np.inf)


@kernel
def solve_small_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, y: Array, q: Array
) -> tuple[int, float, float]:
    """Do the same as `solve_plain` for a program of at most `SMALL` pairs, by `solve_small`."""
    good, a, c, u = prepare_plain(queue, reward, capacity, V, gamma)
    return solve_small(a, c, c[:0], capacity, u, u[:0], y, q) if good else (BAD, np.inf, np.inf)


@kernel
def prepare_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float
) -> tuple[bool, Array, Array, Array]:
    """Return whether the arguments are good, and a, costs and caps."""
    rows, columns = reward.shape
    a, u = np.ones(rows), np.full(rows, np.inf)  # first weights and limits
    c = np.empty((rows, columns))
    no_time = c[:0]
    fits = rows > 0 and columns > 0 and queue.size == rows and capacity.size == columns
    good = fits and prepare(
        queue, reward, capacity, V, gamma, a, u, np.empty((0, 0), np.bool_), no_time, a, c, no_time, u, a
    )  # fmt: skip
    return good, a, c, u


@part_kernel
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


@part_kernel
def solve_small(
    a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array
) -> tuple[int, float, float]:
    """Do the same as `solve_one` for a program of at most `SMALL` pairs, in nearly all cases; else `UNFINISHED`.

    Interior point steps are left out, since they take most of the time that it takes to compile `solve_one`.
    """
    steps = 0
    if unsaturated(a, c, m, n, u, y, q):
        trim(m, n, y, 2.0 * OVER)
    else:
        steps = saturated_small(a, c, m, n, u, q_last, y, q)
        if steps < 0:
            return 0, UNFINISHED, UNFINISHED
    r, gap = certificate(a, c, m, n, u, y, q)
    price_absent(a, c, m, n, u, q)
    return steps, r, gap


@part_kernel
def saturated_small(a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array) -> int:
    """Do the same as `saturated` if the first steps of trees are enough; else return a negative number."""
    rows, columns = taking_part(a, c, n, u)
    y[:, :] = 0.0
    q[:] = 0.0
    if rows.size == 0:
        return 0
    a, c, m, bound = compact(a, c, m, n, u, rows, columns)
    price, held = np.zeros(bound.size), np.empty(bound.size)
    edge, flow, node, value, inside = space(rows.size, columns.size)
    steps, budget = first_steps(a, c, m, bound, columns, q_last, price, held, edge, flow, node, value, inside)
    if steps > budget:
        return -1
    for j in range(columns.size):
        q[columns[j]] = price[rows.size + j]
    fill(c, m, bound, price, held, edge, flow, node, rows, columns, y)
    return steps


@part_kernel
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
    a, c, m, bound = compact(a, c, m, n, u, rows, columns)
    price, held = np.zeros(bound.size), np.empty(bound.size)
    edge, flow, node, value, inside = space(size, columns.size)
    patience = PATIENCE * (size + columns.size)
    steps, budget = first_steps(a, c, m, bound, columns, q_last, price, held, edge, flow, node, value, inside)
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


@part_kernel
def first_steps(
    a: Array, c: Array, m: Array, bound: Array, columns: IntArray, q_last: Array, price: Array, held: Array,
    edge: IntArray, flow: Array, node: IntArray, value: Array, inside: BoolArray,
) -> tuple[int, int]:  # fmt: skip
    """Balance flows by steps of trees from the first prices; return the steps and how many were allowed."""
    size = a.size
    warm = q_last.size > 0
    for j in range(columns.size if warm else 0):
        price[size + j] = q_last[columns[j]]
        warm = warm and 0.0 <= q_last[columns[j]] < np.inf
    steps, budget = 0, 2 * (size + columns.size)
    if not warm:
        price[size:] = level(a, c, m, bound)
    place(a, c, m, bound, price, held, edge, flow, node)
    if not warm:
        budget = first_budget(c, m, bound, price, held)
    if budget > 0:
        steps = balance(a, c, m, bound, price, held, edge, flow, node, value, inside, budget)
    return steps, budget


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
    bound = np.empty(rows.size + columns.size)
    for j in range(columns.size):
        bound[rows.size + j] = n[columns[j]]
    if rows.size == a.size and columns.size == n.size:
        for i in range(rows.size):
            bound[i] = u[i]
        return a, c, m, bound
    demand = np.empty(rows.size)
    cost = np.empty((rows.size, columns.size))
    time = np.empty(cost.shape if m.size > 0 else (0, 0))
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
