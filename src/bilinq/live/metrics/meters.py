"""Counters and histograms since the process started; they stay when the service loads its memory again."""

from bisect import bisect_left
from collections import Counter, defaultdict, deque

from bilinq.live import tracing

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bounds for the duration of slots and commits."""
WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Bounds for the waits of jobs, in seconds."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)  # bounds for the number of operations in a commit
KEPT = 10_000  # most waits kept between two calls of `take_waits`


class Histogram:
    """Counts of values by interval; `counts` has an entry for each upper bound, and one for larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class CommitMeter:
    """Durations and sizes of commits; the writer's thread counts and others read."""

    def __init__(self) -> None:
        self.seconds, self.operations = Histogram(SECONDS), Histogram(SIZES)

    def note(self, operations: int, seconds: float) -> None:
        """Count a committed transaction."""
        self.operations.add(operations)
        self.seconds.add(seconds)
        if tracing.tracer is not None:
            tracing.record("commit", seconds, operations=operations)


class Meters:
    """Totals of jobs, leases and rewards by job class, and durations of slots.

    `units` are the services that submitted jobs need, `serving` the seconds of finished leases. `granted` is by job class
    and server class, `leases_ended` and `jobs_ended` by job class and final state, `answers` by method, path and status.
    `saved` is when the learnt state was last saved or loaded, `recoveries` how often memory was loaded again, and
    `fallbacks` how often the scheduler failed in a slot.
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
        self.recoveries = self.fallbacks = 0
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self._recent_waits: deque[float] = deque(maxlen=KEPT)

    def submit(self, job_class: str, units: int) -> None:
        """Count a submitted job."""
        self.submitted[job_class] += 1
        self.units[job_class] += units

    def wait(self, job_class: str, seconds: float) -> None:
        """Count the wait of a job for its first lease."""
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
        """Count the duration of a finished lease, and its reward in the user's units."""
        self.serving[job_class] += seconds
        if reward is not None:
            self.rewards[job_class] += 1
            self.reward_sum[job_class] += reward

    def late(self, job_class: str, change: float, *, first: bool) -> None:
        """Count a reward that came later, or the change of one."""
        self.rewards[job_class] += first
        self.reward_sum[job_class] += change

    def slot(self, seconds: float, solver: float, leases: int) -> None:
        """Count a slot in which the scheduler was called, with the seconds that the scheduler took."""
        self.slots.add(seconds)
        self.solver.add(solver)
        if tracing.tracer is not None:
            tracing.record("slot", seconds, solver_seconds=solver, leases=leases)
