"""Running totals for those who watch: each costs a lookup where something happens, and nothing where nobody looks."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

WAITS = 10_000
"""First waits kept until somebody takes them."""


@dataclass(slots=True)
class Tally:
    """What happened since memory was loaded, by job class; `granted` by pair of job class and server class.

    Attributes
    ----------
    submitted, units
        Jobs that were submitted, and services that they need.
    finished, seconds, reward
        Leases that were finished, how long they lasted in all, and their rewards.
    waits
        Seconds to the first lease, of all classes, until they are taken away.
    """

    submitted: Counter[str] = field(default_factory=Counter)
    units: Counter[str] = field(default_factory=Counter)
    granted: Counter[tuple[str, str]] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    reward: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WAITS))

    def submit(self, job_class: str, units: int) -> None:
        """Count a job that was submitted."""
        self.submitted[job_class] += 1
        self.units[job_class] += units

    def finish(self, job_class: str, seconds: float, reward: float | None) -> None:
        """Count a lease that was finished."""
        self.finished[job_class] += 1
        self.seconds[job_class] += seconds
        if reward is not None:
            self.reward[job_class] += reward

    def take_waits(self) -> list[float]:
        """Return the waits since the last call."""
        taken = list(self.waits)
        self.waits.clear()
        return taken
