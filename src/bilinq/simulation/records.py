"""The record of a simulation: arrays, and summary statistics of them."""

import json
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.array_files import load_arrays, save_arrays
from bilinq.arrays import Array, IntArray, non_negative, shaped
from bilinq.display import data_frame, html_table, new_axes
from bilinq.errors import BadInput

KIND = "runs"
ARRAYS = ("queue", "reward", "observed", "services", "oracle", "holding_costs", "allocation")


@dataclass(frozen=True, slots=True, repr=False)
class Interval:
    """A mean over replications with its 95 % interval (Student's t); both ends are NaN for one replication."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        half = self.high - self.mean
        return f"{self.mean:.4g}" if np.isnan(half) else f"{self.mean:.4g} ± {half:.2g}"

    def __repr__(self) -> str:
        return f"Interval(mean={self.mean:.6g}, low={self.low:.6g}, high={self.high:.6g})"

    def _repr_html_(self) -> str:
        return escape(str(self))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Jobs:
    """The jobs that left, all replications together.

    Attributes
    ----------
    replication, job_class, arrived, first_served, left : (M,) int arrays
        Slots count from 1; a job may be served in the slot of its arrival.
    """

    replication: IntArray
    job_class: IntArray
    arrived: IntArray
    first_served: IntArray
    left: IntArray

    @property
    def wait(self) -> IntArray:
        """Slots between arrival and first service (M,); zero if served in the slot of arrival."""
        return self.first_served - self.arrived

    @property
    def sojourn(self) -> IntArray:
        """Slots that the job was in the system (M,), including those of arrival and departure."""
        return self.left - self.arrived + 1

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each job; needs pandas."""
        names = (*(field.name for field in fields(self)), "wait", "sojourn")
        return data_frame({name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return f"Jobs({self.left.size:,} jobs)"


@dataclass(frozen=True, eq=False, repr=False)
class Runs:
    """The record that `simulate` returns. Replications are the first axis.

    Attributes
    ----------
    queue : (R, T, I) int array
        Jobs in the system, after arrivals and before service.
    reward : (R, T) array
        Expected reward of the slot, sum_ij r_ij y_ij.
    observed : (R, T) array
        Reward that was observed.
    services : (R, T) int array
        Services that earned it.
    oracle : (R,) array
        r*, the best reward per slot, Eq. (2), at the rates of the arrivals and the mean capacity of the run. NaN if the load
        exceeds capacity or the rates are not known; `settings["oracle"]` has the reason.
    jobs : Jobs or None
        The jobs that left.
    allocation : (R, T, I, J) array or None
        Expected allocations, if they were recorded.
    settings : dict
        Policy, seed, versions and everything else that is needed to repeat the run.
    complete : bool
        False if the run was interrupted; the arrays then end with the last full slot.
    """

    queue: NDArray[np.int32]
    reward: Array
    observed: Array
    services: NDArray[np.int32]
    oracle: Array
    holding_costs: Array
    jobs: Jobs | None
    allocation: NDArray[np.float32] | None
    settings: dict[str, Any]
    seconds: float
    complete: bool

    @property
    def slots(self) -> int:
        """Number of slots simulated, T."""
        return int(self.reward.shape[1])

    @property
    def replications(self) -> int:
        """Number of replications, R."""
        return int(self.reward.shape[0])

    @cached_property
    def regret(self) -> Array:
        """Cumulative regret (R, T), Eq. (3)."""
        return np.asarray(np.cumsum(self.oracle[:, None] - self.reward, axis=1))

    def holding_cost(self, cost: ArrayLike | None = None) -> Array:
        """Return sum_i c_i Q_i of every slot (R, T), Eq. (4); `cost` defaults to the problem's."""
        given = self.holding_costs if cost is None else non_negative("cost", cost)
        c = shaped("cost", given, (self.replications, self.queue.shape[2]))
        return np.asarray(np.einsum("rti,ri->rt", self.queue, c))

    def summary(self) -> dict[str, Interval]:
        """Return means with 95 % intervals: final regret, time averages of queue, cost and reward, waiting times."""
        parts = {
            "regret": self.regret[:, -1],
            "queue": self.queue.sum(axis=2).mean(axis=1),
            "holding_cost": self.holding_cost().mean(axis=1),
            "reward": self.reward.mean(axis=1),
            "observed": self.observed.mean(axis=1),
        }
        if self.jobs is not None:
            parts |= self._times("wait", self.jobs.wait) | self._times("sojourn", self.jobs.sojourn)
        return {name: interval(values) for name, values in parts.items()}

    @property
    def _policy(self) -> str:
        """The name of the policy, without its settings."""
        return str(self.settings["policy"]).partition("(")[0]

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each slot of each replication; `jobs.to_pandas()` has the jobs."""
        R, T = self.reward.shape
        wide = {"queue": self.queue.sum(axis=2), "reward": self.reward, "observed": self.observed,
                "services": self.services, "regret": self.regret}  # fmt: skip
        places = {"replication": np.repeat(np.arange(R), T), "slot": np.tile(np.arange(1, T + 1), R)}
        return data_frame(places | {name: array.ravel() for name, array in wide.items()})

    def plot(self, axes: Any = None) -> Any:
        """Draw jobs in the system and the mean reward so far, over time; return both Matplotlib axes.

        Lines are means over replications; the shaded range has all of them.
        """
        top, bottom = new_axes(2, height=5.0) if axes is None else axes
        slot = np.arange(1, self.slots + 1)
        paths = self.queue.sum(axis=2), np.cumsum(self.reward, axis=1) / slot
        for ax, path, name in zip((top, bottom), paths, ("jobs in the system", "mean reward per slot"), strict=True):
            ax.plot(slot, path.mean(axis=0))
            ax.fill_between(slot, path.min(axis=0), path.max(axis=0), alpha=0.2, linewidth=0)
            ax.set(ylabel=name)
        if not np.isnan(self.oracle).all():
            bottom.axhline(np.nanmean(self.oracle), color="black", linestyle="--", label="best possible")
            bottom.legend()
        top.set(title=self._policy)
        bottom.set(xlabel="slot")
        return top, bottom

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to one `.npz` file."""
        plain = {"settings": self.settings, "seconds": self.seconds, "complete": self.complete}
        jobs = {} if self.jobs is None else {f"jobs {one.name}": getattr(self.jobs, one.name) for one in fields(Jobs)}
        arrays = {name: getattr(self, name) for name in ARRAYS} | jobs
        save_arrays(path, KIND, arrays | {"plain": np.array(json.dumps(plain))})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the record of a file that `save` wrote."""
        arrays: dict[str, Any] = {"allocation": None, **load_arrays(path, KIND)}
        jobs = {name: arrays.pop(name) for name in list(arrays) if name.startswith("jobs ")}
        try:
            plain = json.loads(str(arrays.pop("plain")))
            return cls(
                **arrays, **plain, jobs=Jobs(*(jobs[f"jobs {one.name}"] for one in fields(Jobs))) if jobs else None
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: is not a complete record; {error}") from None

    def __repr__(self) -> str:
        about = f"{self._policy}, replications={self.replications}, slots={self.slots}"
        found = self.summary()
        return f"Runs({about}, reward={found['reward']}, queue={found['queue']})"

    def _repr_html_(self) -> str:
        facts = {"replications": f"{self.replications}", "slots": f"{self.slots:,}"}
        facts |= {name: str(found) for name, found in self.summary().items()}
        return html_table(self.settings["policy"], facts)

    def _times(self, name: str, values: IntArray) -> dict[str, Array]:
        assert self.jobs is not None
        table = np.full((4, self.replications), np.nan)
        for r in range(self.replications):
            mine = values[self.jobs.replication == r]
            if mine.size:
                table[:, r] = mine.mean(), *np.percentile(mine, (50, 95, 99))
        return {f"{name}{suffix}": row for suffix, row in zip(("", "_p50", "_p95", "_p99"), table, strict=True)}


def interval(values: Array) -> Interval:
    """Return mean and 95 % interval of values (R,), without those that are NaN."""
    values = values[~np.isnan(values)]
    if not values.size:
        return Interval(np.nan, np.nan, np.nan)
    mean = float(values.mean())
    if values.size == 1:
        return Interval(mean, np.nan, np.nan)
    from scipy.special import stdtrit

    half = float(stdtrit(values.size - 1, 0.975)) * float(values.std(ddof=1)) / float(np.sqrt(values.size))
    return Interval(mean, mean - half, mean + half)
