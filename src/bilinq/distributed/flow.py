"""The nodes' rules as delay differential equations: their past, and the change of the rates that follows from it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bilinq.arrays import Array
from bilinq.distributed.kinds import Nodes, Rule
from bilinq.distributed.network import SEED
from bilinq.distributed.system import System


class Past:
    """Rates, and sums of rates as the other nodes receive them, with their slopes; the oldest are forgotten.

    At most `reach` units of time are looked back.
    """

    def __init__(self, y: Array, sums: Array, reach: float) -> None:
        self.reach, self.count = reach, 0
        self.times = np.zeros(64)
        self.rates, self.rate_slopes = (np.zeros((64, *y.shape)) for _ in range(2))
        self.sums, self.sum_slopes = (np.zeros((64, *sums.shape)) for _ in range(2))
        self.add(0.0, y, np.zeros_like(y), sums, np.zeros_like(sums))

    def add(self, now: float, y: Array, slope: Array, sums: Array, sum_slope: Array) -> None:
        """Note what is so now."""
        if self.count == len(self.times):
            self._make_room(now)
        k = self.count
        self.times[k], self.rates[k], self.rate_slopes[k] = now, y, slope
        self.sums[k], self.sum_slopes[k] = sums, sum_slope
        self.count += 1

    def bend(self, slope: Array, sum_slope: Array) -> None:
        """Note that from the last entry on slopes are these."""
        k = self.count - 1
        self.add(float(self.times[k]), self.rates[k], slope, self.sums[k], sum_slope)

    def _make_room(self, now: float) -> None:
        """Forget what nobody can look back on; double the space if that is not much."""
        keep = max(int(np.searchsorted(self.times[: self.count], now - 1.001 * self.reach)) - 2, 0)
        left = self.count - keep
        size = len(self.times) * (2 if 2 * left > self.count else 1)
        for name in ("times", "rates", "rate_slopes", "sums", "sum_slopes"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]))
            new[:left] = old[keep : self.count]
            setattr(self, name, new)
        self.count = left


class Flow:
    """The right side of Eq. (35) or (36) in continuous time for a batch (B, I, J)."""

    def __init__(self, system: System, gain: Array, nodes: Nodes, rule: Rule) -> None:
        a, self.c, n, forward, backward = system.flat
        self.by_job, self.rule, self.penalty = nodes == "job", rule, system.penalty
        self.live = (a > 0.0)[:, :, None] & (n > 0.0)[:, None, :]
        self.gain = np.where(self.live, gain.reshape(self.c.shape), 0.0)
        self.a, self.n = np.where(a > 0.0, a, np.inf)[:, :, None], np.where(n > 0.0, n, 1.0)[:, None, :]
        self.send, self.hear = (forward, backward) if self.by_job else (backward, forward)
        self.loop = forward + backward
        useful = np.where(self.live, a[:, :, None] / self.c, np.inf).min(axis=(1, 2), keepdims=True)
        self.low = SEED * np.where(np.isfinite(useful), useful, 1.0)

    def summed(self, y: Array) -> Array:
        """Return the sums over what one of the other nodes receives, (B, nodes)."""
        return np.asarray(y.sum(axis=1 if self.by_job else 2))

    def arriving(self, past: Past, now: float, y: Array) -> Array:
        """Return the sums (B, nodes) that the other nodes receive now, if the rates are y."""
        sent = np.empty_like(y)
        _kernels().rates_ago(past.times, past.rates, past.rate_slopes, past.count, now, self.send, y, sent)
        return self.summed(sent)

    def arriving_slope(self, past: Past, now: float, slope: Array, *, before: bool) -> Array:
        """Return how fast these sums change, just `before` now or from now on, if the rates change by `slope`."""
        sent = np.empty_like(slope)
        _kernels().slopes_ago(past.times, past.rates, past.rate_slopes, past.count, now, self.send, before, sent)
        return self.summed(np.where(self.send == 0.0, slope, sent))

    def change(self, past: Past, now: float, y: Array) -> Array:
        """Return how fast the rates y (B, I, J) change now."""
        acknowledged, told = np.empty_like(y), np.empty_like(y)
        present = self.arriving(past, now, y) if (self.hear == 0.0).any() else self.summed(y)
        _kernels().rates_ago(past.times, past.rates, past.rate_slopes, past.count, now, self.loop, y, acknowledged)
        _kernels().sums_ago(
            past.times, past.sums, past.sum_slopes, past.count, now, self.hear, present, self.by_job, told
        )
        load, served = (told, acknowledged.sum(axis=2, keepdims=True)) if self.by_job else (
            acknowledged.sum(axis=1, keepdims=True), told
        )  # fmt: skip
        bracket = 1.0 - (self.penalty.price(load, self.n) + self.c) * served / self.a
        return np.where((y > 0.0) | (bracket > 0.0), self.gain * self._scale(y, acknowledged) * bracket, 0.0)

    def _scale(self, y: Array, acknowledged: Array) -> Array | float:
        if self.rule == "printed":
            return 1.0
        return np.maximum(y if self.rule == "scaled" else acknowledged, self.low)


@cache
def _kernels() -> Any:
    """Return the module of kernels; it pulls in the compiler, so it is loaded when first needed."""
    from bilinq.distributed import history_kernels

    return history_kernels
