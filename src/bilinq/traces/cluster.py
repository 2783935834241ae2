"""The digest of a cluster trace: its classes of machines and jobs, found in its tables."""

from collections import Counter
from collections.abc import Iterator
from os import PathLike

import numpy as np

from bilinq.arrays import Array, IntArray, count, one_of, positive, scalar
from bilinq.errors import BadInput
from bilinq.traces import passes
from bilinq.traces.digest import CollectionPoint, Digest, LeftOut, MachineClass, Pair, Progress, TraceJobClass, Units
from bilinq.traces.passes import CELLS, Labels, Moments, TraceRows, rows
from bilinq.traces.shards import find_tables

RESTARTS = 100  # starts of k-means, of which the best result is kept
STEPS = 30  # steps of each start; on the shipped extract it converges after about twenty


def machine_classes(capacity: Array) -> tuple[Array, IntArray]:
    """Return the distinct capacities (J, 2) of machines (M, 2), most machines first, and the class of each machine (M,)."""
    kinds, label, number = np.unique(capacity, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((kinds[:, 1], kinds[:, 0], -number))
    return kinds[order], np.argsort(order)[label.reshape(-1)]


def job_classes(request: Array, weight: Array, classes: int, seed: int) -> IntArray:
    """Return the class of each collection (C,), by k-means on its mean request (C, 2) of CPU and memory.

    The class with the most collections comes first, the others by falling CPU request, averaged with `weight` (C,): the
    order of the paper's authors, as far as sizes show it.
    """
    k = count("classes", classes)
    distinct = len(np.unique(request, axis=0))
    if k > distinct:
        raise BadInput(f"classes must be at most {distinct}, the number of different collections; got {k}")
    label = _k_means(request, k, count("seed", seed, least=0))
    size = np.bincount(label, minlength=k)
    cpu = np.bincount(label, weight * request[:, 0], k) / np.bincount(label, weight, k)
    order = np.argsort(-cpu, kind="stable")
    largest = order[np.argmax(size[order])]
    order = np.concatenate([[largest], order[order != largest]])
    return np.argsort(order)[label]


def _k_means(points: Array, k: int, seed: int) -> IntArray:
    """Return the labels (C,) with the least sum of squared distances over many starts."""
    from scipy.cluster.vq import ClusterError, kmeans2

    rng = np.random.default_rng(seed)
    best, least = np.zeros(0, np.int64), np.inf
    for _ in range(RESTARTS):
        try:
            centre, label = kmeans2(points, k, iter=STEPS, minit="++", missing="raise", seed=rng)
        except ClusterError:  # a class ran empty
            continue
        spread = float(((points - centre[label]) ** 2).sum())
        if np.unique(label).size == k and spread < least * (1.0 - 1e-12):
            best, least = label.astype(np.int64), spread
    if not best.size:
        raise BadInput(f"classes must be fewer for these collections; k-means found no {k} of them that are not empty")
    return best


MICROSECONDS = 1_000_000
LATEST = 2**63 // MICROSECONDS - 1  # the last second of which the trace can have times


class TraceTables:
    """The tables of a folder, to be read once each; counts the rows that are left out."""

    def __init__(self, path: str | PathLike[str], cell: str | None, progress: Progress | None) -> None:
        self._files, others = find_tables(path)
        self._cell, self._progress, self._done = cell, progress, 0
        self.left_out: Counter[str] = Counter({"files that belong to no table": others})

    def rows(self, table: str) -> Iterator[TraceRows]:
        """Yield the rows of a table."""
        cells: set[int] = set()
        for file in self._files[table]:
            yield from rows(file, table, self.left_out, self._cell, cells)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, sum(map(len, self._files.values())))


def aggregate(path: str | PathLike[str], *, until: float, classes: int, units: Units, seed: int, cell: str | None,
              source: str, licence: str, progress: Progress | None) -> Digest:  # fmt: skip
    """Return the digest of the trace in a folder; see `Digest.of`."""
    _check(classes, units, seed, cell)
    end = int(min(scalar("until", until, positive), LATEST) * MICROSECONDS)
    tables = TraceTables(path, cell, progress)
    machines, capacity = passes.machines(tables.rows("machine_events"), tables.left_out)
    if not machines.size:
        raise BadInput(f"{path}: machine_events must add a machine with a capacity at time 0; got none")
    queued, times = passes.queued(tables.rows("collection_events"), end, tables.left_out)
    if not queued.size:
        raise BadInput(f"until must be late enough for a collection to be queued in {path}; got {until:g}")
    number, request = passes.requests(tables.rows("instance_events"), queued, end, units == "instances")
    kept = number > 0
    tables.left_out["queued collections without instances"] += int(kept.size - np.count_nonzero(kept))
    if not kept.any():
        raise BadInput(f"instance_events must have instances of queued collections; got none of {kept.size}")
    queued, times, number, request = queued[kept], times[kept], number[kept], request[kept]
    kinds, machine_class = machine_classes(capacity)
    job_class = job_classes(request, number.astype(np.float64), classes, seed)
    jobs, servers = Labels(queued, job_class), Labels(machines, machine_class)
    grid = passes.rewards(tables.rows("instance_usage"), jobs, servers, (classes, len(kinds)), end)
    return Digest(
        source=source if cell is None else f"{source}, cell {cell}", licence=licence, until=float(until), units=units,
        seed=seed, machine_classes=tuple(map(MachineClass, *kinds.T.tolist(), np.bincount(machine_class).tolist())),
        job_classes=_job_classes(job_class, number, request),
        collections=_points(queued, times, job_class, number, request), pairs=_pairs(grid, len(kinds)),
        left_out=tuple(LeftOut(what, n) for what, n in tables.left_out.items() if n),
    )  # fmt: skip


def _check(classes: int, units: str, seed: int, cell: str | None) -> None:
    count("classes", classes)
    one_of("units", units, ("rows", "instances"))
    count("seed", seed, least=0)
    if cell is not None:
        one_of("cell", cell, tuple(CELLS))


def _job_classes(label: IntArray, number: IntArray, request: Array) -> tuple[TraceJobClass, ...]:
    """Return the classes, their requests averaged over units, not over collections."""
    units = np.bincount(label, number)
    means = [(np.bincount(label, number * column) / units).tolist() for column in request.T]
    return tuple(map(TraceJobClass, *means, np.bincount(label).tolist(), units.astype(np.int64).tolist()))


def _points(ids: IntArray, times: IntArray, label: IntArray, number: IntArray,
            request: Array) -> tuple[CollectionPoint, ...]:  # fmt: skip
    """Return the collections in order of arrival."""
    columns, order = (times // MICROSECONDS, label, number, *request.T), np.lexsort((ids, times))
    return tuple(map(CollectionPoint, *(column[order].tolist() for column in columns)))


def _pairs(grid: Moments, width: int) -> tuple[Pair, ...]:
    figures = enumerate(zip(grid.count.tolist(), grid.mean.tolist(), grid.variance.tolist(), strict=True))
    return tuple(Pair(*divmod(k, width), n, mean, var if n > 1 else None) for k, (n, mean, var) in figures if n)
