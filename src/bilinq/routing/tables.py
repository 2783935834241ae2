"""Workloads from tables: DataFrames, PyArrow tables, mappings of columns, CSV and Parquet files, wide or long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import Array, IntArray, as_floats, one_of, short
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.routing.workload import Workload

Columns = dict[str, list[Any]]
MISSING = ("refuse", "class mean", "ineligible")


def read_workload(
    table: Any, *, servers: Mapping[str, int], arrival: Any, duration: Any = None, features: Sequence[str] = (),
    job_class: str | None = None, missing: str = "refuse", **options: Any,
) -> Workload:  # fmt: skip
    """Return the jobs of a table, in its order.

    Parameters
    ----------
    table : DataFrame, PyArrow table, mapping of columns, or path of a CSV or Parquet file
        Wide: a row for each job and a column of rewards for each server class; an empty cell is a pair that is not eligible.
        Long: a row for each observation with the columns "job", "server" and "reward".
    servers : mapping from name to number
        The server classes that are used.
    arrival : name of a column, or (N,) array
        Times; jobs are in the order in which the table first has them.
    duration : name of a column, number, (J,) or (N, J) array
        Default: the column "duration" of a long table, by pair, or one.
    features : names of columns
    job_class : name of a column; default: "class" if there is one
    missing : "refuse", "class mean" or "ineligible"
        Pairs that a long table does not have: an error, the mean of the job's class on this server class, or not eligible.
    **options
        Other arguments of `Workload`.
    """
    columns = read_columns(table)
    one_of("missing", missing, MISSING)
    kind = job_class or ("class" if "class" in columns else None)
    long = "server" in columns and "reward" in columns
    jobs = _Jobs(columns, tuple(servers), _first_rows(_column(columns, "job")) if long else None)
    classes = None if kind is None else [str(one) for one in jobs.each(kind)]
    reward = jobs.pairs("reward") if long else jobs.wide()
    if duration is None:
        duration = jobs.pairs("duration") if long and "duration" in columns else 1.0
        duration = _filled(duration, classes, jobs, "class mean") if isinstance(duration, np.ndarray) else duration
    elif isinstance(duration, str):
        duration = np.repeat(_numbers(duration, jobs.each(duration))[:, None], len(servers), axis=1)
    if long:
        reward = _filled(reward, classes, jobs, missing)
    return Workload(
        arrival=_numbers(arrival, jobs.each(arrival)) if isinstance(arrival, str) else arrival, reward=reward,
        duration=duration, servers=servers, job_class=classes,
        features=np.stack([_numbers(name, jobs.each(name)) for name in features], axis=1) if len(features) else None,
        **options,
    )  # fmt: skip


def read_columns(table: Any) -> Columns:
    """Return a table as lists by name of column."""
    if isinstance(table, str | PathLike):
        table = _read(Path(table))
    if hasattr(table, "column_names") and hasattr(table, "to_pydict"):
        return dict(table.to_pydict())
    if isinstance(table, Mapping):
        return {str(name): list(values) for name, values in table.items()}
    if hasattr(table, "to_dict"):
        return {str(name): list(values) for name, values in table.to_dict("list").items()}
    raise BadInput(f"table must be a DataFrame, a PyArrow table, a mapping of columns or a path; got {short(table)}")


def _read(file: Path) -> Any:
    with optional_imports():
        import pyarrow.csv
        import pyarrow.parquet
    readers: dict[str, Any] = {".csv": pyarrow.csv.read_csv, ".parquet": pyarrow.parquet.read_table}
    if file.suffix.lower() not in readers:
        raise BadInput(f"{file}: the name must end in .csv or .parquet; got {file.suffix!r}")
    try:
        return readers[file.suffix.lower()](file)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(f"{file}: cannot be read; {str(error).splitlines()[0]}") from None


class _Jobs:
    """The jobs of a table: rows of a wide one, names of a long one."""

    def __init__(
        self, columns: Columns, servers: tuple[str, ...], first: tuple[IntArray, dict[Any, int]] | None
    ) -> None:
        self.columns, self.servers = columns, servers
        self.first: IntArray | None = None if first is None else first[0]
        self.number: dict[Any, int] = {} if first is None else first[1]

    def each(self, name: str) -> list[Any]:
        """Return the values of a column for each job, from its first row."""
        values = _column(self.columns, name)
        return values if self.first is None else [values[k] for k in self.first.tolist()]

    def wide(self) -> Array:
        """Return the rewards (N, J) of a wide table."""
        return np.stack([_numbers(name, _column(self.columns, name), gaps=True) for name in self.servers], axis=1)

    def pairs(self, name: str) -> Array:
        """Return the means (N, J) of a column of a long table; NaN where a pair was not observed."""
        place = {server: j for j, server in enumerate(self.servers)}
        values = _numbers(name, _column(self.columns, name))
        rows = np.array([self.number[job] for job in self.columns["job"]])
        at = np.array([place.get(str(server), -1) for server in _column(self.columns, "server")])
        flat, size = (rows * len(place) + at)[at >= 0], len(self.number) * len(place)
        seen = np.bincount(flat, minlength=size)
        total = np.bincount(flat, values[at >= 0], size)
        mean = np.divide(total, seen, out=np.full(size, np.nan), where=seen > 0)
        return np.asarray(mean.reshape(len(self.number), len(place)))


def _filled(table: Array, classes: list[str] | None, jobs: _Jobs, missing: str) -> Array:
    """Return a table (N, J) whose gaps are filled as `missing` says."""
    gaps = np.isnan(table)
    if missing == "ineligible" or not gaps.any():
        return table
    k, j = (int(place) for place in np.argwhere(gaps)[0])
    job, server = list(jobs.number)[k], jobs.servers[j]
    if missing == "refuse":
        raise BadInput(
            f"table must have every pair; got none of job {short(job)} and server {server!r}; "
            "set missing to 'class mean' or 'ineligible'"
        )
    kind = np.unique(classes, return_inverse=True)[1] if classes is not None else np.zeros(len(table), np.int64)
    seen = np.stack([np.bincount(kind, ~gaps[:, j]) for j in range(table.shape[1])], axis=1)
    total = np.stack([np.bincount(kind, np.where(gaps[:, j], 0.0, table[:, j])) for j in range(table.shape[1])], axis=1)
    mean = np.divide(total, seen, out=np.full(total.shape, np.nan), where=seen > 0)[kind]
    empty = np.argwhere(gaps & np.isnan(mean))
    if empty.size:
        k, j = (int(place) for place in empty[0])
        name = "all jobs" if classes is None else f"class {classes[k]!r}"
        raise BadInput(f"table must have a reward of {name} on server {jobs.servers[j]!r} for its mean; got none")
    return np.where(gaps, mean, table)


def _first_rows(jobs: list[Any]) -> tuple[IntArray, dict[Any, int]]:
    """Return the first row of each job, and its number."""
    first: dict[Any, int] = {}
    for row, job in enumerate(jobs):
        first.setdefault(job, row)
    return np.array(list(first.values()), np.int64), {job: number for number, job in enumerate(first)}


def _column(columns: Columns, name: str) -> list[Any]:
    if name not in columns:
        raise BadInput(f"table must have the column {name!r}; got {short(list(columns))}")
    return columns[name]


def _numbers(name: str, values: Sequence[Any], gaps: bool = False) -> Array:
    """Return a column as floats; an empty cell is NaN if `gaps`, else an error."""
    found = as_floats(f"column {name!r}", [np.nan if value is None else value for value in values])
    if not gaps and np.isnan(found).any():
        raise BadInput(f"column {name!r} must have no empty cells; got one in row {int(np.isnan(found).argmax())}")
    return found
