"""The workload: which jobs come when, what each would earn and how long it would take on each server class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.arrays import Array, BoolArray, IntArray, count, positive, scalar, short
from bilinq.display import data_frame, heat_map, html_table
from bilinq.errors import BadInput
from bilinq.routing import workload_rules as rules
from bilinq.routing.workload_rules import Outage

if TYPE_CHECKING:
    from bilinq.problem import Problem

BY_JOB = (
    "reward",
    "duration",
    "features",
    "job_class",
    "eligible",
    "reward_delay",
    "reward_missing",
    "deadline",
    "units",
)
"""The fields that belong to a job, not to its time of arrival."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Workload:
    """N jobs in order of arrival, J server classes, and what every pair would earn; checked and read-only.

    Times are in a unit of the user's choice, rewards in another.

    Parameters
    ----------
    arrival : (N,) array
        Times of arrival, never decreasing.
    reward : (N, J) array
        What a service earns; NaN where the server class may not serve the job.
    duration : float, (J,) or (N, J) array
        How long a service takes, positive.
    servers : mapping from name to number
        Servers of each class, in the order of columns.
    features : (N, d) array, optional
        What routers know about each job.
    job_class : (N,) sequence of names or of whole numbers, optional
        Default: one class, "job".
    job_classes : sequence of names, optional
        All classes in order, of which `job_class` has names or numbers; default: those that occur, sorted.
    server_features : (J, e) array, optional
    eligible : (N, J) bool array, optional
        Which server classes may serve which job; a NaN in `reward` says the same. Every job needs one.
    reward_delay : float or (N,) array
        Time between the end of a service and its reward.
    reward_missing : float or (N,) bool array
        Chance that the router never gets the reward of a job, or of which jobs it does not get it.
    deadline : float or (N,) array, optional
        How long a job waits for its first start, from its arrival on; then it leaves. It may still start at this moment.
    units : int or (N,) array
        How many services a job needs, each with its duration and reward; in between it waits again, ahead of others.
    failure : float or (J,) array
        Chance that a service fails: it takes its time, earns nothing, and the job waits again, ahead of others.
    max_attempts : int
        A job that fails this often leaves.
    outages : sequence of Outage
    reward_range : (low, high), optional
        Bounds of all rewards that routers may know; default: the smallest and the largest.

    Examples
    --------
    >>> work = Workload(arrival=[0.0, 1.0], reward=[[1.0, 0.2], [0.4, 0.9]], duration=2.0, servers={"a100": 1, "t4": 2})
    >>> work
    Workload(jobs=2, servers={'a100': 1, 't4': 2}, classes=1, load=0.667)
    """

    arrival: Array
    reward: Array
    duration: Array
    servers: Mapping[str, int]
    features: Array | None
    job_class: IntArray
    job_classes: tuple[str, ...]
    server_features: Array | None
    eligible: BoolArray
    reward_delay: Array
    reward_missing: Array
    deadline: Array
    units: IntArray
    failure: Array
    max_attempts: int
    outages: tuple[Outage, ...]
    reward_range: tuple[float, float]

    def __init__(
        self,
        *,
        arrival: ArrayLike,
        reward: ArrayLike,
        duration: ArrayLike,
        servers: Mapping[str, int],
        features: ArrayLike | None = None,
        job_class: Sequence[str] | Sequence[int] | NDArray[Any] | None = None,
        job_classes: Sequence[str] | None = None,
        server_features: ArrayLike | None = None,
        eligible: ArrayLike | None = None,
        reward_delay: ArrayLike = 0.0,
        reward_missing: ArrayLike = 0.0,
        deadline: ArrayLike | None = None,
        units: ArrayLike = 1,
        failure: ArrayLike = 0.0,
        max_attempts: int = 5,
        outages: Iterable[Outage] = (),
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        times, fleet = rules.times(arrival), rules.fleet(servers)
        N, J = times.size, len(fleet)
        rewards = rules.table("reward", reward, N, J)
        allowed = rules.mask(eligible, rewards)
        names, kinds = rules.classes(job_class, job_classes, N)
        values: dict[str, Any] = {
            "arrival": times, "reward": np.where(allowed, rewards, np.nan), "servers": fleet, "eligible": allowed,
            "duration": rules.durations(duration, N, J), "features": rules.features("features", features, N),
            "job_class": kinds, "job_classes": names,
            "server_features": rules.features("server_features", server_features, J),
            "reward_delay": rules.non_negatives("reward_delay", reward_delay, N),
            "reward_missing": rules.chances("reward_missing", reward_missing, N),
            "deadline": np.full(N, np.inf) if deadline is None else rules.deadlines(deadline, N),
            "units": rules.units(units, N), "failure": rules.failures(failure, J),
            "max_attempts": count("max_attempts", max_attempts), "outages": rules.outages(outages, fleet),
            "reward_range": rules.reward_range(reward_range, rewards[allowed]),
        }  # fmt: skip
        for field in fields(self):
            object.__setattr__(self, field.name, rules.locked(values[field.name]))

    @classmethod
    def from_problem(cls, problem: Problem, jobs: int, seed: int = 0, *, arrivals: str = "bernoulli") -> Workload:
        """Return jobs of the paper's world: slots, services of one slot, a geometric number of them for each job.

        Jobs arrive at whole times as in `bilinq.simulate`, with "bernoulli" or "poisson" arrivals. Noise is drawn once for
        each job and server class. Service rates must not depend on the server class.
        """
        from bilinq.routing.worlds import from_problem

        return from_problem(problem, jobs, seed, arrivals)

    @classmethod
    def from_table(cls, table: Any, *, servers: Mapping[str, int], arrival: Any, **options: Any) -> Workload:
        """Return the jobs of a table: a DataFrame, a PyArrow table, a mapping of columns, or a CSV or Parquet file.

        The table is wide, with a column of rewards for each server class, or long, with the columns "job", "server" and
        "reward". `bilinq.routing.tables.read_workload` has the options.
        """
        from bilinq.routing.tables import read_workload

        return read_workload(table, servers=servers, arrival=arrival, **options)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Workload:
        """Return the workload of a file that `save` wrote."""
        from bilinq.routing.worlds import load

        return load(path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the workload to one `.npz` file."""
        from bilinq.routing.worlds import save

        save(self, path)

    @property
    def N(self) -> int:
        """Number of jobs."""
        return self.arrival.size

    @property
    def J(self) -> int:
        """Number of server classes."""
        return len(self.servers)

    @property
    def server_classes(self) -> tuple[str, ...]:
        """Names of the server classes, in the order of columns."""
        return tuple(self.servers)

    @cached_property
    def capacity(self) -> IntArray:
        """Servers of each class (J,)."""
        return np.array(list(self.servers.values()), np.int64)

    @cached_property
    def mean_duration(self) -> float:
        """Mean duration of a service over all eligible pairs."""
        return float(self.duration[self.eligible].mean())

    @property
    def rate(self) -> float:
        """Arrivals per unit of time between the first and the last; infinite if all come at once."""
        span = float(self.arrival[-1] - self.arrival[0])
        return (self.N - 1) / span if span > 0.0 else np.inf

    @cached_property
    def load_factor(self) -> float:
        """Offered load, by the linear program of Eq. (50): the part of their time that the busiest servers must work.

        Rows are groups of jobs with the same class and eligible pairs; durations are means over a group. Failures repeat
        a service, units multiply it. Queues stay short only below one.
        """
        from bilinq.problem.bottleneck import find_bottleneck

        if not np.isfinite(self.rate):
            return np.inf
        kinds, group = np.unique(np.column_stack([self.job_class, self.eligible]), axis=0, return_inverse=True)
        n = np.bincount(group)
        m = np.stack([np.bincount(group, self.duration[:, j]) / n for j in range(self.J)], axis=1) / (
            1.0 - self.failure
        )
        rho = self.rate * np.bincount(group, self.units) / self.N
        return find_bottleneck(rho, self.capacity.astype(float), m, kinds[:, 1:] > 0).load

    def shuffled(self, seed: int) -> Workload:
        """Return the same jobs in another order at the same times of arrival."""
        order = np.random.default_rng(count("seed", seed, least=0)).permutation(self.N)
        return self._replaced(**self._jobs(order))

    def at_load(self, load: float) -> Workload:
        """Return the workload with times of arrival stretched so that its `load_factor` is `load`."""
        if not np.isfinite(self.load_factor):
            raise BadInput("at_load needs jobs that arrive at different times; all arrive at once")
        factor = self.load_factor / scalar("load", load, positive)
        return self._replaced(arrival=self.arrival[0] + (self.arrival - self.arrival[0]) * factor)

    def head(self, number: int) -> Workload:
        """Return the first `number` jobs, or all if there are fewer."""
        first = np.arange(min(count("number", number), self.N))
        return self._replaced(arrival=self.arrival[first], **self._jobs(first))

    def swapped(self, after: int, first: str | int, second: str | int) -> Workload:
        """Return the workload with two server classes exchanged from job `after` on: rewards, durations, eligibility."""
        a, b = self.column(first), self.column(second)
        start, order = count("after", after, least=0), np.arange(self.J)
        order[[a, b]] = b, a
        changed = {name: getattr(self, name).copy() for name in ("reward", "duration", "eligible")}
        for name, array in changed.items():
            array[start:] = getattr(self, name)[start:][:, order]
        return self._replaced(**changed)

    def column(self, server_class: str | int) -> int:
        """Return the column of a server class, given by name or by number."""
        names = self.server_classes
        if isinstance(server_class, str) and server_class in names:
            return names.index(server_class)
        if isinstance(server_class, int) and 0 <= server_class < self.J:
            return server_class
        raise BadInput(f"server class must be one of {short(names)} or a column; got {short(server_class)}")

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each job, which `from_table` reads back; needs pandas.

        Columns are "arrival", "class", the reward on each server class by its name, durations, and features by number.
        """
        names, features = self.server_classes, np.zeros((self.N, 0)) if self.features is None else self.features
        columns = {"arrival": self.arrival, "class": np.array(self.job_classes, dtype=object)[self.job_class]}
        columns |= dict(zip(names, self.reward.T, strict=True))
        columns |= {f"duration {name}": column for name, column in zip(names, self.duration.T, strict=True)}
        return data_frame(columns | {f"feature {k}": column for k, column in enumerate(features.T)})

    def plot(self, ax: Any = None) -> Any:
        """Draw the mean reward of each pair of classes as a heat map; return the Matplotlib axes."""
        from bilinq.routing.router import FleetView
        from bilinq.routing.scores import class_rewards

        allowed = [self.eligible[self.job_class == i].any(axis=0) for i in range(len(self.job_classes))]
        means = np.where(allowed, class_rewards(FleetView(self, rewards=True)), np.nan)
        return heat_map(means, self.job_classes, self.server_classes, "mean reward", ax)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that build an equal workload."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _jobs(self, rows: IntArray) -> dict[str, Any]:
        values = self.arguments()
        return {name: values[name][rows] for name in BY_JOB if values[name] is not None}

    def _replaced(self, **changes: Any) -> Workload:
        return Workload(**(self.arguments() | changes))

    def __repr__(self) -> str:
        load = f"{self.load_factor:.3g}"
        return f"Workload(jobs={self.N}, servers={dict(self.servers)}, classes={len(self.job_classes)}, load={load})"

    def _repr_html_(self) -> str:
        facts = {
            "jobs": f"{self.N:,}", "job classes": f"{len(self.job_classes)}", "load": f"{self.load_factor:.3g}",
            "mean duration": f"{self.mean_duration:.4g}", "rewards": "{:.4g} to {:.4g}".format(*self.reward_range),
            "servers": ", ".join(f"{n} {name}" for name, n in self.servers.items()),
        }  # fmt: skip
        return html_table("Workload", facts)
