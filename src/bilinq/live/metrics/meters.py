"""Counters and histograms since the process started; they stay when the service loads its memory again."""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import islice

from bilinq.live import tracing

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bounds for the duration of slots and commits."""
WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Bounds for the waits of jobs, in seconds."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)  # bounds for the number of operations in a commit
KEPT = 10_000  # most waits that `waits_since` returns


class Histogram:
    """Counts of values by interval; `counts` has an entry for each upper bound, and one for larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def include(self, other: "Histogram") -> None:
        """Count the values of another histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class CommitMeter:
    """Durations and sizes of commits, and how often the database stalled; the writer's thread counts and others read."""

    def __init__(self) -> None:
        self.seconds, self.operations = Histogram(SECONDS), Histogram(SIZES)
        self.stalls = 0

    def note(self, operations: int, seconds: float) -> None:
        """Count a committed transaction."""
        self.operations.add(operations)
        self.seconds.add(seconds)
        if tracing.tracer is not None:
            tracing.record("commit", seconds, operations=operations)


COUNTERS = ("submitted", "units", "granted", "leases_ended", "jobs_ended", "rewards")
SUMS = ("serving", "reward_sum")


class Meters:
    """Totals of jobs, leases and rewards by job class, and durations of slots.

    `units` are the services that submitted jobs need, `serving` the seconds of finished leases. `granted` is by job class
    and server class, `leases_ended` and `jobs_ended` by job class and final state, `answers` by method, path and status.
    `saved` is when the learnt state was last saved or loaded, `recoveries` how often memory was loaded again, and
    `fallbacks` how often the scheduler failed in a slot, and `shadow_failures` how often a shadow was switched off. `waited`
    is the number of waits, and `tenants` has the meters of each namespace.
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
        self.recoveries = self.fallbacks = self.shadow_failures = 0
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.waited = 0
        self._recent_waits: deque[float] = deque(maxlen=KEPT)
        self.tenants: dict[str, Meters] = {}

    def of(self, namespace: str) -> "Meters":
        """Return the meters of a namespace, which count what concerns its jobs a second time."""
        found = self.tenants.get(namespace)
        if found is None:
            found = self.tenants[namespace] = Meters()
        return found

    @classmethod
    def merged(cls, parts: "Sequence[Meters]") -> "Meters":
        """Return the totals of several meters, by job class."""
        if len(parts) == 1:
            return parts[0]
        total = cls()
        for part in parts:
            for name in COUNTERS:
                getattr(total, name).update(getattr(part, name))
            for name in SUMS:
                for key, value in getattr(part, name).items():
                    getattr(total, name)[key] += value
            for key, histogram in part.waits.items():
                total.waits.setdefault(key, Histogram(WAITS)).include(histogram)
        return total

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
        self.waited += 1

    def waits_since(self, number: int) -> list[float]:
        """Return the waits, of all classes, after the first `number`; of many, the newest."""
        kept = len(self._recent_waits)
        return list(islice(self._recent_waits, max(kept - (self.waited - number), 0), kept))

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
