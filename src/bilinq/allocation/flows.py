"""The answer to a tall program, in which nearly all rows use one column, and its certificate.

The certificate needs the price of each row, that of its cheapest column. Where the search for prices has proved which column
that is, there is no second pass over the table.
"""

from typing import NamedTuple

import numpy as np

from bilinq.allocation.program import CAPPED, log_plus
from bilinq.allocation.smooth import Rows, blocks
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel, inlined_kernel, kernel

SMALL = 1e-12  # an idle fraction that counts as it is; the part of it in the residual takes a pass over the table


class Pairs(NamedTuple):
    """Flows of pairs, rows in ascending order."""

    row: IntArray
    column: IntArray
    amount: Array


class Flows(NamedTuple):
    """What each row gets: `amount` of one `column` (I,); rows that use several columns have zero there, and `pairs`."""

    column: IntArray
    amount: Array
    pairs: Pairs

    def rows(self, part: IntArray, columns: int) -> Array:
        """Return the flows of some rows, in ascending order, as a table (rows, J)."""
        y = np.zeros((part.size, columns))
        y[np.arange(part.size), self.column[part]] = self.amount[part]
        first, last = np.searchsorted(self.pairs.row, (part[0], part[-1] + 1))
        row, column, amount = (value[first:last] for value in self.pairs)
        place = np.searchsorted(part, row)
        here = part[place] == row
        y[place[here], column[here]] = amount[here]
        return y


def flows_of(y: Array, first: int = 0) -> Flows:
    """Return the flows that are in a table, whose rows are `first` and those after it."""
    column, amount, several = np.empty(len(y), np.int64), np.empty(len(y)), np.empty(len(y), np.bool_)
    single(y, column, amount, several)
    part = np.flatnonzero(several)
    return Flows(column, amount, pairs_of(y[part], first + part))


def pairs_of(y: Array, rows: IntArray) -> Pairs:
    """Return the pairs that a table uses whose rows have the given numbers."""
    row, column = np.nonzero(y)
    return Pairs(rows[row], column, y[row, column])


def certify(rows: Rows, n: Array, flows: Flows, price: Array, known: Array) -> tuple[float, float]:
    """Return the residual of Eq. (7) and the duality gap of Eq. (55).

    `known` (I,) are prices of rows that use one column, which is proved to be their cheapest. Where it is not positive, the
    row's price is computed from the table.
    """
    load = np.zeros(n.size)
    parts = [known_conditions(rows.a, rows.u, known, flows.column, flows.amount, load)]
    others = np.flatnonzero(~(known > 0.0))
    for block in blocks(others.size, n.size):
        part = others[block]
        parts.append(conditions(rows.cost(part), rows.a[part], rows.u[part], price, flows.rows(part, n.size), load))
    gap = sum(part[1] for part in parts) + float((n - load) @ price)
    if not (gap < np.inf and (price >= 0.0).all()):
        return np.inf, np.inf
    idle = np.where(price > 0.0, 1.0 - load / n, 0.0)
    if (idle > SMALL).any():
        cheapest = np.min([rows.cost(block).min(axis=0) for block in rows.blocks()], axis=0)
        idle *= price / np.maximum(price + np.where(cheapest < np.inf, cheapest, 0.0), 1e-300)
    worst = np.max([load / n - 1.0, idle], initial=0.0)
    return max(float(worst), *(part[0] for part in parts)), max(gap, 0.0)


@kernel
def single(y: Array, column: IntArray, amount: Array, several: BoolArray) -> None:
    """Fill the column that each row uses and its flow, or zero and that there are several."""
    for i in range(y.shape[0]):
        column[i] = 0
        used = 0
        for j in range(y.shape[1]):
            if y[i, j] > 0.0:
                column[i] = j
                used += 1
        several[i] = used > 1
        amount[i] = 0.0 if several[i] else y[i, column[i]]


@kernel
def spread(column: IntArray, amount: Array, y: Array) -> None:
    """Fill the flows of rows that use one column into y (rows, J)."""
    for i in range(y.shape[0]):
        y[i, :] = 0.0
        y[i, column[i]] = amount[i]


@inlined_kernel
def row_condition(a: float, u: float, price: float, s: float, excess: float) -> tuple[float, float]:
    """Return violation and gap of a row that gets s, and pays `excess` more than its lowest price for it."""
    asked = a / price
    short = min(asked, u) - s
    part = short / s
    over = part if asked <= u else asked / s - 1.0
    worst = abs(over) if s < u * (1.0 - CAPPED) else max(s / u - 1.0, -over)
    return worst, a * log_plus(part) - price * short + excess


@fast_kernel
def known_conditions(
    a: Array, u: Array, known: Array, column: IntArray, amount: Array, load: Array
) -> tuple[float, float]:
    """Return the largest violation by rows with a known price, and their part of the gap; add to loads."""
    worst, gap = 0.0, 0.0
    for i in range(a.size):
        if known[i] > 0.0:
            load[column[i]] += amount[i]
            violation, more = row_condition(a[i], u[i], known[i], amount[i], 0.0)
            worst = max(worst, violation)
            gap += more
    return worst, gap


@fast_kernel
def conditions(c: Array, a: Array, u: Array, q: Array, y: Array, load: Array) -> tuple[float, float]:
    """Return the largest violation by rows with flows y (rows, J), and their part of the gap; add to loads."""
    worst, gap = 0.0, 0.0
    for i in range(a.size):
        price, s, excess = np.inf, 0.0, 0.0
        for j in range(q.size):
            price = min(price, c[i, j] + q[j])
        for j in range(q.size):
            if y[i, j] != 0.0:
                s += y[i, j]
                excess += y[i, j] * (c[i, j] + q[j] - price)
                load[j] += y[i, j]
                worst = max(worst, (c[i, j] + q[j]) / price - 1.0, -y[i, j])
        violation, more = row_condition(a[i], u[i], price, s, excess)
        worst = max(worst, violation)
        gap += more
    return worst, gap
