"""What viewers of a service get: its state, samples, recent leases, and predictions for other settings."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from bilinq.live.wire.messages import SettingsInfo


class BaselineSample(Struct, frozen=True):
    """A sample of the baseline, a second service to compare with; `reward` since the last sample."""

    name: str
    queued: int
    reward: float
    wait_p50: float | None
    wait_p90: float | None


class Sample(Struct, frozen=True):
    """What happened since the last sample, and the current state; lists are in the order of the classes in `Layout`.

    Attributes
    ----------
    id : str
        The start of the service and a number that rises by one.
    slots, slot_seconds
        Slots since the last sample, and their mean duration.
    queued, leased, submitted, finished, reward
        By job class: jobs that wait and that are served now; jobs submitted, leases finished and rewards since the
        last sample.
    wait_p50, wait_p90, wait_p99
        Percentiles of the seconds from submission to first lease, of jobs first leased in the last minute; null if none.
    idle, busy
        By server class: servers that wait for work, and servers that serve a job.
    best, earned
        Most reward per second that the learnt means allow for the jobs submitted in the last minute on the present
        servers, and the reward per second that was earned; null while unknown.
    rival
        The baseline, or null if there is none.
    wait_mean
        Mean of the same seconds as the percentiles.
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
    wait_mean: float | None = None


class Layout(Struct, frozen=True):
    """The classes that the lists of samples refer to; `version` rises when anything here changes."""

    version: int
    job_classes: list[str]
    server_classes: list[str]
    target_wait: float | None
    reward_low: float
    reward_high: float


class History(Struct, frozen=True):
    """Samples, oldest first, one `every` so many seconds."""

    layout: Layout
    moments: list[Sample]
    every: float


class Waits(Struct, frozen=True):
    """Seconds from submission to first lease of recent jobs: count, mean and percentiles; null if there were none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class JobClassState(Struct, frozen=True):
    """The current state of a job class."""

    name: str
    weight: float
    queued: int
    leased: int
    wait: Waits


class ServerClassState(Struct, frozen=True):
    """The current state of a server class: servers that wait for work, and servers that serve a job."""

    name: str
    idle: int
    busy: int


class Bounds(Struct, frozen=True):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


ShadowState = Literal["starting", "on", "failed"]


class ShadowInfo(Struct, frozen=True):
    """How a second policy compares with the first, over the last decisions in which there was a choice of server classes.

    Attributes
    ----------
    policy, state, error
        The second policy, whether it is asked, and why not if it has failed.
    choices, compared
        Decisions, and those of them that were rewarded and in which the first policy had a known chance, not too small, to
        choose as the shadow would.
    agreement
        How often both choose the same server class.
    predicted_gain
        Change of the reward of a service by what was learnt, over all choices: a prediction, not a measurement.
    earned, estimate, gain
        Over those compared: reward of a service as it was earned, as it would have been (doubly robust), and the difference;
        null if there are too few.
    notes
        What the numbers mean, and what speaks against them.
    """

    policy: str
    state: ShadowState
    error: str | None = None
    choices: int = 0
    compared: int = 0
    agreement: float | None = None
    predicted_gain: float | None = None
    earned: Bounds | None = None
    estimate: Bounds | None = None
    gain: Bounds | None = None
    notes: list[str] = []


class State(Struct, frozen=True):
    """The current state of the service. Rows of matrices are job classes, columns server classes.

    `expected` is the allocation of the last slot, `mean` and `width` are the learnt rewards and their standard errors.
    `unserved` counts waiting jobs that no server may serve by class and namespace, and `awaited` jobs done without a reward.
    `shadow` is null if there is none, and for keys that see some namespaces only.
    """

    now: float
    slot: int
    V: float
    knobs: SettingsInfo
    job_classes: list[JobClassState]
    server_classes: list[ServerClassState]
    expected: list[list[float]]
    mean: list[list[float]]
    width: list[list[float]]
    counters: dict[str, int]
    reward_total: float
    unserved: int = 0
    awaited: int = 0
    shadow: ShadowInfo | None = None


class StateView(Struct, frozen=True):
    """The state of the scheduler; rows of matrices are job classes, columns server classes.

    `expected` is the allocation of the last slot, `rate` the leases per second over the last ten seconds, `mean` and
    `width` are the learnt rewards and their standard errors. `unserved` and `awaited` are as in `State`.
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
    shadow: ShadowInfo | None = None
    unserved: int = 0
    awaited: int = 0


class RecentLease(Struct, frozen=True):
    """A lease that is active or ended recently."""

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
    """Predicted queue and wait of a job class with the current settings (now) and with others (then); the measured wait."""

    name: str
    queue_now: float | None
    queue_then: float | None
    wait_now: float | None
    wait_then: float | None
    measured_wait: float | None


class Prediction(Struct, frozen=True):
    """The predicted effect of other settings; null where unknown. `reward_now` is the current reward per second.

    The queue is that of all classes together, and the wait the mean over all jobs.
    """

    V_now: float | None
    V_then: float | None
    job_classes: list[ClassPrediction]
    reward_now: float | None
    reward_then: float | None
    note: str
    queue_now: float | None = None
    queue_then: float | None = None
    wait_now: float | None = None
    wait_then: float | None = None


class Position(Struct, frozen=True):
    """How far a stream of ended jobs has come, also where no job matches."""

    after: str


class StreamEvent(Struct, frozen=True, omit_defaults=True):
    """An event of a stream; `id` is where to continue.

    `data` is the JSON of a `Layout`, `Sample`, `StateView` or `Leases`; of an `EndedJob`; or of a `Position`.
    """

    event: Literal["layout", "moment", "state", "leases", "job", "position"]
    data: str
    id: str | UnsetType = UNSET
