"""Kernels: the solver. Prices that are nearly right, then exact ones with their flows, the tie rule, and the certificate."""

import numpy as np

from bilinq.allocation.approach import approach
from bilinq.allocation.balance import balance
from bilinq.allocation.edges import place, space
from bilinq.allocation.finish import fill
from bilinq.allocation.program import OVER, certify, price_absent, trim, unsaturated
from bilinq.allocation.small import SMALL
from bilinq.allocation.start import (
    BAD,
    PATIENCE,
    bounds,
    level,
    prepare_batch,
    prepare_plain,
    restore,
    select,
    taking_part,
)
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel, part_kernel
from bilinq.linking import share

DIRECT = 1000  # pairs up to which prices may start from one level for all columns, if that fits well
MISPLACED, PLENTY = 0.5, 0.3
"""Part of all capacity that rows may ask for in excess at the first prices, in general and where demand is low, so that no
interior point steps are needed."""
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
def solve_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, y: Array, q: Array
) -> tuple[int, float, float]:
    """Fill y and q of one program with the five plain arguments only; return steps (or `BAD`), certificate and gap."""
    a, c, u = np.empty(queue.size), np.empty(reward.shape), np.empty(queue.size)
    good = prepare_plain(queue, reward, capacity, V, gamma, a, c, u, np.empty(0, np.bool_))
    return solve_one(a, c, c[:0], capacity, u, u[:0], y, q) if good else (BAD, np.inf, np.inf)


@kernel
def solve_saturated(a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array) -> int:
    """Do the same as `saturated`, for calls from Python."""
    return saturated(a, c, m, n, u, q_last, y, q)


@part_kernel
def solve_one(
    a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array
) -> tuple[int, float, float]:
    """Fill y (I, J) and prices q (J,) of a program; return its steps, the certificate and the duality gap.

    `q_last` are prices to start from; the start is cold where it has length zero or prices are not finite. The answer is
    feasible even if it cannot be certified.
    """
    steps, load = 0, np.empty(n.size)
    if unsaturated(a, c, m, n, u, y, q, load):
        trim(m, n, y, 2.0 * OVER)
    else:
        steps = saturated(a, c, m, n, u, q_last, y, q)
    r, gap = certify(a, c, m, n, u, y, q, load, np.empty(n.size))
    price_absent(a, c, m, n, u, q)
    return steps, r, gap


@share
@kernel
def saturated(a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array) -> int:
    """Solve where prices matter; rows and columns that take no part are left out: they get nothing, at no price.

    Returns the steps: those of the interior point and those of trees.
    """
    rows, columns = np.empty(a.size, np.int64), np.empty(n.size, np.int64)
    size, some = taking_part(a, c, n, u, rows, columns)
    rows, columns = rows[:size], columns[:some]
    y[:, :] = 0.0
    q[:] = 0.0
    if size == 0:
        return 0
    bound = np.empty(size + some)
    bounds(n, u, rows, columns, bound)
    if size < a.size or some < n.size:
        whole_a, whole_c, whole_m = a, c, m
        a, c = np.empty(size), np.empty((size, some))
        m = np.empty(c.shape if m.size > 0 else (0, 0))
        select(whole_a, whole_c, whole_m, rows, columns, a, c, m)
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
            price[size:] = level(a, c, m, bound, np.empty(size), np.empty(size))
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
        price[size:] = level(a, c, m, bound, np.empty(size), np.empty(size))
    place(a, c, m, bound, price, held, edge, flow, node)
    if not warm:
        budget = first_budget(c, m, bound, price, held)
    if budget > 0:
        steps = balance(a, c, m, bound, price, held, edge, flow, node, value, inside, budget)
    return steps, budget


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
