"""The rules as delay differential equations: their right side, the history it looks back on, and their integration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, one_of, positive, scalar, shaped
from bilinq.distributed.network import EXPLODED, SEED, start_rates
from bilinq.distributed.rounds import WINDOW, Swings, Track, warn_unsafe
from bilinq.distributed.system import Nodes, Rule, System
from bilinq.errors import Diverged, NotSolved


@dataclass(frozen=True, eq=False)
class FlowRun(Track):
    """Rates over continuous time; see `Track`. So many `steps` were taken, and `refused` because of their error."""

    steps: int
    refused: int


def integrate(
    system: System,
    gain: ArrayLike,
    until: float,
    *,
    nodes: Nodes = "job",
    rule: Rule = "scaled",
    start: ArrayLike | None = None,
    samples: int = 401,
    tolerance: float = 1e-6,
    check: bool = True,
) -> FlowRun:
    """Return the rates over time by Eq. (35) or (36) in continuous time, with real delays.

    Parameters
    ----------
    system : System
        With any delays.
    gain : float or (..., I, J) array
        Positive, such as `system.safe_gain(0.5)`.
    until : float
        The time at which to end.
    nodes, rule, start, check
        As in `iterate`.
    samples : int
        How many times to return, evenly spaced from 0 to `until`.
    tolerance : float
        Error of a step, relative to the rates.

    Raises
    ------
    Diverged
        If rates explode; with `check` also if they keep oscillating.
    NotSolved
        If steps become too small.

    Notes
    -----
    No step is longer than the shortest positive delay, so that a step needs only recorded rates. The history is interpolated
    by cubics; sums that arrive at the other nodes have a history of their own, so an evaluation costs one pass over all
    pairs.

    Examples
    --------
    >>> system = System.synthetic(seed=1, whole=False)
    >>> flow = integrate(system, system.safe_gain(0.5), until=1500.0)
    >>> flow.expected.shape, bool(flow.distance[-1] < 0.01)
    ((401, 4, 3), True)
    """
    one_of("nodes", nodes, ("job", "server"))
    one_of("rule", rule, ("scaled", "delayed", "printed"))
    times = np.linspace(0.0, scalar("until", until, positive), count("samples", samples, 2))
    small = scalar("tolerance", tolerance, positive)
    begin = start_rates(system) if start is None else non_negative("start", start)
    margin = system.margin(gain)
    if check:
        warn_unsafe(margin, "continuous")
    flow = Flow(system, system.checked_gain(gain), nodes, rule)
    y = np.where(flow.live, shaped("start", begin, system.reward.shape).reshape(flow.c.shape), 0.0)
    worst, longest = float(margin.max(initial=0.0)), float(flow.loop.max(initial=0.0))
    swings = Swings(WINDOW * longest, worst, rule) if check and longest and (worst > 1.0 or rule == "printed") else None
    stepper = Stepper(flow, y, small, times, swings)
    stepper.run()
    expected = stepper.out.reshape(len(times), *system.reward.shape)
    return FlowRun(system, times, expected, stepper.steps, stepper.refused)


AT = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGE = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""The tableau of Dormand and Prince; its last row is the fifth-order step."""
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
"""Fifth-order less fourth-order weights."""
MIDDLE = (6025192743 / 30085553152, 0.0, 51252292925 / 65400821598, -2691868925 / 45128329728, 187940372067 / 1594534317056,
          -1776094331 / 19743644256, 11237099 / 235043384)  # fmt: skip
"""Twice the weights of Shampine's value at the middle of a step, which shows how good the cubic is there."""
KINKS = 300  # the largest number of delays at which a step is made to end because slopes jump there


