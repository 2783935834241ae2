"""The record of a replay: arrays by job, samples over time, and summaries of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.array_files import load_arrays, save_arrays
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.display import data_frame, html_table, new_axes
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND = "replay"
ARRAYS = ("arrival", "job_class", "server", "start", "end", "reward", "earned", "attempts", "expired", "times", "queue",
          "busy", "worked")  # fmt: skip
PLAIN = ("decisions", "thinking", "seconds", "seed", "router", "servers", "job_classes")
TITLE = 70  # characters of a line in the title of a plot
BLOCKS = 10  # blocks of samples by whose means the growth of the queue is measured


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Replay:
    """The record that `replay` returns; N jobs, J server classes, S samples in time.

    Attributes
    ----------
    arrival : (N,) array
    job_class : (N,) int array
    server : (N,) int array
        The column of the last service; -1 if there was none.
    start, end : (N,) arrays
        Times of the last service, failed or not; NaN if there was none.
    reward : (N,) array
        Rewards that the router got, summed over units; NaN if missing or if the job was not completed.
    earned : (N,) array
        Rewards of jobs whether or not the router got them; NaN if the job was not completed.
    attempts : (N,) int array
        Services that were started.
    expired : (N,) bool array
        Whether the job left at its deadline.
    times, queue, busy : (S,), (S,) and (S, J) arrays
        Jobs that wait and servers that work at equidistant times between the first and the last arrival.
    worked : (J,) array
        Time that servers of each class worked, all together.
    decisions, thinking : int and float
        Calls of the router's `decide`, and the seconds that these and `arrive` took.
    seconds : float
        Seconds of the whole run.
    """

    arrival: Array
    job_class: IntArray
    server: IntArray
    start: Array
    end: Array
    reward: Array
    earned: Array
    attempts: IntArray
    expired: BoolArray
    times: Array
    queue: IntArray
    busy: IntArray
    worked: Array
    decisions: int
    thinking: float
    seconds: float
    seed: int
    router: str
    servers: Mapping[str, int]
    job_classes: tuple[str, ...]

    @property
    def wait(self) -> Array:
        """Start of the last service minus arrival (N,); NaN if the job never started."""
        return self.start - self.arrival

    @property
    def sojourn(self) -> Array:
        """End of the last service minus arrival (N,); NaN if the job never started."""
        return self.end - self.arrival

    @property
    def complete(self) -> BoolArray:
        """Whether the job was served to its end (N,)."""
        return ~np.isnan(self.earned)

    @property
    def utilisation(self) -> dict[str, float]:
        """Part of the time between the first arrival and the last end that the servers of each class worked."""
        ends = self.end[~np.isnan(self.end)]
        span = float(ends.max() - self.arrival[0]) if ends.size else np.nan
        share = self.worked / (np.array(list(self.servers.values())) * span)
        return dict(zip(self.servers, share.tolist(), strict=True))

    @property
    def growth(self) -> tuple[float, float]:
        """Slope of the queue, in jobs per unit of time, with its standard error, from the means of ten blocks."""
        size = self.times.size // BLOCKS
        if size < 1:
            return np.nan, np.nan
        t, q = (part[: size * BLOCKS].reshape(BLOCKS, size).mean(axis=1) for part in (self.times, self.queue))
        centred = t - t.mean()
        slope = centred @ q / (centred @ centred)
        rest = q - q.mean() - slope * centred
        return float(slope), float(np.sqrt(rest @ rest / (BLOCKS - 2) / (centred @ centred)))

    def summary(self) -> dict[str, Any]:
        """Return the main numbers: rewards, waits and sojourns of started jobs, utilisation, and each class by name.

        "reward" is earned per job of the workload; a job that was not completed counts as zero.
        """
        total, (slope, error) = float(np.nansum(self.earned)), self.growth
        decided = max(self.decisions, 1)
        return {
            "jobs": self.arrival.size, "complete": int(self.complete.sum()), "expired": int(self.expired.sum()),
            "reward": total / self.arrival.size, "total reward": total, **_times("wait", self.wait),
            **_times("sojourn", self.sojourn), "utilisation": self.utilisation, "classes": self._by_class(),
            "growth": slope, "growth error": error, "seconds per decision": self.thinking / decided,
            "jobs per second": self.arrival.size / max(self.seconds, 1e-9),
        }  # fmt: skip

    def _by_class(self) -> dict[str, dict[str, float]]:
        found = {}
        for i, name in enumerate(self.job_classes):
            mine = self.job_class == i
            jobs, waits = int(mine.sum()), self.wait[mine]
            reward = float(np.nansum(self.earned[mine])) / jobs if jobs else np.nan
            found[name] = {"jobs": jobs, "reward": reward, "wait": _times("wait", waits)["wait"]}
        return found

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each job; needs pandas."""
        names = np.array([*self.servers, "none"], dtype=object)
        columns = {"arrival": self.arrival, "job_class": np.array(self.job_classes, dtype=object)[self.job_class],
                   "server": names[self.server]}  # fmt: skip
        rest = ("start", "end", "wait", "reward", "earned", "attempts", "expired")
        return data_frame(columns | {name: getattr(self, name) for name in rest})

    def plot(self, ax: Any = None) -> Any:
        """Draw waiting jobs and busy servers over time; return the Matplotlib axes."""
        ax = new_axes() if ax is None else ax
        ax.plot(self.times, self.queue, color="black", label="waiting jobs")
        for j, name in enumerate(self.servers):
            ax.plot(self.times, self.busy[:, j], alpha=0.7, label=f"busy: {name}")
        ax.set(xlabel="time", ylabel="number", title=fill(self.router, TITLE))
        ax.legend()
        return ax

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to one `.npz` file."""
        plain = {name: getattr(self, name) for name in PLAIN} | {"servers": dict(self.servers)}
        save_arrays(path, KIND, {name: getattr(self, name) for name in ARRAYS} | {"plain": np.array(json.dumps(plain))})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Replay:
        """Return the record of a file that `save` wrote."""
        arrays: dict[str, Any] = dict(load_arrays(path, KIND))
        try:
            plain = json.loads(str(arrays.pop("plain")))
            return cls(**arrays, **(plain | {"job_classes": tuple(plain["job_classes"])}))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: is not a complete replay; {error}") from None

    def _facts(self) -> dict[str, str]:
        found = self.summary()
        names = ("jobs", "complete", "expired", "reward", "wait", "wait_p95", "sojourn", "growth")
        return {name: f"{found[name]:.4g}" for name in names}

    def __repr__(self) -> str:
        found = self._facts()
        return f"Replay({self.router}, jobs={found['jobs']}, reward={found['reward']}, wait={found['wait']})"

    def _repr_html_(self) -> str:
        return html_table(self.router, self._facts())


def _times(name: str, values: Array) -> dict[str, float]:
    """Return mean and percentiles of times, without those that are NaN."""
    known = values[~np.isnan(values)]
    found = [known.mean(), *np.percentile(known, (50, 95, 99))] if known.size else [np.nan] * 4
    return {f"{name}{end}": float(value) for end, value in zip(("", "_p50", "_p95", "_p99"), found, strict=True)}
