"""What viewers of a service get: samples, the state of the scheduler, recent leases, and predictions for other settings."""

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


class StateView(Struct, frozen=True):
    """The state of the scheduler; rows of matrices are job classes, columns server classes.

    `expected` is the allocation of the last slot, `rate` the leases per second over the last ten seconds, `mean` and
    `width` are the learnt rewards and their standard errors.
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
    """The predicted effect of other settings; null where unknown. `reward_now` is the current reward per second."""

    V_now: float | None
    V_then: float | None
    job_classes: list[ClassPrediction]
    reward_now: float | None
    reward_then: float | None
    note: str


class StreamEvent(Struct, frozen=True, omit_defaults=True):
    """An event of a stream: `data` is the JSON of a `Layout`, `Sample`, `StateView` or `Leases`; `id` is the sample's."""

    event: Literal["layout", "moment", "state", "leases"]
    data: str
    id: str | UnsetType = UNSET
