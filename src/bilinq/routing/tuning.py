"""The search for the value of a router's number at which jobs wait as long as wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import exp, isfinite, log

FAR = 1e3  # a factor from the target beyond which only the direction counts
BLIND = 3  # steps towards the long end, after which the end itself is tried
CLOSE = 1e-4  # part of the range at which the search gives up: the measure jumps over the target


class TuningOutcome(Enum):
    """How a search for equal waits ended."""

    TUNED = "tuned"
    SHORTEST = "not reached: even the shortest wait is longer"
    LONGEST = "not reached: even the longest wait is shorter"
    NEAREST = "not reached: nearest that was found"
    FIXED = "as it is, no number to tune"


@dataclass
class WaitSearch:
    """A search on a log scale between the values for short and for long waits.

    Call `propose` for the next value and `note` with what it reached, until `outcome` is not None. It keeps a value with a
    shorter and one with a longer wait than the target, and takes the next between them: by linear interpolation of the
    logarithms, or in the middle at every third step.
    """

    short: float
    long: float
    target: float
    tolerance: float
    steps: int
    seen: list[tuple[float, float]] = field(default_factory=list)
    outcome: TuningOutcome | None = None

    def __post_init__(self) -> None:
        self._low: tuple[float, float] | None = None  # place in the range from 0 to 1, and what it reached
        self._high: tuple[float, float] | None = None
        self._place = 0.0

    def propose(self) -> float:
        """Return the next value to try."""
        self._place = self._next()
        return exp((1.0 - self._place) * log(self.short) + self._place * log(self.long))

    def _next(self) -> float:
        if self._low is None:
            return 0.0
        (a, low), number = self._low, len(self.seen)
        if self._high is None:
            return (a + 1.0) / 2.0 if number <= BLIND else 1.0
        b, high = self._high
        part = (log(self.target) - log(low)) / (log(high) - log(low))
        return a + (b - a) * (0.5 if number % 3 == 0 else min(max(part, 0.1), 0.9))

    def note(self, value: float, reached: float) -> None:
        """Note the measure that a proposed value reached; NaN counts as infinite."""
        reached = reached if isfinite(reached) else self.target * FAR
        self.seen.append((value, reached))
        mark = self._place, min(max(reached, self.target / FAR), self.target * FAR)
        if abs(reached / self.target - 1.0) <= self.tolerance:
            self.outcome = TuningOutcome.TUNED
        elif reached > self.target:
            self.outcome = TuningOutcome.SHORTEST if self._low is None else None
            self._high = mark
        else:
            self.outcome = TuningOutcome.LONGEST if self._place == 1.0 else None
            self._low = mark
        if self.outcome is None and (len(self.seen) >= self.steps or self._narrow()):
            self.outcome = TuningOutcome.NEAREST

    def _narrow(self) -> bool:
        return self._low is not None and self._high is not None and self._high[0] - self._low[0] < CLOSE

    @property
    def best(self) -> tuple[float, float]:
        """The value that came nearest to the target, by ratio, and what it reached."""
        return min(self.seen, key=lambda one: abs(log(max(one[1], self.target / FAR) / self.target)))
