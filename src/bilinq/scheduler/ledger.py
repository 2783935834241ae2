"""The jobs of a scheduler: those that wait or are assigned, and those that have left and may still be rewarded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan

from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, finite, non_negative, positive, scalar, short
from bilinq.errors import BadInput
from bilinq.scheduler.explain import Decision

Job = Hashable  # the name of a job, chosen by the user


@dataclass(slots=True, kw_only=True)
class Entry:
    """A job that waits or is assigned.

    Attributes
    ----------
    job_class : str
    units : int
        Services that it still needs.
    serial : int
        Its number in the order of submission, which determines its random numbers.
    since, started : float
        When it was submitted, and when its present service began.
    features, servers, weight, duration, cost : optional
        What the caller said of this job alone: its features, eligible server classes, priority, known durations, and
        known costs on the scale of [-1, 1].
    deadline : float
        When it leaves if it has not started.
    out, server : optional
        The server class that serves it, None while it waits, and the caller's name of the server.
    decision : Decision, optional
        Why it was assigned there.
    avoid : optional
        A server that serves it only if no other one of the same class is idle.
    pool : str, optional
        The pool that it belongs to, whose servers may serve it; None: every server.
    queued : float
        When it joined the queue; later than `since` if it waited before, since an age is the sum of all waits.
    """

    job_class: str
    units: int
    serial: int
    since: float
    started: float = nan
    features: Array | None = None
    servers: tuple[str, ...] | None = None
    weight: float | None = None
    duration: Mapping[str, float] | None = None
    deadline: float = inf
    out: str | None = None
    server: Hashable = None
    decision: Decision | None = None
    avoid: Hashable = None
    pool: str | None = None
    cost: Mapping[str, float] | None = None
    queued: float = nan

    @property
    def plain(self) -> bool:
        """Whether the job is like all others of its class, so that they are served in order."""
        own = (self.features, self.servers, self.weight, self.duration, self.cost)
        return all(one is None for one in own)


def waiting_entry(
    job_class: str,
    units: int,
    serial: int,
    now: float,
    *,
    features: ArrayLike | None,
    servers: Sequence[str] | None,
    weight: float | None,
    deadline: float | None = None,
    duration: Mapping[str, float] | None = None,
    avoid: Hashable = None,
    pool: str | None = None,
    cost: Mapping[str, float] | None = None,
) -> Entry:
    """Return the entry of a job that is submitted now, after checks of what the caller said of it."""
    return Entry(
        job_class=job_class, units=count("units", units), serial=serial, since=now, queued=now,
        features=job_features(features), servers=_server_names(servers),
        weight=None if weight is None else scalar("weight", weight, positive),
        duration=_by_server("duration", duration, "slots", positive),
        deadline=inf if deadline is None else now + scalar("deadline", deadline, positive),
        avoid=avoid, pool=pool, cost=_by_server("cost", cost, "numbers", non_negative),
    )  # fmt: skip


def job_features(features: ArrayLike | None) -> Array | None:
    """Return the features of a job as an array; raise unless they are a list of finite numbers."""
    if features is None:
        return None
    array = finite("features", features)
    if array.ndim != 1 or not array.size:
        raise BadInput(f"features must be a list of numbers; got shape {array.shape}")
    return array.copy()


def _server_names(servers: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(servers, str) or (servers is not None and not servers):
        raise BadInput(f"servers must be a list of names, or None for those of the class; got {short(servers)}")
    return None if servers is None else tuple(servers)


def _by_server(
    argument: str, given: Mapping[str, float] | None, unit: str, rule: Callable[[str, ArrayLike], Array]
) -> dict[str, float] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise BadInput(f"{argument} must map server classes to {unit}; got {short(given)}")
    return {name: scalar(f"{argument}[{name!r}]", value, rule) for name, value in given.items()}


class Ledger:
    """Entries by name."""

    def __init__(self) -> None:
        self._entries: dict[Job, Entry] = {}

    def __contains__(self, job: Job) -> bool:
        return job in self._entries

    def add(self, job: Job, entry: Entry) -> None:
        """Add a new job."""
        if job in self._entries:
            raise BadInput(f"job must be new; got {short(job)}")
        self._entries[job] = entry

    def get(self, job: Job) -> Entry:
        """Return the entry of a job."""
        entry = self._entries.get(job)
        if entry is None:
            raise BadInput(f"job must be waiting or assigned; got {short(job)}")
        return entry

    def out(self, job: Job) -> Entry:
        """Return the entry of a job that is at a server."""
        entry = self._entries.get(job)
        if entry is None or entry.out is None:
            raise BadInput(f"job must be assigned to a server; got {short(job)}")
        return entry

    def remove(self, job: Job) -> None:
        """Remove a job."""
        del self._entries[job]

    def items(self) -> Iterator[tuple[Job, Entry]]:
        """Yield all jobs with their entries."""
        yield from self._entries.items()

    def check_unused(self, job_classes: set[str], server_classes: set[str]) -> None:
        """Raise if a job is of one of these job classes, or at a server of one of these server classes."""
        for entry in self._entries.values():
            if entry.job_class in job_classes:
                raise BadInput(f"job class {entry.job_class!r} must have no jobs to be dropped")
            if entry.out in server_classes:
                raise BadInput(f"server class {entry.out!r} must serve no job to be dropped")


@dataclass(slots=True)
class Served:
    """A job that has left: its class and features, the server class of its last service, and its reward or None.

    `epoch` is that of the server class when the reward was learnt; in another one it no longer counts. `shared` are the
    features that the class had, if they have changed since.
    """

    job_class: str
    server_class: str
    features: Array | None
    reward: float | None
    epoch: int = 0
    shared: tuple[float, ...] | None = None


class Archive:
    """The jobs that left last, at most `size` of them, for rewards that come later or are corrected."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._served: OrderedDict[Job, Served] = OrderedDict()

    def __len__(self) -> int:
        return len(self._served)

    def add(self, job: Job, served: Served) -> None:
        """Keep a job, and drop the oldest if there are too many."""
        self._served[job] = served
        self._served.move_to_end(job)
        while len(self._served) > self.size:
            self._served.popitem(last=False)

    def get(self, job: Job) -> Served:
        """Return what is kept of a job."""
        served = self._served.get(job)
        if served is None:
            rule = f"job must be one of the last {self.size} that were served and have left"
            raise BadInput(f"{rule}; got {short(job)}")
        return served

    def keep_features(self, features: Mapping[str, tuple[float, ...]]) -> None:
        """Note the features that some job classes had until now."""
        for one in self._served.values():
            if one.shared is None and one.job_class in features:
                one.shared = features[one.job_class]

    @property
    def awaited(self) -> int:
        """How many of the jobs have no reward yet."""
        return sum(one.reward is None for one in self._served.values())

    def items(self) -> Iterator[tuple[Job, Served]]:
        """Yield the jobs, oldest first."""
        yield from self._served.items()
