"""From the tables of a trace to its digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from os import PathLike

import numpy as np

from bilinq.arrays import Array, IntArray, count, one_of, positive, scalar
from bilinq.errors import BadInput
from bilinq.traces import passes
from bilinq.traces.classes import job_classes, machine_classes
from bilinq.traces.digest import Digest, Progress, Units
from bilinq.traces.figures import CollectionPoint, JobClass, LeftOut, MachineClass, Pair
from bilinq.traces.folder import find
from bilinq.traces.moments import Moments
from bilinq.traces.passes import Labels, Queued, Requests
from bilinq.traces.rows import CELLS, Rows, rows

MICROSECONDS = 1_000_000
LATEST = 2**63 // MICROSECONDS - 1
"""Second after which the trace has no times."""


class Tables:
    """The tables of a folder, to be read once each; counts what is left out on the way."""

    def __init__(self, path: str | PathLike[str], cell: str | None, progress: Progress | None) -> None:
        self._folder, self._cell, self._progress = find(path), cell, progress
        self._done = 0
        self.left_out: Counter[str] = Counter({"files that belong to no table": self._folder.others})

    def rows(self, table: str) -> Iterator[Rows]:
        """Yield the rows of a table."""
        cells: set[int] = set()
        for file in self._folder.files[table]:
            yield from rows(file, table, self.left_out, self._cell, cells)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._folder.count)


def aggregate(
    path: str | PathLike[str],
    *,
    until: float,
    classes: int,
    units: Units,
    seed: int,
    cell: str | None,
    source: str,
    licence: str,
    progress: Progress | None,
) -> Digest:
    """Return the digest of the trace in a folder; see `Digest.of`."""
    _check(classes, units, seed, cell)
    end = int(min(scalar("until", until, positive), LATEST) * MICROSECONDS)
    tables = Tables(path, cell, progress)
    machines = passes.machines(tables.rows("machine_events"), tables.left_out)
    if not machines.ids.size:
        raise BadInput(f"{path}: machine_events must add a machine with a capacity at time 0; got none")
    queued = passes.queued(tables.rows("collection_events"), end, tables.left_out)
    if not queued.ids.size:
        raise BadInput(f"until must be late enough for a collection to be queued in {path}; got {until:g}")
    requests = passes.requests(tables.rows("instance_events"), queued.ids, end, units == "instances")
    queued, requests = _with_instances(queued, requests, tables.left_out)
    kinds, machine_class = machine_classes(machines.capacity)
    job_class = job_classes(requests.mean, requests.units.astype(np.float64), classes, seed)
    jobs, servers = Labels(queued.ids, job_class), Labels(machines.ids, machine_class)
    grid = passes.rewards(tables.rows("instance_usage"), jobs, servers, (classes, len(kinds)), end)
    return Digest(
        source=source if cell is None else f"{source}, cell {cell}",
        licence=licence,
        until=float(until),
        units=units,
        seed=seed,
        machine_classes=_machine_classes(kinds, machine_class),
        job_classes=_job_classes(job_class, requests),
        collections=_points(queued, requests, job_class),
        pairs=_pairs(grid, len(kinds)),
        left_out=tuple(LeftOut(what, number) for what, number in tables.left_out.items() if number),
    )


def _check(classes: int, units: str, seed: int, cell: str | None) -> None:
    count("classes", classes)
    one_of("units", units, ("rows", "instances"))
    count("seed", seed, least=0)
    if cell is not None:
        one_of("cell", cell, tuple(CELLS))


def _with_instances(queued: Queued, requests: Requests, left_out: Counter[str]) -> tuple[Queued, Requests]:
    """Return the collections of which there are instances."""
    kept = requests.units > 0
    left_out["queued collections without instances"] += int(kept.size - np.count_nonzero(kept))
    if not kept.any():
        raise BadInput(f"instance_events must have instances of queued collections; got none of {kept.size}")
    return Queued(queued.ids[kept], queued.time[kept]), Requests(requests.units[kept], requests.mean[kept])


def _machine_classes(kinds: Array, label: IntArray) -> tuple[MachineClass, ...]:
    number = np.bincount(label).tolist()
    return tuple(MachineClass(cpus, memory, n) for (cpus, memory), n in zip(kinds.tolist(), number, strict=True))


def _job_classes(label: IntArray, requests: Requests) -> tuple[JobClass, ...]:
    """Return the classes, their requests averaged over units, not over collections."""
    units = np.bincount(label, requests.units)
    means = np.column_stack([np.bincount(label, requests.units * column) / units for column in requests.mean.T])
    rows = zip(means.tolist(), np.bincount(label).tolist(), units.astype(np.int64).tolist(), strict=True)
    return tuple(JobClass(cpus, memory, number, total) for (cpus, memory), number, total in rows)


def _points(queued: Queued, requests: Requests, label: IntArray) -> tuple[CollectionPoint, ...]:
    """Return the collections in order of arrival."""
    order = np.lexsort((queued.ids, queued.time))
    seconds, units, means = queued.time // MICROSECONDS, requests.units, requests.mean
    return tuple(
        CollectionPoint(int(seconds[k]), int(label[k]), int(units[k]), float(means[k, 0]), float(means[k, 1]))
        for k in order
    )


def _pairs(grid: Moments, width: int) -> tuple[Pair, ...]:
    variance = grid.variance
    return tuple(
        Pair(
            job_class=int(k) // width,
            machine_class=int(k) % width,
            count=int(grid.count[k]),
            mean=float(grid.mean[k]),
            variance=float(variance[k]) if grid.count[k] > 1 else None,
        )
        for k in np.flatnonzero(grid.count)
    )
