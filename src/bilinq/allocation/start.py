"""Kernels: what comes before exact prices: arguments, the rows and columns that take part, and a price to start from."""

import numpy as np

from bilinq.allocation.program import prepare
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import bare_kernel, in_place_kernel, kernel

BAD = -1  # returned instead of a number of steps where an argument breaks the rules
LOW = 1.05  # demand at zero prices, relative to the capacity, that counts as low
PATIENCE = 400  # steps of trees for each row and column before giving up; ten are many


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


@bare_kernel
def prepare_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, a: Array, c: Array, u: Array, none: BoolArray
) -> bool:
    """Fill a, costs and caps of a program with the five plain arguments only; return whether these are good.

    `none` is empty.
    """
    rows, columns = reward.shape
    if not (rows > 0 and columns > 0 and queue.size == rows and capacity.size == columns):
        return False
    for i in range(rows):  # first weights and limits
        a[i] = 1.0
        u[i] = np.inf
    no_time = c[:0]
    return prepare(queue, reward, capacity, V, gamma, a, u, none.reshape(0, 0), no_time, a, c, no_time, u, a)


@bare_kernel
def taking_part(a: Array, c: Array, n: Array, u: Array, rows: IntArray, columns: IntArray) -> tuple[int, int]:
    """Fill the rows (I,) that want something and have an eligible server, and the columns (J,) with servers.

    Return how many they are.
    """
    many, some = 0, 0
    for j in range(n.size):
        if n[j] > 0.0:
            columns[some] = j
            some += 1
    for i in range(a.size):
        if a[i] > 0.0 and u[i] > 0.0:
            for k in range(some):
                if c[i, columns[k]] < np.inf:
                    rows[many] = i
                    many += 1
                    break
    return many, some


@bare_kernel
def select(
    a: Array, c: Array, m: Array, rows: IntArray, columns: IntArray, demand: Array, cost: Array, time: Array
) -> None:
    """Fill demand, cost and time with a, costs and durations of the given rows and columns."""
    timed = m.size > 0
    for i in range(rows.size):
        demand[i] = a[rows[i]]
        for j in range(columns.size):
            cost[i, j] = c[rows[i], columns[j]]
            if timed:
                time[i, j] = m[rows[i], columns[j]]


@bare_kernel
def bounds(n: Array, u: Array, rows: IntArray, columns: IntArray, bound: Array) -> None:
    """Fill `bound` with the caps of the given rows, then the capacities of the given columns."""
    for i in range(rows.size):
        bound[i] = u[rows[i]]
    for j in range(columns.size):
        bound[rows.size + j] = n[columns[j]]


@in_place_kernel
def level(a: Array, c: Array, m: Array, bound: Array, least: Array, time: Array) -> float:
    """Return about the price at which rows would ask for the whole capacity, at their least cost and shortest duration.

    It is not above the one at which they would if costs were zero: caps let the steps overshoot by many powers of ten.
    `least` and `time` (I,) are overwritten by these.
    """
    rows, capacity, total, timed = a.size, 0.0, 0.0, m.size > 0
    for v in range(rows, bound.size):
        capacity += bound[v]
    for i in range(rows):
        total += a[i]
        least[i] = np.inf
        time[i] = np.inf if timed else 1.0
        for j in range(c.shape[1]):
            least[i] = min(least[i], c[i, j])
            if timed:
                time[i] = min(time[i], m[i, j])
    price = 0.0
    for _ in range(8):
        demand, slope = 0.0, 0.0
        for i in range(rows):
            over = 1.0 / (least[i] + time[i] * price)
            asked = a[i] * over
            if asked < bound[i]:
                demand += time[i] * asked
                slope += time[i] * time[i] * asked * over
            else:
                demand += time[i] * bound[i]
        if demand <= capacity * LOW or slope == 0.0:
            break
        price = min(price + (demand - capacity) / slope * (demand / capacity), total / capacity)
    return price
