"""The price of waiting: V as set, or adjusted until jobs wait as long as wanted, Eq. (65) and (67)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array, within

FIRST_JOBS, JOBS, QUEUES = 100.0, 300.0, 0.5
"""Time constant of the controller: 100 jobs and a tenth of those seen, up to 300, and half of the queue at the target."""
STEEP, SLACK = 2.0, 0.25
"""How fast the price of waiting grows with the queue relative to that at the target, and what is added to both queues."""
STEADY = 200.0  # jobs over which rates and waits are averaged
LARGEST_ERROR = 3.0  # how long a queue counts at most, in targets
FIRST_GAIN = 0.02  # reward, on the scale of [-1, 1], for which a job is expected to wait as long as the target
LOWEST, HIGHEST = 0.05, 20_000.0  # V relative to the mean duration beyond which decisions hardly change
MET = 0.2  # part of the target by which waits may differ
AT_END = 0.5  # logarithm of V, from one of its ends, that counts as being there: it varies with every job


class Waits(NamedTuple):
    """How long jobs wait: the target, the mean over the last jobs, V, and whether the target is met; None if unknown.

    `note` says why a target is not met, and how many jobs wait for servers that are not there: these do not count.
    `percentile` is None for a target of the mean.
    """

    target: float
    measured: float
    V: float
    met: bool | None
    note: str
    percentile: float | None = None


@dataclass
class WaitController:
    """V and what it follows. Time is in slots; `percentile` is a number between 0 and 1, or None for the mean.

    `sums` (4,) are arrivals, slots, time waited and late jobs, over about the last 200 jobs.
    """

    target: float | None
    fixed: float | None
    percentile: float | None = None
    log_weight: float | None = None
    seen: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(4))

    def check(self) -> None:
        """Raise `BadState` unless the numbers can be those of jobs that have waited."""
        within("sums", self.sums, 0.0, 1e150)
        within("seen", self.seen, 0, 2**53)
        if self.log_weight is not None:
            within("log_weight", self.log_weight, -600.0, 600.0)

    def update(self, elapsed: float, waited: float, late: int, arrivals: int, duration: float) -> None:
        """Follow the queue over the last `elapsed` slots, in which jobs waited for `waited` slots in all.

        `arrivals` is how many are new, and `late` how many have now waited longer than the target for the first time.
        """
        self._average(elapsed, waited, late, arrivals)
        if self.fixed is not None:
            return
        target = self.goal(duration)
        low, high = log(LOWEST * duration), log(HIGHEST * duration)
        if self.log_weight is None:
            self.log_weight = log(target / FIRST_GAIN)
        per_job = 1.0 / (min(FIRST_JOBS + 0.1 * self.seen, JOBS) + QUEUES * self.rate * target)
        if self.percentile is None:
            error = min(waited / target, LARGEST_ERROR * max(arrivals, self.rate * elapsed)) - arrivals
        else:
            error = 2.0 * (late - (1.0 - self.percentile) * arrivals)
        self.log_weight = min(max(self.log_weight - per_job * error, low), high)

    def goal(self, duration: float) -> float:
        """Return the wait to aim at: as set, or a mean duration."""
        return duration if self.target is None else self.target

    @property
    def V(self) -> float:
        """Weight of rewards against waiting."""
        if self.fixed is not None:
            return self.fixed
        return exp(self.log_weight) if self.log_weight is not None else inf

    def price(self, waiting: int, servers: float, duration: float) -> float:
        """Return the price of a slot of waiting of a job of weight one: it grows with the queue, Eq. (65)."""
        wanted = self.rate * self.goal(duration)
        if self.fixed is not None or self.percentile is not None or wanted == 0.0:
            return (1.0 + waiting / max(servers, 1.0)) / self.V
        more = SLACK * wanted + 1.0
        queue: float = ((waiting + more) / (wanted + more)) ** STEEP
        return (1.0 + wanted / max(servers, 1.0)) / self.V * queue

    def _average(self, elapsed: float, waited: float, late: int, arrivals: int) -> None:
        """Average over the last jobs; by Little's law the mean wait is the time waited over the arrivals."""
        self.sums = self.sums * exp(-arrivals / STEADY) + (arrivals, elapsed, waited, late)
        self.seen += arrivals

    @property
    def rate(self) -> float:
        """Arrivals in a slot."""
        return float(self.sums[0] / self.sums[1]) if self.sums[1] > 0.0 else 0.0

    @property
    def wait(self) -> float:
        """Mean wait of the last jobs."""
        return float(self.sums[2] / self.sums[0]) if self.sums[0] > 0.0 else 0.0

    def status(self, duration: float, stranded: int = 0) -> Waits:
        """Return how waits compare with the target; for so many `stranded` jobs no server is there."""
        found = self._compared(duration)
        if not stranded:
            return found
        jobs = "1 job waits" if stranded == 1 else f"{stranded:,} jobs wait"
        return found._replace(note=f"{found.note}; {jobs} for servers that are not there")

    def _compared(self, duration: float) -> Waits:
        target = self.goal(duration)
        if self.fixed is not None:
            return Waits(target, self.wait, self.V, None, "V is set", self.percentile)
        if self.seen < STEADY or self.log_weight is None:
            return Waits(target, self.wait, self.V, None, "too few jobs so far", self.percentile)
        ratio = (
            self.wait / target
            if self.percentile is None
            else self.sums[3] / max(self.sums[0], 1e-300) / (1.0 - self.percentile)
        )
        met, note = bool(abs(ratio - 1.0) <= MET), "as wanted"
        if not met:
            low, high = log(LOWEST * duration) + AT_END, log(HIGHEST * duration) - AT_END
            note = "on the way to the target"
            if ratio > 1.0 and self.log_weight <= low:
                note = "the load does not allow it: a shorter wait would need more servers"
            elif ratio < 1.0 and self.log_weight >= high:
                note = "longer waits would earn no more"
        return Waits(target, self.wait, self.V, met, note, self.percentile)
