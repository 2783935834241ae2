"""Programs with many more rows than columns, such as one row for each job: a small program that has the same prices.

At prices that are nearly right most rows are far from using any column but their cheapest. All such rows of a column become
one row that asks for as much and reacts to prices in the same way (same slope), so that only rows close to a second column
are left as they are. That small program is solved exactly, the merged rows are fitted again at its prices, and so on: this
is Newton's method, and two to four times are enough. Nearly right prices come from a sample of the rows, improved by Newton
steps on a smooth dual over all rows. Every pass takes the table in blocks of rows.
"""

from typing import NamedTuple

import numpy as np

from bilinq.allocation.flows import Flows, Pairs, certify, flows_of, pairs_of
from bilinq.allocation.program import OVER, unsaturated
from bilinq.allocation.smooth import Rows, blocks, descend
from bilinq.allocation.solve import solve_saturated
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel, kernel

SAMPLE = 1 << 12  # rows of the sample
ROOM, MOST_KEPT = 8.0, 0.2
"""From given prices: demand of the rows that are kept, relative to the imbalance; and the part of all rows that may be."""
MARGIN = 2.0  # differences of smooth prices may be off by this multiple of the mean cost and the root of the weight
ROUNDS, FITS = 30, 12  # how often rows that are kept, and merged rows, are chosen anew before giving up
ROUNDING = 1e-14  # a row's lead is exact to this part of the numbers that it is computed from
BALANCED = 1e-13  # imbalance, relative to the capacity, at which the merged rows fit
NO_TIME, COLD = np.empty((0, 0)), np.empty(0)


class Nearest(NamedTuple):
    """Of each row at some prices: its cheapest column, its cost there, and by how much the second costs more."""

    column: IntArray
    cost: Array
    lead: Array


class Solution(NamedTuple):
    """Flows, prices (J,), prices (I,) of rows whose cheapest column is proved, not positive for the others, and steps."""

    flows: Flows
    price: Array
    known: Array
    steps: int


class Tall(NamedTuple):
    """The answer to a tall program: flows, prices (J,), residual, duality gap and steps."""

    flows: Flows
    price: Array
    residual: float
    gap: float
    steps: int


def allocate_rows(rows: Rows, n: Array, start: Array | None) -> Tall:
    """Return the certified answer to a tall program whose arguments obey the rules; `start` are prices to begin with."""
    here = np.flatnonzero(n > 0.0)
    if here.size == n.size and not rows.masked and rows.a.min() > 0.0 and rows.u.min() > 0.0:
        return _allocate_active(rows, n, start)
    part = np.concatenate([_wanting(rows, block, here) for block in rows.blocks()])
    if part.size == rows.a.size and here.size == n.size:
        return _allocate_active(rows, n, start)
    active = Rows(
        rows.a[part], rows.u[part], rows.gamma, here.size,
        lambda some: np.ascontiguousarray(rows.reward(part[some])[:, here]),
    )  # fmt: skip
    tall = _allocate_active(active, n[here], None if start is None else start[here])
    column, amount = np.zeros(rows.a.size, np.int64), np.zeros(rows.a.size)
    column[part], amount[part] = here[tall.flows.column], tall.flows.amount
    pairs = tall.flows.pairs
    flows = Flows(column, amount, Pairs(part[pairs.row], here[pairs.column], pairs.amount))
    return tall._replace(flows=flows, price=_all_prices(rows, part, here, tall.price))


def _wanting(rows: Rows, block: slice, here: IntArray) -> IntArray:
    """Return the rows of a block that want something and have an eligible server."""
    wants = (rows.a[block] > 0.0) & (rows.u[block] > 0.0)
    if wants.any() and rows.masked:
        wants &= (rows.reward(block)[:, here] > -np.inf).any(axis=1)
    return block.start + np.flatnonzero(wants) if here.size else np.empty(0, np.int64)


def _allocate_active(rows: Rows, n: Array, start: Array | None) -> Tall:
    """Return the certified answer where every row wants something and every column has servers."""
    if start is not None and not (start.any() and (start >= 0.0).all() and np.isfinite(start).all()):
        start = None
    found = _unsaturated(rows, n) if start is None else None
    flows, price, known, steps = found or solve_tall(rows, n, start)
    return Tall(flows, price, *certify(rows, n, flows, price, known), steps)


