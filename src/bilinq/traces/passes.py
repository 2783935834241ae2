"""One pass over each table of a trace: machines, queued collections, requests and rewards, with running statistics."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.traces.shards import read

with optional_imports():
    import pyarrow as pa
    import pyarrow.compute as pc


class Moments:
    """Count, mean and sum of squared deviations of each of K groups, merged pairwise as Chan, Golub and LeVeque do.

    Examples
    --------
    >>> moments = Moments(2)
    >>> moments.add(np.array([0, 0, 1]), np.array([1.0, 2.0, 5.0]))
    >>> moments.add(np.array([0]), np.array([6.0]))
    >>> moments.mean, moments.variance
    (array([3., 5.]), array([ 7., nan]))
    """

    def __init__(self, groups: int) -> None:
        self.count: IntArray = np.zeros(groups, np.int64)
        self.mean: Array = np.zeros(groups)
        self.deviation: Array = np.zeros(groups)

    def add(self, group: IntArray, value: Array) -> None:
        """Add values (M,), each with the number of its group (M,)."""
        size = self.count.size
        fresh = np.bincount(group, minlength=size)
        mean = np.bincount(group, value, size) / np.maximum(fresh, 1)
        deviation = np.bincount(group, (value - mean[group]) ** 2, size)
        total = np.maximum(self.count + fresh, 1)
        step = mean - self.mean
        self.deviation += deviation + step**2 * self.count * fresh / total
        self.mean += step * fresh / total
        self.count += fresh

    @property
    def variance(self) -> Array:
        """Sample variance of each group (K,), NaN below two numbers."""
        return np.where(self.count > 1, self.deviation / np.maximum(self.count - 1, 1), np.nan)


MISSING = -(2**63)  # marks a missing whole number
CELLS = "abcdefgh"  # the cells of cluster-data-2019; the joined sample numbers them from one


class TraceRows:
    """The rows of one batch of a file that are still wanted."""

    def __init__(self, file: Path, batch: Any, left_out: Counter[str]) -> None:
        self.file, self._batch, self._left_out = file, batch, left_out

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def whole(self, name: str) -> IntArray:
        """Return a column of whole numbers (M,), `MISSING` where the file has none."""
        column = self._batch.column(name)
        return np.asarray(pc.fill_null(column, MISSING).to_numpy(zero_copy_only=False))

    def number(self, name: str) -> Array:
        """Return a column of floats (M,), NaN where the file has none."""
        return np.asarray(self._batch.column(name).to_numpy(zero_copy_only=False))

    def lacks(self, *names: str) -> bool:
        """Return whether one of the columns is empty in a batch that has rows."""
        return len(self) > 0 and any(self._batch.column(name).null_count == len(self) for name in names)

    def keep(self, good: BoolArray, otherwise: str) -> None:
        """Drop the rows that are not `good` (M,) and count them as `otherwise`."""
        dropped = int(good.size - np.count_nonzero(good))
        if dropped:
            self._left_out[otherwise] += dropped
            self._batch = self._batch.filter(pa.array(good))

    def keep_known(self, *names: str, noun: str) -> None:
        """Drop the rows in which one of the columns is missing."""
        for name in names:
            self.keep(self.whole(name) != MISSING, f"{noun} without {name}")


def rows(file: Path, table: str, left_out: Counter[str], cell: str | None, cells: set[int]) -> Iterator[TraceRows]:
    """Yield the rows of a file, of one cell if it has a column for that; `cells` collects those found."""
    for batch in read(file, table):
        part = TraceRows(file, batch, left_out)
        if "cluster" in batch.schema.names and not part.lacks("cluster"):
            cells |= set(np.unique(part.whole("cluster")).tolist())
            if cell is not None:
                part.keep(part.whole("cluster") == CELLS.index(cell) + 1, "rows of other cells")
            elif len(cells) > 1:
                named = ", ".join(CELLS[k - 1] if 0 < k <= len(CELLS) else str(k) for k in sorted(cells))
                raise BadInput(f"cell must be given where a file contains several; {file} contains {named}")
        yield part


ADD, QUEUE, SUBMIT = 1, 1, 0  # event types: a machine is added; a collection is queued; an instance is submitted


class Labels(NamedTuple):
    """A class (K,) for each of some sorted ids (K,)."""

    ids: IntArray
    label: IntArray

    def of(self, ids: IntArray) -> IntArray:
        """Return the class of each of `ids` (M,), and -1 for unknown ones."""
        if not self.ids.size:
            return np.full(ids.size, -1)
        place = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[place] == ids, self.label[place], -1)


def machines(parts: Iterable[TraceRows], left_out: Counter[str]) -> tuple[IntArray, Array]:
    """Return sorted ids (M,), and CPU and memory (M, 2), of the machines added before the trace began.

    Files without event types contain no others.
    """
    ids, sizes = [np.zeros(0, np.int64)], [np.zeros((0, 2))]
    for part in parts:
        part.keep_known("time", "machine_id", noun="machine events")
        part.keep(_sized(part, above_zero=True), "machine events without capacity")
        part.keep(part.whole("time") == 0, "machine events after the trace began")
        part.keep(np.isin(part.whole("type"), (ADD, MISSING)), "machine events other than add")
        ids.append(part.whole("machine_id"))
        sizes.append(_sizes(part))
    unique, first = np.unique(np.concatenate(ids), return_index=True)
    left_out["machine events that repeat a machine"] += sum(map(len, ids)) - unique.size
    return unique, np.concatenate(sizes)[first]


def queued(parts: Iterable[TraceRows], end: int, left_out: Counter[str]) -> tuple[IntArray, IntArray]:
    """Return sorted ids (C,) of the collections queued after the trace began and up to `end`, and their first times (C,)."""
    ids, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part in parts:
        part.keep_known("time", "type", "collection_id", noun="collection events")
        part.keep(part.whole("type") == QUEUE, "collection events other than queue")
        part.keep(_within(part.whole("time"), end), "collections queued outside the window")
        ids.append(part.whole("collection_id"))
        times.append(part.whole("time"))
    every, when = np.concatenate(ids), np.concatenate(times)
    order = np.argsort(when, kind="stable")
    unique, first = np.unique(every[order], return_index=True)
    left_out["collection events that repeat a collection"] += every.size - unique.size
    return unique, when[order][first]


def requests(parts: Iterable[TraceRows], known: IntArray, end: int, distinct: bool) -> tuple[IntArray, Array]:
    """Return the units (C,) and the mean CPU and memory requests (C, 2) of the `known` collections (C,).

    With `distinct` each instance counts once.
    """
    cpus, memory, seen = Moments(known.size), Moments(known.size), set[tuple[int, int]]()
    place = Labels(known, np.arange(known.size))
    for part in parts:
        if distinct and part.lacks("instance_index", "type"):
            rule = "'rows' where instance events have no type and instance_index"
            raise BadInput(f"units must be {rule}, as in {part.file}; got 'instances'")
        part.keep_known("time", "collection_id", noun="instance events")
        part.keep(place.of(part.whole("collection_id")) >= 0, "instance events of collections not queued in the window")
        part.keep(_within(part.whole("time"), end), "instance events outside the window")
        part.keep(_sized(part, above_zero=False), "instance events without a request")
        if distinct:
            _keep_distinct(part, seen)
        group = place.of(part.whole("collection_id"))
        cpus.add(group, part.number("cpus"))
        memory.add(group, part.number("memory"))
    return cpus.count, np.column_stack([cpus.mean, memory.mean])


def rewards(parts: Iterable[TraceRows], jobs: Labels, servers: Labels, shape: tuple[int, int], end: int) -> Moments:
    """Return the moments of 1/CPI of each job class on each machine class, in a table of `shape` (I, J), row by row."""
    table = Moments(shape[0] * shape[1])
    for part in parts:
        part.keep_known("collection_id", "machine_id", noun="usage rows")
        part.keep(jobs.of(part.whole("collection_id")) >= 0, "usage rows of collections not in the digest")
        start = part.whole("start_time")
        part.keep((start == MISSING) | _within(start, end), "usage rows outside the window")
        part.keep(~np.isnan(part.number("cycles_per_instruction")), "usage rows without CPI")
        cpi = part.number("cycles_per_instruction")
        part.keep((cpi > 0.0) & np.isfinite(cpi), "usage rows with a CPI that is not positive")
        part.keep(servers.of(part.whole("machine_id")) >= 0, "usage rows on machines not there when the trace began")
        pair = jobs.of(part.whole("collection_id")) * shape[1] + servers.of(part.whole("machine_id"))
        table.add(pair, 1.0 / part.number("cycles_per_instruction"))
    return table


def _keep_distinct(part: TraceRows, seen: set[tuple[int, int]]) -> None:
    part.keep_known("type", "instance_index", noun="instance events")
    part.keep(part.whole("type") == SUBMIT, "instance events other than submit")
    fresh = np.zeros(len(part), np.bool_)
    pairs = zip(part.whole("collection_id").tolist(), part.whole("instance_index").tolist(), strict=True)
    for k, instance in enumerate(pairs):
        fresh[k] = instance not in seen
        seen.add(instance)
    part.keep(fresh, "submit events that repeat an instance")


def _within(time: IntArray, end: int) -> BoolArray:
    return (time > 0) & (time <= end)


def _sizes(part: TraceRows) -> Array:
    return np.column_stack([part.number("cpus"), part.number("memory")])


def _sized(part: TraceRows, above_zero: bool) -> BoolArray:
    sizes = _sizes(part)
    return np.asarray((np.isfinite(sizes) & ((sizes > 0.0) if above_zero else (sizes >= 0.0))).all(axis=1))
