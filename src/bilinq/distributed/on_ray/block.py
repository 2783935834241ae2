"""The rows of one job shard: its rates, what it heard of the loads, and local iterations; no messages and no clock.

A shard iterates Eq. (35) on its own rows between two messages. It knows how it moves itself, not how the others move, and
expects them to do alike: Eq. (46).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.distributed.certificate import row_gaps
from bilinq.distributed.network import NOTHING, SEED, kernels
from bilinq.distributed.penalties import Penalty

ALIKE = 0.5
"""Part of the weights of Eq. (46) that follows a shard's share of a load; the rest is equal for all shards."""
LOCAL = 0.5
"""Part of what Eq. (40) allows without delay that a local iteration uses."""
FILLED = np.linspace(0.04, 2.0, 50)
"""Loads, in parts of the capacity, at which the stiffness of a penalty without a known bound is looked at."""


@dataclass(frozen=True)
class Rows:
    """What a job shard is given.

    a (I,), c (I, J), n (J,), rates (I, J) to start from, the penalty, the part of its capacity that every server class
    leaves idle (for the barrier), and the number of job shards.
    """

    a: Array
    c: Array
    n: Array
    start: Array
    penalty: Penalty
    spare: float
    shards: int


class Quote(NamedTuple):
    """What a server shard answers: loads and prices of its columns."""

    load: Array
    price: Array


class Block:
    """Rates of some rows, and the newest that is known of all columns."""

    def __init__(self, rows: Rows) -> None:
        self._rows, size = rows, len(rows.n)
        self._live = (rows.a > 0.0)[:, None] & (rows.n > 0.0)
        self.iterations = 0
        self._y = np.ascontiguousarray(np.where(self._live, rows.start, 0.0))[None]
        self._a, self._n = np.where(rows.a > 0.0, rows.a, np.inf)[None], np.where(rows.n > 0.0, rows.n, 1.0)
        self._c = np.ascontiguousarray(rows.c)[None]
        self._stiff = stiffness_bound(rows.penalty, rows.c, self._n, rows.spare) - 1.0
        useful = np.where(self._live, rows.a[:, None] / rows.c, np.inf).min(initial=np.inf)
        self._low = np.array([SEED * (useful if np.isfinite(useful) else 1.0)])
        self._known = np.zeros(size, dtype=np.bool_)
        self._load, self._price, self._said = np.zeros(size), np.zeros(size), np.zeros(size)
        self._caution = np.ones(size)
        self.iterate(1)  # nothing is known, so nothing moves; but the kernel is ready now
        self.iterations = 0

    @property
    def rates(self) -> Array:
        """The present rates, (I, J)."""
        return np.array(self._y[0])

    @property
    def sums(self) -> Array:
        """What these rows ask of each server class, (J,)."""
        return np.asarray(self._y[0].sum(axis=0))

    def hear(self, columns: slice, said: Array, quote: Quote, damping: float) -> None:
        """Take in the answer to `said`, the sums that were sent; a move counts 1 / `damping` times until the next."""
        self._load[columns], self._price[columns] = quote
        self._said[columns], self._caution[columns], self._known[columns] = said, damping, True

    def resume(self, columns: slice, sums: Array) -> None:
        """Scale the rates of these columns to the `sums` that others still count with."""
        now = self._y[0, :, columns].sum(axis=0)
        self._y[0, :, columns] *= np.where(now > 0.0, sums / np.where(now > 0.0, now, 1.0), 1.0)

    def close(self, columns: slice) -> None:
        """Take these server classes out: nothing is asked of them any more."""
        self._live[:, columns] = False
        self._y[0, :, columns] = 0.0

    def iterate(self, count: int) -> None:
        """Run local iterations on the columns that something is known of, with the prices that Eq. (46) expects."""
        weight, sums, served = self._weight(), self.sums, self._y.sum(axis=2)
        gain = self._gain(weight, self._expected_price(sums, weight), served)
        for _ in range(count):
            price = self._expected_price(sums, weight)
            far, near = np.zeros(price.shape), np.empty(served.shape)
            kernels().advance_alike(
                self._y, NOTHING, gain, self._c, served / self._a, price, far, near, self._low, np.inf, False, True
            )
            sums, served = far[0], near
        self.iterations += count

    def gap(self) -> float:
        """Return the part of these rows in the bound on the gap, Eq. (45), at the prices last quoted; infinite before."""
        used = self._live.any(axis=0)
        if not self._known[used].all():
            return float("inf")
        return float(row_gaps(self._y[0], self._rows.a, self._rows.c, self._price, self._live).sum())

    def _weight(self) -> Array:
        """Return how much of a column's move this shard takes itself to be, damped, (J,)."""
        share = np.clip(self._said / np.where(self._load > 0.0, self._load, 1.0), 0.0, 1.0)
        return np.asarray(self._caution * (ALIKE * share + (1.0 - ALIKE) / self._rows.shards))

    def _expected_price(self, sums: Array, weight: Array) -> Array:
        """Return prices (1, J) if these rows ask for `sums` and all others move alike."""
        load = np.maximum(self._load + (sums - self._said) / weight, 0.0)
        return np.ascontiguousarray(self._rows.penalty.price(load, self._n), dtype=np.float64)[None]

    def _gain(self, weight: Array, price: Array, served: Array) -> Array:
        """Return gains (1, I, J) for iterations without delay, given how much a move of this shard weighs.

        Far above what a class would pay, where the rule would take rates to zero at once, they are smaller.
        """
        share = np.maximum(self._said, self.sums) / np.where(self._load > 0.0, self._load, 1.0)
        stiffness = 1.0 + np.clip(share, 0.0, 1.0) / weight * self._stiff
        used = (price[:, None, :] + self._c) * (served / self._a)[:, :, None]
        return np.where(self._live & self._known, 2.0 * LOCAL / (stiffness * np.maximum(used, 1.0)), 0.0)


def stiffness_bound(penalty: Penalty, c: Array, n: Array, spare: float) -> Array:
    """Return a bound on the stiffness (I, J): the penalty's own, Eq. (39), or the largest up to twice the capacity."""
    known = penalty.stiffness(c, spare)
    if np.isfinite(known).all():
        return np.asarray(known)
    worst = np.ones(c.shape)
    for part in FILLED:
        z = np.minimum(part * n, 0.99 * penalty.most(n))
        worst = np.maximum(worst, 1.0 + z * penalty.slope(z, n) / (penalty.price(z, n) + c))
    return worst
