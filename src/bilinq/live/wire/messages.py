"""Bodies of requests and responses under /v1: jobs, the work on them, classes and settings.

Points in time are seconds since 1970; durations are seconds. `access` and `samples` have the other bodies.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

PRINTABLE = r"^[^\x00-\x1f\x7f]*(?!\n)$"  # without the look-ahead, $ lets a line end pass
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
Key = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
Reason = Annotated[str, Meta(max_length=2000, pattern=r"^[^\x00]*$")]
Wait = Annotated[float, Meta(ge=0.0, le=60.0)]
Positive = Annotated[float, Meta(ge=1e-6, le=1e9)]
"""In a range in which the product of a few of them neither overflows nor becomes zero."""
Features = Annotated[list[Annotated[float, Meta(ge=-1e6, le=1e6)]], Meta(max_length=64)]
Pause = Annotated[float, Meta(ge=0.0, le=86_400.0)]
Cost = Annotated[float, Meta(ge=0.0, le=1e9)]
JobState = Literal["queued", "leased", "done", "dead", "cancelled", "expired"]
BATCH = 1000  # most jobs, leases or servers in one call
ANSWER_BYTES = 4 << 20  # most bytes of payloads and results in one response, unless a single job has more
Number = Annotated[float, Meta(ge=-1e6, le=1e6)]
OwnFeatures = Annotated[list[Number], Meta(min_length=1, max_length=64)]
ServerNames = Annotated[list[Name], Meta(min_length=1, max_length=100)]
Attempts = Annotated[int, Meta(ge=1, le=1000)]
LARGEST = 2**63 - 1  # of the whole numbers that the database keeps
Fence = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Tag = Annotated[str, Meta(min_length=1, max_length=64, pattern=PRINTABLE)]
Tags = Annotated[list[Tag], Meta(max_length=8)]


class NewJob(Struct, forbid_unknown_fields=True, frozen=True):
    """A job to submit. The same `key` submits it only once; `units` is how many services it needs.

    `features` describe this job, and have the same length for all jobs that have some. `servers` are the server classes that
    may serve it, default: all. `weight` is its priority, default: that of its class. It starts no earlier than `not_before`
    seconds from now, and after `deadline` seconds from now it leaves the queue as `expired`, unless late jobs are served.
    """

    job_class: Name = field(name="class")
    payload: Any = None
    key: Key | None = None
    units: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    features: OwnFeatures | None = None
    servers: ServerNames | None = None
    weight: Positive | None = None
    deadline: Positive | None = None
    not_before: Positive | None = None
    max_attempts: Attempts | None = None
    tags: Tags = []


class Submit(Struct, forbid_unknown_fields=True, frozen=True):
    """Jobs to submit, all or none."""

    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=BATCH)]


class JobRef(Struct, frozen=True):
    """A job that was accepted, now or earlier under the same key."""

    id: str
    state: JobState


class Submitted(Struct, frozen=True):
    """Accepted jobs, in the order of the request."""

    jobs: list[JobRef]


class Event(Struct, frozen=True):
    """An event of a job: submitted, leased, finished, failed, expired, cancelled, retried or died."""

    at: float
    what: str
    server: str | None = None
    detail: str | None = None


class Job(Struct, frozen=True):
    """A job in its current state. `attempts` counts leases that failed or expired.

    `deadline` and `not_before` are points in time. What its submission left out is null.
    """

    id: str
    job_class: str = field(name="class")
    state: JobState
    namespace: str
    key: str | None
    units: int
    units_left: int
    attempts: int
    submitted: float
    started: float | None
    ended: float | None
    payload: Any
    result: Any
    reward: float | None
    error: str | None
    history: list[Event] = []
    features: list[float] | None = None
    servers: list[str] | None = None
    weight: float | None = None
    deadline: float | None = None
    not_before: float | None = None
    max_attempts: int | None = None
    tags: list[str] = []


class EndedJob(Struct, frozen=True):
    """A job that has ended, as the stream of ended jobs has it. `event` is the id to continue after."""

    event: str
    id: str
    job_class: str = field(name="class")
    state: JobState
    namespace: str
    key: str | None
    attempts: int
    submitted: float
    started: float | None
    ended: float
    result: Any
    reward: float | None
    error: str | None
    tags: list[str] = []


class JobPage(Struct, frozen=True):
    """A page of jobs, newest first; pass `after` to get the next page, unless it is null.

    A page ends before its limit if its jobs are large.
    """

    jobs: list[Job]
    after: str | None


class DecisionOption(Struct, frozen=True):
    """A server class that could serve a job: expected reward, its standard error, expected seconds, price and score.

    `price` is what the service costs beyond the cheapest option, in units of reward: waiting, the server's time, and what
    other jobs would pay. `score` is value less price. `probability` is the estimated chance of the choice over the draws.
    """

    server_class: str
    value: float
    uncertainty: float
    duration: float
    price: float
    score: float
    probability: float


class DecisionInfo(Struct, frozen=True):
    """Why a job was given to a server class: its options, best score first.

    `lease` and `chosen` are null for a job that waits; then the numbers are those of now. `explored` is the kind of draw.
    """

    job: str
    job_class: str = field(name="class")
    lease: str | None
    at: float | None
    chosen: str | None
    probability: float | None
    options: list[DecisionOption]
    explored: str


class NewReward(Struct, forbid_unknown_fields=True, frozen=True):
    """The reward of a job that was served before. The same `key` counts once, also after other rewards."""

    reward: float
    key: Key | None = None


class Rewarded(Struct, frozen=True):
    """The reward of a job. `repeated`: it was counted before; `corrected`: it replaces an earlier one."""

    job: str
    reward: float
    repeated: bool = False
    corrected: bool = False


class NewServer(Struct, forbid_unknown_fields=True, frozen=True):
    """A server that will ask for work. Registering the same name again returns the same server."""

    server_class: Name = field(name="class")
    name: Name | None = None


class ServerInfo(Struct, frozen=True):
    """A registered server.

    It is `idle` while it waits for work, `busy` while it has a lease, and `away` otherwise.
    `seen` is when it last sent a request. While it is `held` it gets no job, for the `reason` given: `paused` because it
    fails more often than others, `draining` or `quarantined` because an operator said so.
    """

    id: str
    server_class: str = field(name="class")
    name: str | None
    state: Literal["idle", "busy", "away"]
    seen: float
    held: Literal["paused", "draining", "quarantined"] | None = None
    reason: str | None = None


class LeasedJob(Struct, frozen=True):
    """What a worker gets of the job that it leased."""

    id: str
    job_class: str = field(name="class")
    payload: Any
    units_left: int
    attempts: int


class Lease(Struct, frozen=True):
    """The right to serve a job until `deadline`, `seconds` from now. `fence` proves it and rises with every lease."""

    lease: str
    fence: int
    server: str
    deadline: float
    seconds: float
    job: LeasedJob


class Finish(Struct, forbid_unknown_fields=True, frozen=True):
    """The end of a lease. `done`: whether the job is done; default: at its last unit. Without `reward` nothing is learnt."""

    fence: Fence
    reward: float | None = None
    done: bool | None = None
    result: Any = None


class Fail(Struct, forbid_unknown_fields=True, frozen=True):
    """A failed lease: the job returns to its queue with one attempt less."""

    fence: Fence
    error: Reason = ""


class Extend(Struct, forbid_unknown_fields=True, frozen=True):
    """A lease to extend by a full lease time from now."""

    fence: Fence


class Deadline(Struct, frozen=True):
    """The new end of a lease, and the seconds until then."""

    deadline: float
    seconds: float


class Finished(Struct, frozen=True):
    """The state of the job after a lease ended. `repeated`: the same request was counted before."""

    job: str
    state: JobState
    repeated: bool = False


class WorkFinish(Struct, forbid_unknown_fields=True, frozen=True):
    """One of several leases to finish, or, with `error`, to end as failed."""

    lease: Name
    fence: Fence
    reward: float | None = None
    done: bool | None = None
    result: Any = None
    error: Reason | None = None


class Work(Struct, forbid_unknown_fields=True, frozen=True):
    """The request of an agent for many servers: leases to end, idle servers, and seconds to wait for work."""

    finish: Annotated[list[WorkFinish], Meta(max_length=BATCH)] = []
    lease: Annotated[list[Name], Meta(max_length=BATCH)] = []
    wait: Wait = 0.0


class LeaseOutcome(Struct, frozen=True, omit_defaults=True):
    """The outcome of one lease: the state of its job, or why the request was refused."""

    lease: str
    job: str | None = None
    state: JobState | None = None
    repeated: bool = False
    refused: str | None = None


class Worked(Struct, frozen=True):
    """The response to `Work`: an outcome for each ended lease, and new leases for some or none of the servers."""

    finished: list[LeaseOutcome]
    leases: list[Lease]


class JobClassInfo(Struct, forbid_unknown_fields=True, frozen=True):
    """A job class; at most `backlog` of its jobs may wait. Policies other than the default need features.

    `retry_first` and `retry_longest` are pauses before retries, in place of the service's.
    """

    name: Name
    features: Features = []
    weight: Positive = 1.0
    holding_cost: Cost = 1.0
    backlog: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    retry_first: Pause | None = None
    retry_longest: Pause | None = None


class JobClassValues(Struct, forbid_unknown_fields=True, frozen=True):
    """The values of a job class; its name is in the path, and `name`, if present, must be the same."""

    features: Features = []
    name: Name | None = None
    weight: Positive = 1.0
    holding_cost: Cost = 1.0
    backlog: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    retry_first: Pause | None = None
    retry_longest: Pause | None = None


class ServerClassInfo(Struct, forbid_unknown_fields=True, frozen=True):
    """A server class; policies other than the default need features."""

    name: Name
    features: Features = []


class ServerClassValues(Struct, forbid_unknown_fields=True, frozen=True):
    """The values of a server class; its name is in the path, and `name`, if present, must be the same."""

    features: Features = []
    name: Name | None = None


class Classes(Struct, frozen=True):
    """All classes."""

    job_classes: list[JobClassInfo]
    server_classes: list[ServerClassInfo]


class SettingsInfo(Struct, frozen=True):
    """Settings that can change while the service runs: `target_wait` in seconds, or `V` instead of it.

    Both are null if the policy has no settings. `learns` says whether the policy learns rewards. `shadow` is a second policy
    that is compared with it, or `none`.
    """

    target_wait: float | None
    V: float | None
    work_conserving: bool
    exploration: str
    policy: str = "look-ahead"
    learns: bool = True
    shadow: str = "none"


class SettingsUpdate(Struct, forbid_unknown_fields=True, frozen=True):
    """Settings to change; omitted ones stay as they are. `weight` maps job classes to weights.

    `shadow` is a policy to compare with, or `none`.
    """

    target_wait: Positive | UnsetType = UNSET
    V: Positive | UnsetType = UNSET
    work_conserving: bool | UnsetType = UNSET
    exploration: Literal["thompson", "ucb", "none"] | UnsetType = UNSET
    shadow: Name | UnsetType = UNSET
    weight: dict[Name, Positive] | UnsetType = UNSET


class SettingsChange(Struct, frozen=True):
    """A change of settings: when, by which key or `settings file`, and what it changed, as it was before and after.

    `undoes` is the id of the change that it takes back, `undone` whether it was taken back.
    """

    id: int
    at: float
    who: str
    before: dict[str, Any]
    after: dict[str, Any]
    undoes: int | None
    undone: bool


class SettingsChanges(Struct, frozen=True):
    """Changes of settings, newest first."""

    changes: list[SettingsChange]


class Retried(Struct, frozen=True):
    """A dead job that is queued again."""

    id: str
    state: JobState


class Changed(Struct, frozen=True):
    """How many jobs a call has changed, at most as many as its limit; pass `after` to go on, unless it is null."""

    changed: int
    after: str | None


class HealthStatus(Struct, frozen=True):
    """`ok` if the process works, `ready` if it accepts requests."""

    status: str


class ProblemDetails(Struct, frozen=True, omit_defaults=True):
    """Why a request was refused (application/problem+json)."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    request: str | None = None
