"""Programs with many more rows than columns, such as one row for each job: a small program that has the same prices.

At prices that are nearly right most rows are far from using any column but their cheapest. All such rows of a column become
one row that asks for as much and reacts to prices in the same way (same slope), so that only rows close to a second column
are left as they are. That small program is solved exactly, the merged rows are fitted again at its prices, and so on: this
is Newton's method, and two to four times are enough. Nearly right prices come from a sample of the rows, improved by Newton
steps on a smooth dual over all rows. Every pass takes the table in blocks of rows.
"""

from typing import NamedTuple

import numpy as np

from bilinq.allocation.program import CAPPED, OVER, log_ratio, unsaturated
from bilinq.allocation.smooth import Rows, blocks, descend
from bilinq.allocation.solve import saturated
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel, kernel

SAMPLE = 1 << 12  # rows of the sample
ROOM, MOST_KEPT = 8.0, 0.2
"""From given prices: demand of the rows that are kept, relative to the imbalance; and the part of all rows that may be."""
MARGIN = 2.0  # differences of smooth prices may be off by this multiple of the mean cost and the root of the weight
ROUNDS, FITS = 30, 12  # how often rows that are kept, and merged rows, are chosen anew before giving up
BALANCED = 1e-13  # imbalance, relative to the capacity, at which the merged rows fit
NO_TIME, COLD = np.empty((0, 0)), np.empty(0)


class Flows(NamedTuple):
    """Which columns each row uses: `column` and `amount` of row i are at first[i] : first[i + 1]."""

    first: IntArray
    column: IntArray
    amount: Array


class Nearest(NamedTuple):
    """Of each row at some prices: its cheapest column, its cost there, and by how much the second costs more."""

    column: IntArray
    cost: Array
    lead: Array


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
    first = np.zeros(rows.a.size + 1, np.int64)
    first[part + 1] = np.diff(tall.flows.first)
    flows = Flows(np.cumsum(first), here[tall.flows.column], tall.flows.amount)
    return tall._replace(flows=flows, price=_all_prices(rows, part, here, tall.price))


def _wanting(rows: Rows, block: slice, here: IntArray) -> IntArray:
    """Return the rows of a block that want something and have an eligible server."""
    wants = (rows.a[block] > 0.0) & (rows.u[block] > 0.0)
    if wants.any() and rows.masked:
        wants &= (rows.reward(block)[:, here] > -np.inf).any(axis=1)
    return block.start + np.flatnonzero(wants) if here.size else np.empty(0, np.int64)


def _allocate_active(rows: Rows, n: Array, start: Array | None) -> Tall:
    """Return the certified answer where every row wants something and every column has servers."""
    price, steps, flows = np.zeros(n.size), 0, None
    if start is not None and not (start.any() and (start >= 0.0).all() and np.isfinite(start).all()):
        start = None
    if start is None:
        flows = _unsaturated(rows, n)
    if flows is None:
        flows, price, steps = solve_tall(rows, n, start)
        load = np.bincount(flows.column, flows.amount, n.size)
        if (load > n).any():
            flows.amount[:] *= np.minimum(1.0, n / np.maximum(load, 1e-300))[flows.column]
    return Tall(flows, price, *certify(rows, n, flows, price), steps)


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


def _unsaturated(rows: Rows, n: Array) -> Flows | None:
    """Return the flows at zero prices if no column is asked for more than it has."""
    load, parts = np.zeros(n.size), list[Flows]()
    for block in rows.blocks():
        c = rows.cost(block)
        y = np.empty(c.shape)
        if not unsaturated(rows.a[block], c, NO_TIME, n, rows.u[block], y, np.empty(n.size)):
            return None
        load += y.sum(axis=0)
        if (load > n * (1.0 + OVER)).any():
            return None
        parts.append(_flows(y))
    first = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.first) for part in parts)]).cumsum()
    columns = [part.column for part in parts] or [np.empty(0, np.int64)]
    return Flows(first, np.concatenate(columns), np.concatenate([part.amount for part in parts] or [np.empty(0)]))


