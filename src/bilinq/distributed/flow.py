"""The rules as delay differential equations, and their integration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, one_of, positive, scalar, shaped
from bilinq.distributed.network import EXPLODED, SEED, start_rates
from bilinq.distributed.rounds import WINDOW, Swings, Track, warn_unsafe
from bilinq.distributed.system import Nodes, Rule, System
from bilinq.errors import Diverged, NotSolved


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
    from bilinq.distributed import kernels as history_kernels

    return history_kernels


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
KINKS = 300
"""The most delays at which a step is made to end, since slopes jump there."""


@dataclass(frozen=True, eq=False)
class FlowRun(Track):
    """Rates over continuous time; see `Track`. `steps` were taken and `refused` for their error."""

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
        When to end.
    nodes, rule, start, check
        As in `iterate`.
    samples : int
        How many moments to return, evenly from 0 to `until`.
    tolerance : float
        Error of a step, relative to the rates.

    Raises
    ------
    Diverged
        If rates explode; with `check` also if they swing without end.
    NotSolved
        If steps become too small.

    Notes
    -----
    No step is longer than the shortest positive delay, so that a step needs only what is past. The past is interpolated by
    cubics; sums that arrive at the other nodes have a past of their own, so an evaluation costs one pass over all pairs.

    Examples
    --------
    >>> system = System.synthetic(seed=1, whole=False)
    >>> flow = integrate(system, system.safe_gain(0.5), until=1500.0)
    >>> flow.expected.shape, bool(flow.distance[-1] < 0.01)
    ((401, 4, 3), True)
    """
    one_of("nodes", nodes, ("job", "server"))
    one_of("rule", rule, ("scaled", "delayed", "printed"))
    moments = np.linspace(0.0, scalar("until", until, positive), count("samples", samples, 2))
    small = scalar("tolerance", tolerance, positive)
    begin = start_rates(system) if start is None else non_negative("start", start)
    margin = system.margin(gain)
    if check:
        warn_unsafe(margin, "continuous")
    flow = Flow(system, system.checked_gain(gain), nodes, rule)
    y = np.where(flow.live, shaped("start", begin, system.reward.shape).reshape(flow.c.shape), 0.0)
    worst, longest = float(margin.max(initial=0.0)), float(flow.loop.max(initial=0.0))
    watch = Swings(WINDOW * longest, worst, rule) if check and longest and (worst > 1.0 or rule == "printed") else None
    stepper = _Stepper(flow, y, small, moments, watch)
    stepper.run()
    expected = stepper.out.reshape(len(moments), *system.reward.shape)
    return FlowRun(system, moments, expected, stepper.steps, stepper.refused)


class _Stepper:
    """Takes steps of adaptive length and notes the rates at the wanted moments."""

    def __init__(self, flow: Flow, y: Array, tolerance: float, moments: Array, watch: Swings | None) -> None:
        self.flow, self.y, self.tolerance, self.moments, self.watch = flow, y, tolerance, moments, watch
        delays = np.unique(np.concatenate([flow.send.ravel(), flow.hear.ravel(), flow.loop.ravel()]))
        self.longest = float(delays[delays > 0.0].min(initial=np.inf))
        kinks = np.unique(flow.send[flow.send > 0.0])
        self.kinks = set(kinks.tolist()) if len(kinks) <= KINKS else set[float]()
        self.stops = sorted({kink for kink in self.kinks if kink < moments[-1]} | {float(moments[-1])})
        self.past = Past(y, flow.summed(y), float(delays.max(initial=0.0)))
        self.scale = max(float(y.max(initial=0.0)), 1e-12)
        self.out = np.empty((len(moments), *y.shape))
        self.out[0], self.noted = y, 1
        self.now, self.steps, self.refused = 0.0, 0, 0

    def run(self) -> None:
        """Go to the last moment."""
        slope = self.flow.change(self.past, 0.0, self.y)
        self.past.bend(slope, self.flow.arriving_slope(self.past, 0.0, slope, before=False))
        pace = 0.01 * self.scale / max(float(np.abs(slope).max(initial=0.0)), 1e-300)
        step = min(self.longest, pace, float(self.moments[-1]))
        for stop in self.stops:
            while self.now < stop:
                last = self.now + 1.000001 * step >= stop
                length = stop - self.now if last else step
                if length < 1e-12 * max(stop, 1e-9):
                    self._stuck()
                slope, factor = self._try(length, slope, stop if last else self.now + length)
                step = min(self.longest, length * factor)

    def _stuck(self) -> NoReturn:
        """Say why no step is short enough: a load ran into a pole of its price, or the tolerance is too small."""
        load = self.y.sum(axis=1)
        if (load >= 0.99 * self.flow.penalty.most(self.flow.n[:, 0, :])).any():
            raise Diverged(f"a load runs into its capacity at time {self.now:.6g}; lower the gain")
        raise NotSolved(f"steps became too small at time {self.now:.6g}; raise tolerance or lower the gain")

    def _try(self, length: float, slope: Array, then: float) -> tuple[Array, float]:
        """Take a step if its error is small enough; return the slope where it stands now, and by what to change steps."""
        slopes = [slope]
        for at, row in zip(AT[1:], STAGE[1:], strict=True):
            moved = self.y + length * sum(w * k for w, k in zip(row, slopes, strict=True))
            slopes.append(self.flow.change(self.past, self.now + at * length, np.maximum(moved, 0.0)))
        error, shrink = self._error(length, moved, slopes)
        if error <= 1.0:
            self._accept(then, np.maximum(moved, 0.0), slopes[-1])
            return slopes[-1], min(4.0, max(0.2, 0.9 * max(error, 1e-10) ** -0.2))
        self.refused += 1
        return slope, shrink

    def _error(self, length: float, moved: Array, slopes: list[Array]) -> tuple[float, float]:
        """Return the error of a step over what is allowed, and by what to shorten it if that is above one.

        A rate that would turn negative stops at zero: there the step is made to end, rather than made ever smaller.
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

    def _accept(self, then: float, y: Array, slope: Array) -> None:
        """Move to the end of the step, and note what was wanted on the way."""
        if not y.max(initial=0.0) < EXPLODED * self.scale:
            raise Diverged(f"rates grow beyond {EXPLODED * self.scale:.1g} at time {then:.6g}; lower the gain")
        sums = self.flow.arriving(self.past, then, y)
        self.past.add(then, y, slope, sums, self.flow.arriving_slope(self.past, then, slope, before=True))
        while self.noted < len(self.moments) and self.moments[self.noted] <= then:
            self.out[self.noted] = self._between(float(self.moments[self.noted]))
            self.noted += 1
        if then in self.kinks:
            self.past.bend(slope, self.flow.arriving_slope(self.past, then, slope, before=False))
        self.y, self.now, self.steps = y, then, self.steps + 1
        if self.watch is not None:
            self.watch(then, y.sum(axis=2))

    def _between(self, when: float) -> Array:
        """Return the rates at a moment of the last step."""
        past, k = self.past, self.past.count - 2
        h = past.times[k + 1] - past.times[k]
        x = (when - past.times[k]) / h
        rise = past.rates[k + 1] - past.rates[k]
        left, right = h * past.rate_slopes[k] - rise, rise - h * past.rate_slopes[k + 1]
        return np.asarray(past.rates[k] + x * (rise + (1.0 - x) * ((1.0 - x) * left + x * right)))