class Stepper:
    """Takes steps of adaptive length and records the rates at the wanted times."""

    def __init__(self, flow: Flow, y: Array, tolerance: float, times: Array, swings: Swings | None) -> None:
        self.flow, self.y, self.tolerance, self.times, self.swings = flow, y, tolerance, times, swings
        delays = np.unique(np.concatenate([flow.send.ravel(), flow.hear.ravel(), flow.loop.ravel()]))
        self.longest = float(delays[delays > 0.0].min(initial=np.inf))
        kinks = np.unique(flow.send[flow.send > 0.0])
        self.kinks = set(kinks.tolist()) if len(kinks) <= KINKS else set[float]()
        self.stops = sorted({kink for kink in self.kinks if kink < times[-1]} | {float(times[-1])})
        self.history = RateHistory(y, flow.summed(y), float(delays.max(initial=0.0)))
        self.scale = max(float(y.max(initial=0.0)), 1e-12)
        self.out = np.empty((len(times), *y.shape))
        self.out[0], self.recorded = y, 1
        self.now, self.steps, self.refused = 0.0, 0, 0

    def run(self) -> None:
        """Take steps until the last of the wanted times."""
        slope = self.flow.change(self.history, 0.0, self.y)
        self.history.bend(slope, self.flow.arriving_slope(self.history, 0.0, slope, before=False))
        pace = 0.01 * self.scale / max(float(np.abs(slope).max(initial=0.0)), 1e-300)
        step = min(self.longest, pace, float(self.times[-1]))
        for stop in self.stops:
            while self.now < stop:
                last = self.now + 1.000001 * step >= stop
                length = stop - self.now if last else step
                if length < 1e-12 * max(stop, 1e-9):
                    self._stuck()
                slope, factor = self._try(length, slope, stop if last else self.now + length)
                step = min(self.longest, length * factor)

    def _stuck(self) -> NoReturn:
        load = self.y.sum(axis=1)
        if (load >= 0.99 * self.flow.penalty.most(self.flow.n[:, 0, :])).any():
            raise Diverged(f"a load runs into its capacity at time {self.now:.6g}; lower the gain")
        raise NotSolved(f"steps became too small at time {self.now:.6g}; raise tolerance or lower the gain")

    def _try(self, length: float, slope: Array, end: float) -> tuple[Array, float]:
        """Take a step if its error is small enough; return the present slope and the factor for the next step length."""
        slopes = [slope]
        for at, row in zip(AT[1:], STAGE[1:], strict=True):
            moved = self.y + length * sum(w * k for w, k in zip(row, slopes, strict=True))
            slopes.append(self.flow.change(self.history, self.now + at * length, np.maximum(moved, 0.0)))
        error, shrink = self._error(length, moved, slopes)
        if error <= 1.0:
            self._accept(end, np.maximum(moved, 0.0), slopes[-1])
            return slopes[-1], min(4.0, max(0.2, 0.9 * max(error, 1e-10) ** -0.2))
        self.refused += 1
        return slope, shrink

    def _error(self, length: float, moved: Array, slopes: list[Array]) -> tuple[float, float]:
        """Return the error of a step relative to the tolerance, and the factor by which to shorten it if that is above one.

        A rate that would turn negative stops at zero: the step is made to end there, rather than made ever smaller.
        """
        new = np.maximum(moved, 0.0)
        allowed = self.tolerance * (np.maximum(self.y, new) + 1e-3 * self.scale)
        miss = length * sum(w * k for w, k in zip(ERROR, slopes, strict=True))
        middle = 0.5 * length * sum(w * k for w, k in zip(MIDDLE, slopes, strict=True))
        cubic = 0.5 * (moved - self.y) + length / 8.0 * (slopes[0] - slopes[-1])
        inside = (moved >= 0.0) | (self.y == 0.0)
        worst = np.where(inside, np.maximum(np.abs(miss), np.abs(middle - cubic)), 0.0) / allowed
        error = float(worst.max(initial=0.0))
        below = np.where(inside, 0.0, -moved / (allowed + self.flow.low))
        if not np.isfinite(error + below.max(initial=0.0)):
            return np.inf, 0.2
        shrink = max(0.2, 0.9 * max(error, 1e-10) ** -0.25)
        if below.max(initial=0.0) > 1.0:
            reach = np.where(inside, 1.0, self.y / np.maximum(self.y - moved, 1e-300))
            shrink = min(shrink, max(float(reach.min()), 1e-3)) if error > 1.0 else max(float(reach.min()), 1e-3)
        return max(error, float(below.max(initial=0.0))), shrink

    def _accept(self, end: float, y: Array, slope: Array) -> None:
        if not y.max(initial=0.0) < EXPLODED * self.scale:
            raise Diverged(f"rates grow beyond {EXPLODED * self.scale:.1g} at time {end:.6g}; lower the gain")
        sums = self.flow.arriving(self.history, end, y)
        self.history.add(end, y, slope, sums, self.flow.arriving_slope(self.history, end, slope, before=True))
        while self.recorded < len(self.times) and self.times[self.recorded] <= end:
            self.out[self.recorded] = self.history.in_last_step(float(self.times[self.recorded]))
            self.recorded += 1
        if end in self.kinks:
            self.history.bend(slope, self.flow.arriving_slope(self.history, end, slope, before=False))
        self.y, self.now, self.steps = y, end, self.steps + 1
        if self.swings is not None:
            self.swings(end, y.sum(axis=2))


