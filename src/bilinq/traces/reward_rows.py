"""Rows of a reward table: read in chunks, checked and counted."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import Array, IntArray, short
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.traces.passes import Moments
from bilinq.traces.tables import GZIP, PARQUET

with optional_imports():
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq

Source = Path | str  # a file, or the name of a table in memory
TABLE = "table"
BLOCK = 2**20  # bytes of a CSV file, or rows of a Parquet file times sixteen, that are read at a time


@dataclass(frozen=True, slots=True, eq=False)
class RowChunk:
    """Some rows of a file, which begin with number `row`; rows count from 1, the header of a CSV file not among them.

    `file` is a path, or another name of the table for messages. `text` has the distinct names of each text column, and which
    of them each row has; `numbers` are all finite.
    """

    file: Source
    row: int
    text: dict[str, tuple[list[str], IntArray]]
    numbers: dict[str, Array]

    def fault(self, k: int, message: str) -> BadInput:
        """Return the error that names the file and row `k` of this chunk."""
        return _fault(self.file, self.row + k, message)


def chunks(table: Any, text: Sequence[str], numbers: Sequence[str]) -> Iterator[RowChunk]:
    """Yield the rows of a file or of another table with its columns `text` and `numbers`.

    A file that cannot be read raises `BadInput`, which names the file and, where there is one, the row and the value.
    """
    row, file, columns = 1, source_name(table), list(dict.fromkeys((*text, *numbers)))
    with _readable(file):
        for batch in _open(file, columns) if isinstance(file, Path) else _batches(table, columns):
            names = {column: _names(file, row, column, batch.column(column)) for column in text}
            values = {column: _numbers(file, row, column, batch.column(column)) for column in numbers}
            yield RowChunk(file, row, names, values)
            row += batch.num_rows


def source_name(table: Any) -> Source:
    """Return the path of a file, or how messages call a table in memory."""
    return Path(table) if isinstance(table, str | PathLike) else TABLE


def _batches(table: Any, columns: list[str]) -> Iterator[Any]:
    """Return the batches of a DataFrame, a PyArrow table or a mapping of columns."""
    found = table.column_names if isinstance(table, pa.Table) else getattr(table, "columns", table)
    if not isinstance(table, pa.Table | Mapping) and not hasattr(table, "columns"):
        raise BadInput(f"path must be a file, a DataFrame, a PyArrow table or a mapping of columns; got {short(table)}")
    _check_columns(TABLE, columns, [str(name) for name in found])
    try:
        arrow = pa.table({name: _arrow(table[name]) for name in columns})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(f"{TABLE}: {str(error).splitlines()[0]}") from None
    return iter(arrow.combine_chunks().to_batches(max_chunksize=BLOCK // 16))


def _arrow(column: Any) -> Any:
    return column if isinstance(column, pa.ChunkedArray) else pa.array(column, from_pandas=True)


def _open(file: Path, columns: list[str]) -> Iterator[Any]:
    with file.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(PARQUET) or file.suffix == ".parquet":
        return _parquet(file, columns)
    if not head:
        raise BadInput(f"{file}: must contain a header and rows; got an empty file")
    if b"\0" in head and not head.startswith(GZIP):
        raise BadInput(f"{file}: must be UTF-8 text or Parquet; got {head[:12]!r}...")
    return _csv(file, columns)


def _parquet(file: Path, columns: list[str]) -> Iterator[Any]:
    source = pq.ParquetFile(file)
    _check_columns(file, columns, source.schema_arrow.names)
    return iter(source.iter_batches(batch_size=BLOCK // 16, columns=columns))


def _csv(file: Path, columns: list[str]) -> Iterator[Any]:
    """Return batches in which every column is text as it stands in the file: "007" is not 7, "NA" is a name."""
    read = arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK)
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    _check_columns(file, columns, arrow_csv.open_csv(file, read, parse).schema.names)
    as_text = arrow_csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
    return iter(arrow_csv.open_csv(file, read, parse, as_text))


def _check_columns(file: Source, columns: list[str], found: list[str]) -> None:
    for column in columns:
        if found.count(column) != 1:
            many = "twice" if column in found else f"only {short(', '.join(found), 200)}"
            raise BadInput(f"{file}: must have one column {column!r}; got {many}")


def _names(file: Source, row: int, column: str, values: Any) -> tuple[list[str], IntArray]:
    """Return the distinct names of a column, and which of them each row has."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise BadInput(f"{file}: {column} must contain text or whole numbers; got {kind}")
    coded = values.cast(pa.string()).dictionary_encode()
    if coded.null_count:
        k = int(np.flatnonzero(coded.is_null().to_numpy(zero_copy_only=False))[0])
        raise _fault(file, row + k, f"{column} must be a name; got nothing")
    names, code = coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)
    for number, name in enumerate(names):
        if not name or not name.isprintable():
            k = int(np.flatnonzero(code == number)[0])
            raise _fault(file, row + k, f"{column} must be a printable name; got {short(name)}")
    return names, code


