"""Finished cells on disk: one JSON file each, written whole or not at all."""

import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BadInput
from bilinq.experiments.plan import Cell
from bilinq.jsonable import to_json
from bilinq.simulation.records import Interval, Runs, interval


@dataclass(frozen=True, eq=False)
class Result:
    """What a cell gave.

    Attributes
    ----------
    cell : Cell
    samples : dict of (replications,) arrays
        Final regret, and time averages of queue, holding cost, reward and wait, of each replication.
    seconds : float
        Computing time, summed over the processes that shared it.
    found : bool
        Whether it was read from an earlier run.
    """

    cell: Cell
    samples: dict[str, Array]
    seconds: float
    found: bool

    def summary(self) -> dict[str, Interval]:
        """Return means with 95 % intervals."""
        return {name: interval(values) for name, values in self.samples.items()}

    def document(self) -> dict[str, Any]:
        """Return what programs read, without the samples."""
        about = {"policy": self.cell.policy, "varied": self.cell.varied, "settings": self.cell.settings}
        return {"key": self.cell.key, **about, **self.summary(), "seconds": self.seconds, "found": self.found}


def measure(runs: Runs) -> dict[str, Array]:
    """Return the numbers that a sweep keeps of each replication."""
    return {
        "regret": runs.regret[:, -1],
        "queue": np.asarray(runs.queue.sum(axis=2).mean(axis=1)),
        "holding_cost": np.asarray(runs.holding_cost().mean(axis=1)),
        "reward": np.asarray(runs.reward.mean(axis=1)),
        "wait": _mean_wait(runs),
    }


def save(result: Result, folder: Path) -> Path:
    """Write the result into `folder` under its cell's key; the file appears complete or not at all."""
    document = result.document() | {"bilinq": version("bilinq"), "samples": result.samples}
    del document["found"]
    path = folder / f"{result.cell.key}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(to_json(document), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written; {error.strerror}") from None
    return path


def find(cell: Cell, folder: Path) -> Result | None:
    """Return the cell's result if `folder` has it."""
    try:
        document = json.loads((folder / f"{cell.key}.json").read_text(encoding="utf-8"))
        samples = {name: np.array(values, dtype=np.float64) for name, values in document["samples"].items()}
        return Result(cell, samples, float(document["seconds"]), found=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # never finished, or not a file of ours: run it again


def _mean_wait(runs: Runs) -> Array:
    """Return the mean wait (R,) of jobs that left; NaN where none did."""
    assert runs.jobs is not None
    number = np.bincount(runs.jobs.replication, minlength=runs.replications)
    total = np.bincount(runs.jobs.replication, weights=runs.jobs.wait, minlength=runs.replications)
    mean: Array = np.divide(total, number, out=np.full(runs.replications, np.nan), where=number > 0)
    return mean