def solve_tall(rows: Rows, n: Array, start: Array | None) -> tuple[Flows, Array, int]:
    """Return flows, prices (J,) and steps; every row and column takes part, and some column is asked for too much.

    `start` are prices to begin with. Without them, or if they are far off, prices come from a sample of the rows, improved
    by smooth steps on all rows.
    """
    size, steps = rows.a.size, 0
    if size <= 2 * SAMPLE:
        y, price, steps = _solve_table(rows.a, rows.cost(slice(None)), n, rows.u, COLD)
        return _flows(y), price, steps
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
    flows, price, last = _refine(rows, n, price, near, near.lead <= MARGIN * cost * weight**0.5)
    return flows, price, steps + more + last


def _lead_to_keep(rows: Rows, n: Array, near: Nearest, price: Array) -> float:
    """Return the lead of the rows that can make up for the imbalance at given prices `ROOM` times; infinite if many."""
    amount, load = merged_load(rows.a, rows.u, near.column, near.cost, np.zeros(rows.a.size, np.bool_), price)
    excess = load - n
    imbalance = np.where(price > 0.0, np.abs(excess), np.maximum(excess, 0.0)).sum()
    kept = ROOM * imbalance / amount.sum() + n.size / rows.a.size
    some = near.lead[:: max(rows.a.size // SAMPLE, 1)]
    return float(np.quantile(some, kept)) if kept < MOST_KEPT else np.inf


def _refine(rows: Rows, n: Array, price: Array, near: Nearest, close: BoolArray) -> tuple[Flows, Array, int]:
    """Return flows, prices and steps from prices that are nearly right; rows that are `close` to a second are kept."""
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
            excess = (load + y[: kept.size].sum(axis=0)) / n - 1.0
            if np.max(np.where(price > 0.0, np.abs(excess), excess)) <= BALANCED:
                break
        moved = price - base
        wrong = ~close & (near.lead < moved[near.column] - moved.min())
        if not wrong.any():
            break
        close |= wrong
    return join(close, near.column, amount, y), price, steps


def _solve_table(a: Array, c: Array, n: Array, u: Array, start: Array) -> tuple[Array, Array, int]:
    y, q = np.empty(c.shape), np.empty(n.size)
    return y, q, saturated(a, c, NO_TIME, n, u, start, y, q)


def _nearest(rows: Rows, price: Array) -> Nearest:
    size = rows.a.size
    near = Nearest(np.empty(size, np.int64), np.empty(size), np.empty(size))

    def work(block: slice) -> None:
        scan(rows.reward(block), rows.gamma, price, near.column[block], near.cost[block], near.lead[block])

    rows.each(work)
    return near


def certify(rows: Rows, n: Array, flows: Flows, price: Array) -> tuple[float, float]:
    """Return the residual of Eq. (7) and the duality gap, recomputed over all pairs."""

    def work(block: slice) -> tuple[float, float, Array, Array]:
        first = flows.first[block.start : block.stop + 1]
        load, cheapest = np.zeros(n.size), np.full(n.size, np.inf)
        worst, gap = row_conditions(
            rows.reward(block), rows.gamma, rows.a[block], rows.u[block], price, first, flows.column, flows.amount,
            load, cheapest,
        )  # fmt: skip
        return worst, gap, load, cheapest

    parts = rows.each(work)
    load, cheapest = np.zeros(n.size), np.full(n.size, np.inf)
    for part in parts:
        load += part[2]
        cheapest = np.minimum(cheapest, part[3])
    idle = 1.0 - load / n
    wasted = np.where(
        price > 0.0, idle * price / np.maximum(price + np.where(np.isfinite(cheapest), cheapest, 0.0), 1e-300), 0.0
    )
    residual = max(
        [float(np.max(-idle, initial=0.0)), float(np.max(wasted, initial=0.0)), *(part[0] for part in parts)]
    )
    return residual, max(sum(part[1] for part in parts) + float(n @ price), 0.0)


def _flows(y: Array) -> Flows:
    row, column = np.nonzero(y)
    first = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=len(y)))))
    return Flows(first.astype(np.int64), column.astype(np.int64), y[row, column])


