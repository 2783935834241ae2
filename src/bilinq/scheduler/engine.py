"""The abstract `Engine`: what decides in a scheduler. One runs a policy of slots, the other looks ahead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.learning import Health
from bilinq.scheduler.classes import LookAheadSettings, PolicySettings, Roster
from bilinq.scheduler.ledger import Entry, Job

if TYPE_CHECKING:
    from bilinq.scheduler.explain import Decision
    from bilinq.scheduler.waits import Waits


class Service(NamedTuple):
    """A service that has ended: whose, where, its reward on the scale of [-1, 1] and its duration, None if not known.

    `started` is when it began, for a duration that is to be measured; None if it is not. `shared` are the features that the
    job's class had, if they have changed since.
    """

    job: Job | None
    job_class: str
    server_class: str
    features: Array | None
    reward: float | None
    duration: float | None
    started: float | None
    weight: float = 1.0
    shared: tuple[float, ...] | None = None


class Pool(NamedTuple):
    """A part of the jobs: the weight of its share, and the server classes that have servers for it; None: all."""

    weight: float = 1.0
    servers: tuple[str, ...] | None = None


class Engine(ABC):
    """Decides which waiting job takes which idle server, and learns. It keeps the waiting jobs, by name."""

    roster: Roster
    expected: Array
    learns: bool = True
    """Whether what it observes changes its decisions."""
    own: int = 0
    """Length of the features of single jobs; 0 until one has some."""
    by_job: bool = False
    """Whether `expected` has a row for each job instead of each job class."""

    @abstractmethod
    def check(self, entry: Entry) -> None:
        """Raise if this job cannot be scheduled."""

    def check_features(self, features: Array | None) -> None:
        """Raise unless a job may have these features of its own."""
        if features is not None:
            raise self.refusal("features of a single job")

    @abstractmethod
    def add(self, job: Job, entry: Entry, first: bool = False) -> None:
        """Let a job wait, behind the others or as the first of its class."""

    def arrived(self, fresh: Iterable[tuple[Job, Entry]]) -> None:  # noqa: B027, slots count jobs, not time
        """Note that `since`, `queued` and `deadline` of waiting jobs have changed: they have arrived later."""

    def expired(self, now: float) -> list[Job]:
        """Return the waiting jobs whose deadline has passed."""
        return []

    def resume(self, job: Job, entry: Entry, counted: bool) -> None:
        """Let a job wait that waited when a snapshot was made, and was `counted` as an arrival or not."""
        self.add(job, entry)

    def uncounted(self) -> list[Job]:
        """Return the waiting jobs that were not yet counted as arrivals."""
        return []

    def give_back(self, job: Job, entry: Entry) -> None:
        """Let a job wait as the first of its class that was chosen and has not started."""
        self.add(job, entry, first=True)

    @abstractmethod
    def remove(self, job: Job, entry: Entry) -> None:
        """Remove a job that waits."""

    def leave(self, job: Job) -> None:  # noqa: B027, most engines keep nothing of a job that is out
        """Note that a job that was out has left."""

    def place(self, job: Job, entry: Entry) -> None:  # noqa: B027
        """Note a job that is out and never waited here."""

    @abstractmethod
    def order(self) -> list[Job]:
        """Return the jobs that wait, in their order."""

    @abstractmethod
    def queue(self) -> dict[str, int]:
        """Return how many jobs of each class wait."""

    @abstractmethod
    def decide(
        self, idle: Array, out: Array, now: float, elapsed: float, pools: Collection[str] | None = None
    ) -> list[tuple[Job, int, Decision | None]]:
        """Learn what was observed; return jobs, which wait no longer, with the columns (J,) of `idle` that serve them.

        With `pools` only jobs that belong to one of them are considered.
        """

    @abstractmethod
    def set_pool(self, name: str, pool: Pool, waiting: Iterable[tuple[Job, Entry]]) -> None:
        """Change the weight and the server classes of a pool; `waiting` are its jobs that wait."""

    @abstractmethod
    def observe(self, service: Service) -> None:
        """Note a service; it counts from the next decision on."""

    def epoch(self, server_class: str) -> int:
        """Return a number that changes when earlier observations of a server class stop to count."""
        return 0

    def correct(self, service: Service, before: float, epoch: int) -> None:
        """Change the reward of a service from what it was `before`, if its `epoch` is still the present one."""
        raise self.refusal("a corrected reward")

    def forget(self, server_class: str) -> None:
        """Forget what was learnt of a server class."""
        raise self.refusal("a server class that is marked as new")

    @abstractmethod
    def set_roster(self, roster: Roster, waiting: list[tuple[Job, Entry]]) -> None:
        """Change the classes; `waiting` are all jobs that wait, in order."""

    @abstractmethod
    def check_roster(self, roster: Roster) -> None:
        """Raise unless `set_roster` accepts these classes."""

    @property
    @abstractmethod
    def settings(self) -> PolicySettings | LookAheadSettings | None:
        """Settings that can change while it runs."""

    @abstractmethod
    def update(self, changes: dict[str, Any]) -> None:
        """Change settings; those that are None stay."""

    @property
    @abstractmethod
    def V(self) -> float:
        """Weight of rewards against waiting; NaN without one."""

    @abstractmethod
    def beliefs(self) -> tuple[Array, Array] | None:
        """Return the mean reward of each pair of classes (I, J) on the scale of [-1, 1], and its standard error."""

    @abstractmethod
    def health(self, unit: float) -> Health | None:
        """Return how much was learnt; `unit` is a reward of one in the caller's units."""

    def waits(self) -> Waits | None:
        """Return how waits compare with their target; None without a target."""
        return None

    def explain(self, job: Job, entry: Entry, out: Array, now: float) -> Decision:
        """Return what a decision about a waiting job would rest on now."""
        raise self.refusal("explain")

    def sound(self) -> bool:
        """Tell whether the numbers behind its decisions are finite; quick, for every slot."""
        return bool(np.isfinite(self.expected).all())

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return everything that was learnt, and what was observed since, as plain values."""

    @abstractmethod
    def load(self, state: dict[str, Any], now: float) -> None:
        """Take what `state` returned, after checks; `now` is the time at which it did."""

    def mean_duration(self) -> float:
        """Return the mean duration of a service in slots."""
        return 1.0

    def refusal(self, what: str) -> Exception:
        """Return the error for something that only the default scheduler does."""
        from bilinq.errors import BadInput

        return BadInput(f"{what} needs a scheduler without `policy`; got {self!r}")


def counts(shape: tuple[int, int], pairs: list[tuple[int, int]]) -> Array:
    """Return how often each pair of row and column appears (rows, J)."""
    found = np.zeros(shape)
    for pair in pairs:
        found[pair] += 1.0
    return found
