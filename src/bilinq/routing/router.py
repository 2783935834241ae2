"""What a router is, what it sees of the fleet and of a job, and routers that decide on arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BadInput
from bilinq.routing.workload import Workload


@dataclass(slots=True, eq=False)
class WaitingJob:
    """What a router sees of a job.

    Attributes
    ----------
    number : int
        Its place in the workload.
    arrival : float
    job_class : int
        The number of its class.
    features : (d,) array or None
    eligible : tuple of int
        The columns that may serve it.
    deadline : float
        When it leaves if it has not started; infinity for none.
    """

    number: int
    arrival: float
    job_class: int
    features: Array | None
    eligible: tuple[int, ...]
    deadline: float


class FleetView:
    """What a router sees of a workload before it starts: names, numbers, features and ranges, no rewards.

    Attributes
    ----------
    server_classes, job_classes : tuples of names
    servers : list of int
        Servers of each class, by column.
    server_features : (J, e) array or None
    class_features : (I, d) array or None
        Mean features of the jobs of each class.
    reward_range : (low, high)
    mean_duration : float
        Mean duration of a service.
    class_eligible : (I, J) bool array or None
        Server classes that may serve the jobs of each class; None if jobs of the same class differ.
    """

    def __init__(self, workload: Workload, *, durations: bool = False, rewards: bool = False) -> None:
        self._workload, self._durations, self._rewards = workload, durations, rewards
        self.server_classes, self.job_classes = workload.server_classes, workload.job_classes
        self.servers: list[int] = workload.capacity.tolist()
        self.server_features = workload.server_features
        self.class_features = None if workload.features is None else _class_means(workload, workload.features)
        self.reward_range, self.mean_duration = workload.reward_range, workload.mean_duration
        allowed = np.nan_to_num(_class_means(workload, workload.eligible.astype(np.float64)), nan=1.0)
        self.class_eligible = None if ((allowed > 0.0) & (allowed < 1.0)).any() else allowed > 0.0

    @property
    def durations(self) -> Array:
        """Mean duration of each job class on each server class (I, J), for routers with `sees_durations`."""
        if not self._durations:
            raise BadInput("durations are for routers that declare sees_durations = True")
        means = _class_means(self._workload, self._workload.duration)
        return np.where(np.isnan(means), self.mean_duration, means)

    @property
    def workload(self) -> Workload:
        """The workload with all rewards, for routers with `sees_rewards`: yardsticks that cheat on purpose."""
        if not self._rewards:
            raise BadInput("workload is for routers that declare sees_rewards = True")
        return self._workload


class Router(ABC):
    """Decides which waiting job starts on which idle server, and learns from rewards.

    Write `decide` and `learn`; the other methods have defaults. Routers are dataclasses: settings are fields, and `start`
    creates the state. `replay` works on a copy, so a router can be used again.
    """

    number: ClassVar[str | None] = None
    """The field that trades reward for waiting, if there is one."""

    interval: float | None = None
    """None: decide at every moment at which something happened. A number: only at its multiples, as in slots."""

    sees_durations: bool = False
    """Whether the router knows the mean duration of each pair of classes."""

    sees_rewards: bool = False
    """Whether the router knows all rewards in advance: for yardsticks."""

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        """Prepare for a run; default: keep both as `self.fleet` and `self.rng`."""
        self.fleet, self.rng = fleet, rng

    def arrive(self, job: WaitingJob) -> None:  # noqa: B027, most routers look at `waiting`
        """Note that a job has arrived."""

    @abstractmethod
    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        """Return pairs of a job's number and a column, to start now.

        Parameters
        ----------
        now : float
        waiting : mapping from number to WaitingJob
            All jobs that wait, oldest first; those that wait again are ahead of them. Do not change it.
        idle : list of int
            Idle servers by column; a copy that may be changed.
        """

    @abstractmethod
    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        """Learn the reward of a service, which may come late; it is not called for a reward that is missing."""

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:  # noqa: B027
        """Note that a service has ended, whether or not it failed."""

    def fail(self, job: WaitingJob, server: int) -> None:  # noqa: B027
        """Note that the service that has just ended failed."""

    def again(self, job: WaitingJob) -> None:
        """Note that a job waits again, after a failure or with units left; default: as if it had arrived."""
        self.arrive(job)

    def leave(self, job: WaitingJob) -> None:  # noqa: B027
        """Note that a job has left: it is complete, its deadline has passed, or it has failed too often."""

    def wake(self, now: float) -> float:
        """Return when to decide again even if nothing happens until then; default: infinity, not before an event."""
        return inf

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        """Return values of `number` for the shortest and the longest waits that are of interest; both positive."""
        raise BadInput(f"{type(self).__name__} has no number to tune")


class Dispatcher(Router):
    """A router that sends each job to a server class when it arrives; there jobs are served first come, first served.

    `queues` has the jobs by column in order, and `queued` how many of them wait.
    """

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.queues: list[deque[int]] = [deque() for _ in fleet.servers]
        self.queued = [0] * len(fleet.servers)
        self._at: dict[int, int] = {}

    @abstractmethod
    def choose(self, job: WaitingJob) -> int:
        """Return the column, one of `job.eligible`, in whose queue the job waits."""

    def arrive(self, job: WaitingJob) -> None:
        column = self.choose(job)
        self.queues[column].append(job.number)
        self._place(job.number, column)

    def again(self, job: WaitingJob) -> None:
        column = self.choose(job)
        self.queues[column].appendleft(job.number)
        self._place(job.number, column)

    def _place(self, number: int, column: int) -> None:
        self.queued[column] += 1
        self._at[number] = column

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        pairs = []
        for column, queue in enumerate(self.queues):
            free = idle[column]
            while free > 0 and queue:
                number = queue.popleft()
                if number in self._at:  # else its deadline has passed
                    del self._at[number]
                    self.queued[column] -= 1
                    free -= 1
                    pairs.append((number, column))
        return pairs

    def leave(self, job: WaitingJob) -> None:
        column = self._at.pop(job.number, None)
        if column is not None:
            self.queued[column] -= 1


def _class_means(workload: Workload, values: Array) -> Array:
    """Return the mean of `values` (N, k) over the jobs of each class (I, k); NaN for a class without jobs."""
    I = len(workload.job_classes)
    number = np.bincount(workload.job_class, minlength=I)[:, None]
    total = np.stack([np.bincount(workload.job_class, column, I) for column in values.T], axis=1)
    return np.asarray(np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0))