@fast_kernel
def scan(reward: Array, gamma: float, q: Array, column: IntArray, cost: Array, lead: Array) -> None:
    """Fill the cheapest column of each row, its cost, and by how much the second cheapest costs more."""
    for i in range(reward.shape[0]):
        least, second, best = np.inf, np.inf, 0
        for j in range(q.size):
            p = gamma - reward[i, j] + q[j]
            second = min(second, max(p, least))
            best = j if p < least else best  # without branches, which the processor could not predict
            least = min(p, least)
        column[i] = best
        cost[i] = gamma - reward[i, best]
        lead[i] = second - least


@kernel
def merge(a: Array, u: Array, column: IntArray, cost: Array, close: BoolArray, q: Array) -> tuple[Array, Array, Array]:
    """Return a, costs and caps of merged rows: for each column one of its rows below their caps, and one of the others."""
    columns = q.size
    total = np.zeros((5, columns))  # demand and slope of rows below their caps; a, cost and cap of the others
    for i in range(a.size):
        if close[i]:
            continue
        j = column[i]
        asked = a[i] / (cost[i] + q[j])
        if asked < u[i]:
            total[0, j] += asked
            total[1, j] += asked / (cost[i] + q[j])
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
def join(close: BoolArray, column: IntArray, amount: Array, y: Array) -> Flows:
    """Return the flows of all rows: those of rows that are `close` are in y (kept rows first), the others use one column."""
    first = np.zeros(close.size + 1, np.int64)
    k = 0
    for i in range(close.size):
        used = 1
        if close[i]:
            used = 0
            for j in range(y.shape[1]):
                used += y[k, j] > 0.0
            k += 1
        first[i + 1] = first[i] + used
    columns, amounts = np.empty(first[-1], np.int64), np.empty(first[-1])
    k = 0
    for i in range(close.size):
        g = first[i]
        if not close[i]:
            columns[g] = column[i]
            amounts[g] = amount[i]
            continue
        for j in range(y.shape[1]):
            if y[k, j] > 0.0:
                columns[g] = j
                amounts[g] = y[k, j]
                g += 1
        k += 1
    return Flows(first, columns, amounts)


@kernel
def spread(first: IntArray, column: IntArray, amount: Array, start: int, y: Array) -> None:
    """Fill the flows of the rows from `start` on into y (rows, J)."""
    for i in range(y.shape[0]):
        y[i, :] = 0.0
        for g in range(first[start + i], first[start + i + 1]):
            y[i, column[g]] = amount[g]


@fast_kernel
def row_conditions(
    reward: Array, gamma: float, a: Array, u: Array, q: Array, first: IntArray, column: IntArray, amount: Array,
    load: Array, cheapest: Array,
) -> tuple[float, float]:  # fmt: skip
    """Return the largest violation by a row and the rows' part of the duality gap; add to loads and least costs."""
    worst, gap = 0.0, 0.0
    for i in range(reward.shape[0]):
        price = np.inf
        for j in range(q.size):
            price = min(price, gamma - reward[i, j] + q[j])
        for j in range(q.size):
            cheapest[j] = min(cheapest[j], gamma - reward[i, j])
        s = 0.0
        for g in range(first[i], first[i + 1]):
            j = column[g]
            s += amount[g]
            load[j] += amount[g]
            c = gamma - reward[i, j]
            gap += amount[g] * c
            worst = max(worst, (c + q[j]) / price - 1.0, -amount[g])
        value = a[i] / s / price
        worst = max(worst, s / u[i] - 1.0, 1.0 - value)
        if s < u[i] * (1.0 - CAPPED):
            worst = max(worst, value - 1.0)
        best = min(a[i] / price, u[i])
        gap += a[i] * log_ratio(best, s) - price * best
    return worst, gap