class Flow:
    """The right side of Eq. (35) or (36) in continuous time for a batch (B, I, J)."""

    def __init__(self, system: System, gain: Array, nodes: Nodes, rule: Rule) -> None:
        a, self.c, n, forward, backward = system.flat
        self.by_job, self.rule, self.penalty = nodes == "job", rule, system.penalty
        self.live = system.live.reshape(self.c.shape)
        self.gain = np.where(self.live, gain.reshape(self.c.shape), 0.0)
        self.a, self.n = np.where(a > 0.0, a, np.inf)[:, :, None], np.where(n > 0.0, n, 1.0)[:, None, :]
        self.send, self.hear = (forward, backward) if self.by_job else (backward, forward)
        self.loop = forward + backward
        useful = np.where(self.live, a[:, :, None] / self.c, np.inf).min(axis=(1, 2), keepdims=True)
        self.low = SEED * np.where(np.isfinite(useful), useful, 1.0)

    def summed(self, y: Array) -> Array:
        """Return the sums over what one of the other nodes receives, (B, nodes)."""
        return np.asarray(y.sum(axis=1 if self.by_job else 2))

    def arriving(self, history: RateHistory, now: float, y: Array) -> Array:
        """Return the sums (B, nodes) that the other nodes receive now, if the rates are y."""
        return self.summed(history.rates_ago(now, self.send, y))

    def arriving_slope(self, history: RateHistory, now: float, slope: Array, *, before: bool) -> Array:
        """Return how fast these sums change, just `before` now or from now on, if the rates change by `slope`."""
        sent = history.slopes_ago(now, self.send, before)
        return self.summed(np.where(self.send == 0.0, slope, sent))

    def change(self, history: RateHistory, now: float, y: Array) -> Array:
        """Return how fast the rates y (B, I, J) change now."""
        present = self.arriving(history, now, y) if (self.hear == 0.0).any() else self.summed(y)
        acknowledged = history.rates_ago(now, self.loop, y)
        answer = history.sums_ago(now, self.hear, present, self.by_job)
        if self.by_job:
            load, served = answer, acknowledged.sum(axis=2, keepdims=True)
        else:
            load, served = acknowledged.sum(axis=1, keepdims=True), answer
        bracket = 1.0 - (self.penalty.price(load, self.n) + self.c) * served / self.a
        scale = np.maximum(y if self.rule == "scaled" else acknowledged, self.low) if self.rule != "printed" else 1.0
        return np.where((y > 0.0) | (bracket > 0.0), self.gain * scale * bracket, 0.0)


class RateHistory:
    """Rates (B, I, J) of the last `reach` units of time, and their sums (B, nodes) as others receive them, with slopes."""

    def __init__(self, y: Array, sums: Array, reach: float) -> None:
        from bilinq.distributed import kernels  # they import the compiler, so they are loaded when first needed

        self._kernels, self.reach, self.count = kernels, reach, 0
        self.times = np.zeros(64)
        self.rates, self.rate_slopes = (np.zeros((64, *y.shape)) for _ in range(2))
        self.sums, self.sum_slopes = (np.zeros((64, *sums.shape)) for _ in range(2))
        self.add(0.0, y, np.zeros_like(y), sums, np.zeros_like(sums))

    def add(self, now: float, y: Array, slope: Array, sums: Array, sum_slope: Array) -> None:
        """Record the present values."""
        if self.count == len(self.times):
            self._make_room(now)
        k = self.count
        self.times[k], self.rates[k], self.rate_slopes[k] = now, y, slope
        self.sums[k], self.sum_slopes[k] = sums, sum_slope
        self.count += 1

    def bend(self, slope: Array, sum_slope: Array) -> None:
        """Record that slopes jump to these at the time of the last entry."""
        k = self.count - 1
        self.add(float(self.times[k]), self.rates[k], slope, self.sums[k], sum_slope)

    def rates_ago(self, now: float, ago: Array, present: Array) -> Array:
        """Return the rates `ago` (B, I, J) before `now`; those of no delay are `present`."""
        out = np.empty_like(present)
        self._kernels.rates_ago(self.times, self.rates, self.rate_slopes, self.count, now, ago, present, out)
        return out

    def slopes_ago(self, now: float, ago: Array, before: bool) -> Array:
        """Return the slopes of the rates `ago` (B, I, J) before `now`, or just `before` that."""
        out = np.empty(ago.shape)
        self._kernels.slopes_ago(self.times, self.rates, self.rate_slopes, self.count, now, ago, before, out)
        return out

    def sums_ago(self, now: float, ago: Array, present: Array, by_job: bool) -> Array:
        """Return for each pair (B, I, J) the sum of the node that answers it, `ago` before `now`."""
        out = np.empty(ago.shape)
        self._kernels.sums_ago(self.times, self.sums, self.sum_slopes, self.count, now, ago, present, by_job, out)
        return out

    def in_last_step(self, when: float) -> Array:
        """Return the rates at a time between the last two entries."""
        k = self.count - 2
        h = self.times[k + 1] - self.times[k]
        x = (when - self.times[k]) / h
        rise = self.rates[k + 1] - self.rates[k]
        left, right = h * self.rate_slopes[k] - rise, rise - h * self.rate_slopes[k + 1]
        return np.asarray(self.rates[k] + x * (rise + (1.0 - x) * ((1.0 - x) * left + x * right)))

    def _make_room(self, now: float) -> None:
        """Drop what is too old to be needed; double the space if that frees too little."""
        keep = max(int(np.searchsorted(self.times[: self.count], now - 1.001 * self.reach)) - 2, 0)
        left = self.count - keep
        size = len(self.times) * (2 if 2 * left > self.count else 1)
        for name in ("times", "rates", "rate_slopes", "sums", "sum_slopes"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]))
            new[:left] = old[keep : self.count]
            setattr(self, name, new)
        self.count = left