def _all_prices(rows: Rows, part: IntArray, here: IntArray, price: Array) -> Array:
    """Return prices of all columns: one without servers has the lowest at which nobody wants it."""
    whole = np.zeros(rows.columns)
    whole[here] = price
    if not here.size and ((rows.a > 0.0) & (rows.u > 0.0)).any():
        whole[:] = np.inf
    absent = np.setdiff1d(np.arange(rows.columns), here)
    for block in blocks(part.size, rows.columns) if absent.size else ():
        c = rows.cost(part[block])
        wanted = (c[:, here] + price).min(axis=1)[:, None] - c[:, absent]
        whole[absent] = np.maximum(whole[absent], np.max(wanted, axis=0, initial=0.0))
    return whole


def _unsaturated(rows: Rows, n: Array) -> Solution | None:
    """Return the solution at zero prices if no column is asked for more than it has."""
    size = rows.a.size
    column, amount, known, load = np.zeros(size, np.int64), np.zeros(size), np.zeros(size), np.zeros(n.size)
    pairs = [pairs_of(np.empty((0, n.size)), column[:0])]
    for block in rows.blocks():
        c = rows.cost(block)
        y = np.empty(c.shape)
        if not unsaturated(rows.a[block], c, NO_TIME, n, rows.u[block], y, np.empty(n.size), np.empty(n.size)):
            return None
        load += y.sum(axis=0)
        if (load > n * (1.0 + OVER)).any():
            return None
        column[block], amount[block], more = flows_of(y, block.start)
        known[block] = np.where(amount[block] > 0.0, c[np.arange(len(c)), column[block]], 0.0)
        pairs.append(more)
    several = Pairs(*(np.concatenate(values) for values in zip(*pairs, strict=True)))
    return Solution(Flows(column, amount, several), np.zeros(n.size), known, 0)


def solve_tall(rows: Rows, n: Array, start: Array | None) -> Solution:
    """Return the solution if every row and column takes part, and some column is asked for too much.

    `start` are prices to begin with. Without them, or if they are far off, prices come from a sample of the rows, improved
    by smooth steps on all rows.
    """
    size = rows.a.size
    if size <= 2 * SAMPLE:
        y, price, steps = _solve_table(rows.a, rows.cost(slice(None)), n, rows.u, COLD)
        return Solution(flows_of(y * _fit(y.sum(axis=0), n)), price, np.zeros(size), steps)
    if start is not None:
        near = _nearest(rows, start)
        off = _lead_to_keep(rows, n, near, start)
        if off < np.inf:
            return _refine(rows, n, start, near, near.lead <= off)
    some = np.sort(np.random.default_rng(0).permutation(size)[:SAMPLE])
    factor = size / SAMPLE
    _, price, steps = _solve_table(rows.a[some] * factor, rows.cost(some), n, rows.u[some] * factor, COLD)
    price, weight, cost, more = descend(rows, n, price, 1.0 / SAMPLE)
    near = _nearest(rows, price)
    solution = _refine(rows, n, price, near, near.lead <= MARGIN * cost * weight**0.5)
    return solution._replace(steps=steps + more + solution.steps)


