"""What those who watch a service are told: moments, what the scheduler does, recent leases, and what to expect of knobs."""

from msgspec import Struct, field

from bilinq.live.wire.messages import SettingsInfo


class BaselineSample(Struct, frozen=True):
    """Another service beside this one, to compare with, since the last moment; waits in seconds."""

    name: str
    queued: int
    reward: float
    wait_p50: float | None
    wait_p90: float | None


class Sample(Struct, frozen=True):
    """What happened since the moment before, and how things are now; lists in the order of the classes in `Layout`.

    Attributes
    ----------
    id : str
        Which start of the service, and a number that rises by one.
    slots, slot_seconds
        Slots since the last moment, and how long they took on average.
    queued, leased, submitted, finished, reward
        By job class: jobs that wait and that are served now; jobs submitted, leases finished and rewards since.
    wait_p50, wait_p90, wait_p99
        Percentiles of the seconds to the first lease, of jobs first leased in the last minute; null if there were none.
    idle, busy
        By server class.
    best, earned
        Most reward per second that the learnt means allow for the jobs that came in the last minute on the servers that
        are there, and what was earned per second; null before there is anything to say.
    """

    id: str
    at: float
    slots: int
    slot_seconds: float
    queued: list[int]
    leased: list[int]
    submitted: list[int]
    finished: list[int]
    reward: list[float]
    wait_p50: float | None
    wait_p90: float | None
    wait_p99: float | None
    idle: list[int]
    busy: list[int]
    best: float | None
    earned: float | None
    rival: BaselineSample | None


class Layout(Struct, frozen=True):
    """What the lists of moments are about; `version` rises when anything here changes."""

    version: int
    job_classes: list[str]
    server_classes: list[str]
    target_wait: float | None
    reward_low: float
    reward_high: float


class History(Struct, frozen=True):
    """Moments, oldest first, `every` so many seconds."""

    layout: Layout
    moments: list[Sample]
    every: float


class StateView(Struct, frozen=True):
    """What the scheduler does and has learnt; rows of matrices are job classes, columns server classes.

    `expected` is the allocation of the last slot, `rate` the leases per second of the last ten seconds, `mean` and `width`
    the learnt rewards and their standard errors in the user's units.
    """

    at: float
    slot: int
    V: float
    knobs: SettingsInfo
    weights: list[float]
    expected: list[list[float]]
    rate: list[list[float]]
    mean: list[list[float]]
    width: list[list[float]]
    counters: dict[str, int]
    reward_total: float


class RecentLease(Struct, frozen=True):
    """A lease, whether it is active or how it ended."""

    lease: str
    job: str
    job_class: str = field(name="class")
    server: str
    server_class: str
    granted: float
    ended: float | None
    state: str
    reward: float | None


class Leases(Struct, frozen=True):
    """Recent leases, newest first."""

    leases: list[RecentLease]


class ClassPrediction(Struct, frozen=True):
    """What the theory expects of a job class, as the knobs are and as they would be, and the mean wait of recent jobs."""

    name: str
    queue_now: float | None
    queue_then: float | None
    wait_now: float | None
    wait_then: float | None
    measured_wait: float | None


class Prediction(Struct, frozen=True):
    """What would come of other knobs; null where nothing can be said. `reward_now` is earned per second at present."""

    V_now: float | None
    V_then: float | None
    job_classes: list[ClassPrediction]
    reward_now: float | None
    reward_then: float | None
    note: str
