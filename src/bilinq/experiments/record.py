"""Records: what is kept of a run, numbers of each replication and thinned paths over time, in one file per run."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.arrays import Array, IntArray
    from bilinq.simulation import Runs

POINTS = 250  # slots that a path keeps at most, the first and the last among them

Kept = Literal["samples", "paths", "class paths"]
"""What a record contains: samples only, also paths over time, also the queue of every job class over time."""
Path32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Band:
    """A mean over replications at some slots, with its 95 % band; all (P,) arrays."""

    slot: IntArray
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Record:
    """The results of a run, replications first; rows of two records of one setting and seed are pairs.

    Attributes
    ----------
    slot : (P,) int array
        The slots, from 1, at which paths are kept.
    samples : dict of (R,) arrays
        `regret` at the end; `reward` and `observed`, sums over slots; `queue`, `holding_cost` and `wait`, averages. Also
        `queue_of_class` (R, I).
    paths : dict of (R, P) arrays
        Empty if the run keeps samples only. `regret` and `reward`, both cumulative; `queue` and `holding_cost` of the
        slot. If the run keeps class paths, also `queue_of_class` (R, P, I).
    seconds : float
        Computing time, summed over processes.
    """

    slot: IntArray
    samples: dict[str, Array]
    paths: dict[str, Path32]
    seconds: float

    @property
    def replications(self) -> int:
        """Number of replications, R."""
        return len(self.samples["regret"])

    def band(self, name: str, job_class: int | None = None) -> Band:
        """Return the mean path called `name` with its band; of one class, counted from 0, where it has classes."""
        path = self.paths[name] if job_class is None else self.paths[name][:, :, job_class]
        kept = path[~np.isnan(path).any(axis=1)].astype(np.float64)
        mean = np.asarray(kept.mean(axis=0))
        if len(kept) < 2:
            return Band(self.slot, mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
        half = stdtrit(len(kept) - 1, 0.975) * kept.std(axis=0, ddof=1) / np.sqrt(len(kept))
        return Band(self.slot, mean, mean - half, mean + half)


def measure(runs: Runs, keep: Kept, seconds: float) -> Record:
    """Return the record of a simulation."""
    kept = np.unique(np.linspace(1, runs.slots, min(POINTS, runs.slots)).round().astype(np.int64))
    queue, cost = runs.queue.sum(axis=2), runs.holding_cost()
    samples = {
        "regret": runs.regret[:, -1], "reward": runs.reward.sum(axis=1), "observed": runs.observed.sum(axis=1),
        "queue": queue.mean(axis=1), "holding_cost": cost.mean(axis=1), "wait": _mean_wait(runs),
        "queue_of_class": runs.queue.mean(axis=1),
    }  # fmt: skip
    paths: dict[str, NDArray[np.float64 | np.int32]] = {}
    if keep != "samples":
        paths |= {"regret": runs.regret, "reward": np.cumsum(runs.reward, axis=1), "queue": queue, "holding_cost": cost}
    if keep == "class paths":
        paths["queue_of_class"] = runs.queue
    thinned = {name: path[:, kept - 1].astype(np.float32) for name, path in paths.items()}
    return Record(kept, {name: np.asarray(values) for name, values in samples.items()}, thinned, seconds)


def _mean_wait(runs: Runs) -> Array:
    """Return the mean wait (R,) of jobs that left; NaN where none did."""
    assert runs.jobs is not None
    number = np.bincount(runs.jobs.replication, minlength=runs.replications)
    total = np.bincount(runs.jobs.replication, weights=runs.jobs.wait, minlength=runs.replications)
    mean: Array = np.divide(total, number, out=np.full(runs.replications, np.nan), where=number > 0)
    return mean


def joined(parts: Sequence[Record]) -> Record:
    """Return one record of the replications of all parts, in their order."""
    first = parts[0]
    samples = {name: np.concatenate([part.samples[name] for part in parts]) for name in first.samples}
    paths = {name: np.concatenate([part.paths[name] for part in parts]) for name in first.paths}
    return Record(first.slot, samples, paths, sum(part.seconds for part in parts))


def save(record: Record, path: Path) -> None:
    """Write the record; the file appears complete or not at all."""
    arrays = {"slot": record.slot, "seconds": np.array(record.seconds)}
    arrays |= {f"sample {name}": values for name, values in record.samples.items()}
    arrays |= {f"path {name}": values for name, values in record.paths.items()}
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        part.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written; {error.strerror}") from None


def exists(path: Path) -> bool:
    """Return whether there is a complete record at `path`; a truncated file has lost its list of contents."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return "seconds" in stored.files
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError):
        return False  # never finished, or not a record


def load(path: Path) -> Record:
    """Return the record at `path`."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    samples = {name.removeprefix("sample "): arrays[name] for name in arrays if name.startswith("sample ")}
    paths = {name.removeprefix("path "): arrays[name] for name in arrays if name.startswith("path ")}
    return Record(arrays["slot"], samples, paths, float(arrays["seconds"]))
