"""The smooth dual: prices that are nearly right, by Newton steps whose number does not depend on the number of rows.

With a barrier on every pair a row's demand is smooth in the prices, and only prices are unknown. The work of a step is one
pass over the table, block by block. `tall` solves programs with many rows from these prices.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.jit import fast_kernel

BLOCK = 1 << 19  # pairs of the table at a time
LAST_BARRIER, BARRIER_FALLS = 0.1, 0.15
"""Weight of the barrier at last, divided by the number of rows (below, the demand is not smooth any more, as each row
counts); and what a step leaves of it."""
STEPS = 40  # Newton steps on the smooth dual at most
SLOWEST_FALL = 0.7  # what may be left of the barrier's weight after a step, before it is not worth another
CENTRED = 0.3  # Newton decrement, relative to the barrier, below which its weight falls
THREADS, ALONE = 2, 10**7  # and the time in ns that one thread may take alone: others take a while to start

Result = TypeVar("Result")


class Rows(NamedTuple):
    """The rows of a program: a (I,), caps u (I,), and `reward(rows)`, a block of rewards (rows, `columns`).

    A pair costs gamma - reward. Rewards are -inf where a pair is not eligible; `masked` tells whether there are such pairs.
    """

    a: Array
    u: Array
    gamma: float
    columns: int
    reward: Callable[[slice | IntArray], Array]
    masked: bool = False

    def cost(self, rows: slice | IntArray) -> Array:
        """Return a block of costs (rows, columns)."""
        c: Array = self.gamma - self.reward(rows)
        return c

    def blocks(self) -> Iterator[slice]:
        """Yield the rows block by block."""
        return blocks(self.a.size, self.columns)

    def each(self, work: Callable[[slice], Result], per_pair: int = 1) -> list[Result]:
        """Return what `work`, which takes about `per_pair` ns a pair, returns for each block; side by side if many."""
        if self.a.size * self.columns * per_pair < ALONE:
            return [work(block) for block in self.blocks()]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(work, self.blocks()))


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows of a table block by block."""
    height = max(BLOCK // max(columns, 1), 1)
    return (slice(first, min(first + height, rows)) for first in range(0, rows, height))


class Descent(NamedTuple):
    """Prices, the weight of the barrier for which they are right, the mean of the rows' least costs, and steps."""

    price: Array
    weight: float
    cost: float
    steps: int


def descend(rows: Rows, n: Array, price: Array, first: float) -> Descent:
    """Return prices by Newton steps on the smooth dual, Eq. (56), from `price` and a barrier of weight `first`."""
    mu, unit, falls, last = first, rows.a.sum() / n.size, BARRIER_FALLS, np.inf
    price = np.maximum(price, mu * unit / n)
    centre, centred, cost = price, mu, 1.0
    steps = 0
    while steps < STEPS:
        steps += 1
        slope, curve, cost = _smooth_dual(rows, n, price, mu, unit)
        move = -np.linalg.solve(curve, slope)
        decrement = float(-slope @ move) / (mu * unit * n.size)
        if decrement < CENTRED:
            centre, centred, last = price + move, mu, np.inf
            if mu * rows.a.size <= LAST_BARRIER:
                break
            mu = max(mu * falls, LAST_BARRIER / rows.a.size)
            price = np.maximum(centre, 0.1 * price)
        elif decrement < last or centred == first:
            last = decrement
            length = min(1.0, 0.9 / max(float(np.max(-move / price)), 1e-300), decrement**-0.5)
            price = price + length * move
        else:  # the barrier fell too fast
            falls, last = falls**0.5, np.inf
            if falls > SLOWEST_FALL:
                break
            mu, price = max(centred * falls, LAST_BARRIER / rows.a.size), np.maximum(centre, 0.1 * centred * unit / n)
    return Descent(np.where(centre > 3.0 * centred * unit / n, centre, 0.0), centred, cost, steps)


def _smooth_dual(rows: Rows, n: Array, price: Array, mu: float, unit: float) -> tuple[Array, Array, float]:
    """Return gradient (J,) and second derivative (J, J) of the smooth dual, and the mean of the rows' least costs."""

    def work(block: slice) -> tuple[Array, Array, float]:
        load, curve = np.zeros(n.size), np.zeros((n.size, n.size))
        return (
            load,
            curve,
            smooth(
                rows.reward(block),
                rows.gamma,
                rows.a[block],
                rows.u[block],
                price,
                mu,
                load,
                curve,
            ),
        )

    loads, curves, costs = zip(*rows.each(work, per_pair=10), strict=True)
    curve = np.sum(curves, axis=0)
    curve = curve + curve.T - np.diag(np.diag(curve)) + np.diag(mu * unit / price**2)
    return n - mu * unit / price - np.sum(loads, axis=0), curve, float(sum(costs)) / rows.a.size


@fast_kernel
def smooth(reward: Array, gamma: float, a: Array, u: Array, q: Array, mu: float, load: Array, curve: Array) -> float:
    """Add what rows ask for at prices q with barriers of weight mu to `load`, its slope to `curve`; return least costs.

    y_ij = mu a_i / (c_ij + q_j - price_i), and the row's price makes the row sum fit it; the lower triangle is filled.
    """
    columns = q.size
    above = np.empty(columns)
    inverse = np.empty(columns)
    some = np.empty(columns, np.int64)
    costs = 0.0
    for i in range(reward.shape[0]):
        least, best = np.inf, 0
        for j in range(columns):
            above[j] = gamma - reward[i, j] + q[j]
            if above[j] < least:
                least = above[j]
                best = j
        for j in range(columns):
            above[j] -= least
        gap = mu * least / (1.0 + mu)
        capped = a[i] / (least - gap) > u[i]
        for _ in range(8):
            total, square = 0.0, 0.0
            for j in range(columns):
                inverse[j] = 1.0 / (above[j] + gap)
                total += inverse[j]
                square += inverse[j] * inverse[j]
            over = 1.0 / total
            off = over - mu * (a[i] / u[i] if capped else least - gap)
            if abs(off) <= 1e-9 * over:
                break
            gap -= off / (square * over * over + (0.0 if capped else mu))
        price = least - gap
        costs += gamma - reward[i, best]
        h, peak = 0.0, 0.0
        for j in range(columns):
            load[j] += mu * a[i] * inverse[j]
            inverse[j] *= inverse[j] * mu * a[i]
            curve[j, j] += inverse[j]
            h += inverse[j]
            peak = max(peak, inverse[j])
        weight = 1.0 / (h + (0.0 if capped else a[i] / (price * price)))
        many = 0
        for j in range(columns):
            if inverse[j] > 1e-3 * peak:
                some[many] = j
                many += 1
            else:
                curve[j, j] -= weight * inverse[j] * inverse[j]
        for k in range(many):
            j = some[k]
            v = weight * inverse[j]
            for g in range(k + 1):
                curve[j, some[g]] -= v * inverse[some[g]]
    return costs
