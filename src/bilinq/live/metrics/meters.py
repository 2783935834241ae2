"""Counts and histograms since the process started; they outlive memory, which may be loaded again."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque

from bilinq.live.tracing import record

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bounds for what a machine does: slots, commits."""
WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Bounds for how long jobs wait, in seconds."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Bounds for how many operations a commit holds."""
KEPT = 10_000
"""First waits kept until somebody takes them."""


class Histogram:
    """How often values were at most each of the bounds; `counts` has one place more, for what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class CommitMeter:
    """What the writer does; its thread counts and others read."""

    def __init__(self) -> None:
        self.seconds, self.operations = Histogram(SECONDS), Histogram(SIZES)

    def note(self, operations: int, seconds: float) -> None:
        """Count a transaction that was committed."""
        self.operations.add(operations)
        self.seconds.add(seconds)
        record("commit", seconds, operations=operations)


class Meters:
    """What happened to jobs, leases and rewards, by job class, and how long slots took.

    Attributes
    ----------
    submitted, units
        Jobs that were submitted, and services that they need.
    granted
        Leases by pair of job class and server class.
    leases_ended, jobs_ended
        By job class and how.
    serving
        Seconds that finished leases lasted.
    saved, recoveries
        When what was learnt was last saved to the database or loaded from it, and how often memory was loaded again.
    answers
        Requests that were answered, by method, path and status.
    """

    def __init__(self) -> None:
        self.submitted: Counter[str] = Counter()
        self.units: Counter[str] = Counter()
        self.granted: Counter[tuple[str, str]] = Counter()
        self.leases_ended: Counter[tuple[str, str]] = Counter()
        self.jobs_ended: Counter[tuple[str, str]] = Counter()
        self.serving: defaultdict[str, float] = defaultdict(float)
        self.rewards: Counter[str] = Counter()
        self.reward_sum: defaultdict[str, float] = defaultdict(float)
        self.waits: dict[str, Histogram] = {}
        self.slots, self.solver = Histogram(SECONDS), Histogram(SECONDS)
        self.saved: float | None = None
        self.recoveries = 0
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self._recent_waits: deque[float] = deque(maxlen=KEPT)

    def submit(self, job_class: str, units: int) -> None:
        """Count a job that was submitted."""
        self.submitted[job_class] += 1
        self.units[job_class] += units

    def wait(self, job_class: str, seconds: float) -> None:
        """Count how long a job waited for its first lease."""
        histogram = self.waits.get(job_class)
        if histogram is None:
            histogram = self.waits[job_class] = Histogram(WAITS)
        histogram.add(seconds)
        self._recent_waits.append(seconds)

    def take_waits(self) -> list[float]:
        """Return the waits since the last call, of all classes."""
        taken = list(self._recent_waits)
        self._recent_waits.clear()
        return taken

    def finish(self, job_class: str, seconds: float, reward: float | None) -> None:
        """Count a lease that was finished after some seconds, and its reward in the user's units."""
        self.leases_ended[job_class, "finished"] += 1
        self.serving[job_class] += seconds
        if reward is not None:
            self.rewards[job_class] += 1
            self.reward_sum[job_class] += reward

    def slot(self, seconds: float, solver: float, leases: int) -> None:
        """Count a slot that asked the scheduler, with the time that this one took."""
        self.slots.add(seconds)
        self.solver.add(solver)
        record("slot", seconds, solver_seconds=solver, leases=leases)