def _lead_to_keep(rows: Rows, n: Array, near: Nearest, price: Array) -> float:
    """Return the lead of the rows that can make up for the imbalance at given prices `ROOM` times; infinite if many."""
    _, load = merged_load(rows.a, rows.u, near.column, near.cost, np.zeros(rows.a.size, np.bool_), price)
    excess = load - n
    imbalance = np.where(price > 0.0, np.abs(excess), np.maximum(excess, 0.0)).sum()
    kept = ROOM * imbalance / load.sum() + n.size / rows.a.size
    if not kept < MOST_KEPT:
        return np.inf
    some = near.lead[:: max(rows.a.size // SAMPLE, 1)]
    rank = int(kept * some.size)
    return float(np.partition(some, rank)[rank])


def _refine(rows: Rows, n: Array, price: Array, near: Nearest, close: BoolArray) -> Solution:
    """Return the solution from prices that are nearly right; rows that are `close` to a second column are kept."""
    base, start, steps = price, price, 0
    for _ in range(ROUNDS):
        kept = np.flatnonzero(close)
        table = rows.cost(kept)
        for _ in range(FITS):
            a, c, u = merge(rows.a, rows.u, near.column, near.cost, close, price)
            y, price, more = _solve_table(
                np.concatenate((rows.a[kept], a)), np.concatenate((table, c)), n,
                np.concatenate((rows.u[kept], u)), start,
            )  # fmt: skip
            start = price
            steps += more
            amount, load = merged_load(rows.a, rows.u, near.column, near.cost, close, price)
            load += y[: kept.size].sum(axis=0)
            excess = load / n - 1.0
            if np.max(np.where(price > 0.0, np.abs(excess), excess)) <= BALANCED:
                break
        known = prove(near.column, near.cost, near.lead, close, rows.gamma, base, price)
        wrong = known < 0.0
        if not wrong.any():
            break
        close |= wrong
    fit = _fit(load, n)
    flows = Flows(near.column, amount * fit.take(near.column), pairs_of(y[: kept.size] * fit, kept))
    return Solution(flows, price, known, steps)


def _fit(load: Array, n: Array) -> Array:
    """Return the factors that bring columns back to their capacity."""
    factor: Array = np.minimum(1.0, n / np.maximum(load, 1e-300))
    return factor


def _solve_table(a: Array, c: Array, n: Array, u: Array, start: Array) -> tuple[Array, Array, int]:
    y, q = np.empty(c.shape), np.empty(n.size)
    return y, q, solve_saturated(a, c, NO_TIME, n, u, start, y, q)


def _nearest(rows: Rows, price: Array) -> Nearest:
    size = rows.a.size
    near = Nearest(np.empty(size, np.int64), np.empty(size), np.empty(size))

    def work(block: slice) -> None:
        scan(rows.reward(block), rows.gamma, price, near.column[block], near.cost[block], near.lead[block])

    rows.each(work)
    return near


@fast_kernel
def scan(reward: Array, gamma: float, q: Array, column: IntArray, cost: Array, lead: Array) -> None:
    """Fill the cheapest column of each row, its cost, and by how much the second cheapest costs more."""
    for i in range(reward.shape[0]):
        most, second, best = -np.inf, -np.inf, 0  # of reward less price: a step less than from costs
        for j in range(q.size):
            value = reward[i, j] - q[j]
            second = max(second, min(value, most))
            best = j if value > most else best  # without branches, which the processor could not predict
            most = max(value, most)
        column[i] = best
        cost[i] = gamma - reward[i, best]
        lead[i] = most - second


@kernel
def merge(a: Array, u: Array, column: IntArray, cost: Array, close: BoolArray, q: Array) -> tuple[Array, Array, Array]:
    """Return a, costs and caps of merged rows: for each column one of its rows below their caps, and one of the others."""
    columns = q.size
    total = np.zeros((5, columns))  # demand and slope of rows below their caps; a, cost and cap of the others
    for i in range(a.size):
        if close[i]:
            continue
        j = column[i]
        inverse = 1.0 / (cost[i] + q[j])
        asked = a[i] * inverse
        if asked < u[i]:
            total[0, j] += asked
            total[1, j] += asked * inverse
        else:
            total[2, j] += a[i]
            total[3, j] += a[i] * cost[i]
            total[4, j] += u[i]
    demand, caps = np.zeros(2 * columns), np.full(2 * columns, np.inf)
    c = np.full((2 * columns, columns), np.inf)
    for j in range(columns):
        if total[1, j] > 0.0:
            demand[j] = total[0, j] * total[0, j] / total[1, j]
            c[j, j] = max(total[0, j] / total[1, j] - q[j], 1e-300)
        if total[2, j] > 0.0:
            demand[columns + j] = total[2, j]
            caps[columns + j] = total[4, j]
            c[columns + j, j] = total[3, j] / total[2, j]
    return demand, c, caps


@kernel
def merged_load(a: Array, u: Array, column: IntArray, cost: Array, close: BoolArray, q: Array) -> tuple[Array, Array]:
    """Return what each row asks for (I,), zero for those that are kept, and what each column is asked for (J,)."""
    amount, load = np.zeros(a.size), np.zeros(q.size)
    for i in range(a.size):
        if not close[i]:
            amount[i] = min(a[i] / (cost[i] + q[column[i]]), u[i])
            load[column[i]] += amount[i]
    return amount, load


@kernel
def prove(column: IntArray, cost: Array, lead: Array, close: BoolArray, gamma: float, base: Array, q: Array) -> Array:
    """Return the prices at q (J,) of rows that are not `close` and have the same cheapest column as at prices `base`.

    It has not changed if it leads by more than other columns have gained on it. If it leads by less, the answer is -1 in
    place of a price, and 0 if the difference is within rounding errors or the row is close.
    """
    moved, known = q - base, np.zeros(column.size)
    gained = moved - moved.min()
    errors = ROUNDING * (gamma + base.max() + q.max())
    for i in range(column.size):
        j = column[i]
        if not close[i]:
            room = lead[i] - gained[j]
            if room > errors + ROUNDING * cost[i]:
                known[i] = cost[i] + q[j]
            elif room < 0.0:
                known[i] = -1.0
    return known