def _numbers(file: Source, row: int, column: str, values: Any) -> Array:
    if pa.types.is_boolean(values.type) or pa.types.is_nested(values.type):
        raise BadInput(f"{file}: {column} must contain numbers; got {values.type}")
    try:
        array = np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowException:
        array = np.array([_number(value) for value in values.to_pylist()])
    if not np.isfinite(array).all():
        k = int(np.flatnonzero(~np.isfinite(array))[0])
        raise _fault(file, row + k, f"{column} must be a finite number; got {short(values[k].as_py())}")
    return array


def _number(value: Any) -> float:
    """Return one value as a number, NaN where it is none: used only if a whole column could not be read at once."""
    try:
        return float(pa.scalar(value).cast(pa.float64()).as_py())
    except (pa.ArrowException, TypeError):
        return np.nan


def _fault(file: Source, row: int, message: str) -> BadInput:
    return BadInput(f"{file}: row {row}: {message}")


@contextmanager
def _readable(file: Source) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: must be UTF-8 text; got {error.object[error.start : error.end]!r}") from None
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{file}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the meaning of an error of the file system or of PyArrow, which counts the header of a CSV file as row 1."""
    text = getattr(error, "strerror", None) or str(error).splitlines()[0]
    place = re.search(r"Row #(\d+): (?:Expected (\d+) columns, got (\d+))?", text)
    if "Empty CSV file" in text:
        return "must contain a header and rows; got no rows"
    if place is None:
        return f"cannot be read; {text}"
    fields, found = place.group(2, 3)
    rule = f"must have {fields} fields; got {found}" if fields else "must be UTF-8 text; got other bytes"
    return f"row {int(place[1]) - 1}: {rule}"


@dataclass(eq=False)
class FileClasses:
    """The job classes, or the server classes, of a file: `column` has their names, `features` names their columns.

    If `only` is given, these classes are used in this order; default: all, in order of appearance. `number` has the number
    of each class by name, `vectors` the features of each (NaN before its first row), and `left_out` the number of rows of
    each class that is not used.
    """

    column: str
    features: Sequence[str]
    only: Sequence[str] | None = None
    number: dict[str, int] = field(default_factory=dict)
    vectors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.number.update((name, k) for k, name in enumerate(self.only or ()))

    def select(self, chunk: RowChunk, rows: IntArray) -> IntArray:
        """Return those of `rows` whose class is used, and count the others."""
        if self.only is None:
            return rows
        names, code = chunk.text[self.column]
        wanted = np.array([name in self.number for name in names], np.bool_)[code[rows]]
        self.left_out.update(names[k] for k in code[rows[~wanted]].tolist())
        return rows[wanted]

    def classes(self, chunk: RowChunk, rows: IntArray) -> IntArray:
        """Return the number of the class of each of `rows`; new classes get the next numbers in order of appearance."""
        names, code = chunk.text[self.column]
        present, first, of = np.unique(code[rows], return_index=True, return_inverse=True)
        for k in present[np.argsort(first)].tolist():
            self.number.setdefault(names[k], len(self.number))
        return np.array([self.number[names[k]] for k in present.tolist()], np.int64)[of]

    def add_features(self, chunk: RowChunk, rows: IntArray, of: IntArray) -> None:
        """Store the features of the classes `of` the `rows`; raise if a class has two values."""
        if not self.features:
            return
        values = np.stack([chunk.numbers[column][rows] for column in self.features], axis=1)
        fresh = np.full((len(self.number) - len(self.vectors), len(self.features)), np.nan)
        self.vectors = np.concatenate([self.vectors.reshape(-1, len(self.features)), fresh])
        new = np.flatnonzero(np.isnan(self.vectors[of, 0]))[::-1]
        self.vectors[of[new]] = values[new]  # backwards: a class gets the values of its first row
        for k, column in np.argwhere(values != self.vectors[of]).tolist():
            name = list(self.number)[of[k]]
            rule = f"{self.features[column]} must be the same in all rows of {self.column} {name!r}"
            known = f"{self.vectors[of[k], column]:.12g} so far"
            raise chunk.fault(int(rows[k]), f"{rule}, {known}; got {values[k, column]:.12g}")


@dataclass(eq=False)
class Tally:
    """The observations of a file, counted by pair.

    `pairs` has the place of each pair of job class and server class in `moments`, which are those of its rewards; `times`
    those of the rows of each chunk, if they are wanted, and `jobs` their classes.
    """

    job: FileClasses
    server: FileClasses
    reward: str
    time: str | None = None
    bounds: tuple[float, float] | None = None
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    moments: Moments = field(default_factory=lambda: Moments(16))
    low: float = np.inf
    high: float = -np.inf
    times: list[Array] = field(default_factory=list)
    jobs: list[IntArray] = field(default_factory=list)

    def add(self, chunk: RowChunk) -> None:
        """Count a chunk of rows."""
        rows = self.server.select(chunk, self.job.select(chunk, np.arange(len(chunk.numbers[self.reward]))))
        if not rows.size:
            return
        i, j = self.job.classes(chunk, rows), self.server.classes(chunk, rows)
        self.job.add_features(chunk, rows, i)
        self.server.add_features(chunk, rows, j)
        self._check_bounds(chunk, rows)
        self._add(i, j, chunk.numbers[self.reward][rows])
        if self.time is not None:
            self.times.append(chunk.numbers[self.time][rows])
            self.jobs.append(i)

    def _check_bounds(self, chunk: RowChunk, rows: IntArray) -> None:
        if self.bounds is None:
            return
        rewards, (low, high) = chunk.numbers[self.reward], self.bounds
        for k in rows[(rewards[rows] < low) | (rewards[rows] > high)].tolist():
            raise chunk.fault(k, f"{self.reward} must lie in reward_range, {low:g} to {high:g}; got {rewards[k]:g}")

    def _add(self, i: IntArray, j: IntArray, rewards: Array) -> None:
        self.low, self.high = min(self.low, float(rewards.min())), max(self.high, float(rewards.max()))
        width = len(self.server.number)
        codes, of = np.unique(i * width + j, return_inverse=True)
        places = [self.pairs.setdefault(divmod(code, width), len(self.pairs)) for code in codes.tolist()]
        if len(self.pairs) > self.moments.count.size:
            for name in ("count", "mean", "deviation"):
                getattr(self.moments, name).resize(2 * len(self.pairs), refcheck=False)
        self.moments.add(np.array(places)[of], rewards)

    def left_out(self) -> dict[str, int]:
        """Return the number of rows that were left out, by the class that is not used."""
        sides = (self.job, self.server)
        return {f"{side.column} {name!r}": rows for side in sides for name, rows in side.left_out.items()}

    def tables(self) -> tuple[IntArray, Array, Array]:
        """Return counts, means and sums of squared deviations, each (I, J), zero for unseen pairs."""
        shape = (len(self.job.number), len(self.server.number))
        count, mean, spread = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        i, j = np.array(list(self.pairs)).T
        for table, values in ((count, self.moments.count), (mean, self.moments.mean), (spread, self.moments.deviation)):
            table[i, j] = values[: i.size]
        return count, mean, spread

    def check_seen(self, file: object) -> None:
        """Raise if a wanted class has no row, or if there is no row at all."""
        if not self.pairs:
            raise BadInput(f"{file}: must contain at least one row of the wanted classes; got none")
        for side, axis in ((self.job, 0), (self.server, 1)):
            seen = {pair[axis] for pair in self.pairs}
            for name, k in side.number.items():
                if k not in seen:
                    raise BadInput(f"{file}: must contain a row of {side.column} {name!r}; got none")
