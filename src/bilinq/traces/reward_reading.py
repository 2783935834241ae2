"""Reads tables of observations, CSV or Parquet, a chunk of rows at a time: text stays text, numbers are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bilinq.arrays import Array, IntArray, short
from bilinq.errors import BadInput

GZIP = b"\x1f\x8b"
BLOCK = 2**20
"""Bytes of a CSV file, or rows of a Parquet file times sixteen, that are held at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some rows of a file.

    Attributes
    ----------
    file : Path
    row : int
        Number of the first row; a file's rows count from 1, the header of a CSV file not among them.
    text : dict of (names, (rows,) int array)
        Of each text column its distinct names, and which of them each row has.
    numbers : dict of (rows,) arrays
        The columns of numbers, all finite.
    """

    file: Path
    row: int
    text: dict[str, tuple[list[str], IntArray]]
    numbers: dict[str, Array]

    def fault(self, k: int, message: str) -> BadInput:
        """Return the error that names the file and row `k` of this chunk."""
        return _fault(self.file, self.row + k, message)


def chunks(file: Path, text: Sequence[str], numbers: Sequence[str]) -> Iterator[Chunk]:
    """Yield the rows of `file` with its columns `text` and `numbers`.

    What cannot be read raises `BadInput` that names the file and, where there is one, the row and the value.
    """
    row = 1
    with _readable(file):
        for batch in _open(file, list(dict.fromkeys((*text, *numbers)))):
            yield _chunk(file, row, batch, text, numbers)
            row += batch.num_rows


def _open(file: Path, columns: list[str]) -> Iterator[Any]:
    """Return the batches with the given columns."""
    with file.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"PAR1") or file.suffix == ".parquet":
        return _parquet(file, columns)
    if not head:
        raise BadInput(f"{file}: must hold a header and rows; got an empty file")
    if b"\0" in head and not head.startswith(GZIP):
        raise BadInput(f"{file}: must be UTF-8 text or Parquet; got {head[:12]!r}...")
    return _csv(file, columns)


def _parquet(file: Path, columns: list[str]) -> Iterator[Any]:
    source = pyarrow.parquet.ParquetFile(file)
    _check_columns(file, columns, source.schema_arrow.names)
    return iter(source.iter_batches(batch_size=BLOCK // 16, columns=columns))


def _csv(file: Path, columns: list[str]) -> Iterator[Any]:
    """Return batches in which every column is text as it stands in the file: "007" is not 7, "NA" is a name."""
    names = _csv_reader(file, pyarrow.csv.ConvertOptions()).schema.names
    _check_columns(file, columns, names)
    as_text = dict.fromkeys(columns, pa.string())
    return iter(_csv_reader(file, pyarrow.csv.ConvertOptions(include_columns=columns, column_types=as_text)))


def _csv_reader(file: Path, convert: pyarrow.csv.ConvertOptions) -> pyarrow.csv.CSVStreamingReader:
    read = pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK)
    return pyarrow.csv.open_csv(file, read, pyarrow.csv.ParseOptions(newlines_in_values=True), convert)


def _check_columns(file: Path, columns: list[str], found: list[str]) -> None:
    for column in columns:
        if found.count(column) != 1:
            many = "twice" if column in found else f"only {short(', '.join(found), 200)}"
            raise BadInput(f"{file}: must have one column {column!r}; got {many}")


def _chunk(file: Path, row: int, batch: Any, text: Sequence[str], numbers: Sequence[str]) -> Chunk:
    return Chunk(
        file, row,
        {column: _names(file, row, column, batch.column(column)) for column in text},
        {column: _numbers(file, row, column, batch.column(column)) for column in numbers},
    )  # fmt: skip


def _names(file: Path, row: int, column: str, values: Any) -> tuple[list[str], IntArray]:
    """Return the distinct names of a column, and which of them each row has."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise BadInput(f"{file}: {column} must hold text or whole numbers; got {kind}")
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


def _numbers(file: Path, row: int, column: str, values: Any) -> Array:
    """Return a column of finite numbers."""
    if pa.types.is_boolean(values.type) or pa.types.is_nested(values.type):
        raise BadInput(f"{file}: {column} must hold numbers; got {values.type}")
    try:
        array = np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowException:
        array = np.array([_number(value) for value in values.to_pylist()])
    if not np.isfinite(array).all():
        k = int(np.flatnonzero(~np.isfinite(array))[0])
        raise _fault(file, row + k, f"{column} must be a finite number; got {short(values[k].as_py())}")
    return array


def _number(value: Any) -> float:
    """Return one value as a number, NaN where it is none: found only where a whole column could not be read at once."""
    try:
        return float(pa.scalar(value).cast(pa.float64()).as_py())
    except (pa.ArrowException, TypeError):
        return np.nan


def _fault(file: Path, row: int, message: str) -> BadInput:
    return BadInput(f"{file}: row {row}: {message}")


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn what the file system and PyArrow raise into one clear error."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: must be UTF-8 text; got {error.object[error.start : error.end]!r}") from None
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{file}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return what an error of the file system or of PyArrow means; PyArrow counts the header of a CSV file as row 1."""
    said = getattr(error, "strerror", None) or str(error).splitlines()[0]
    place = re.search(r"Row #(\d+): (?:Expected (\d+) columns, got (\d+))?", said)
    if "Empty CSV file" in said:
        return "must hold a header and rows; got no rows"
    if place is None:
        return f"cannot be read; {said}"
    fields, found = place.group(2, 3)
    rule = f"must have {fields} fields; got {found}" if fields else "must be UTF-8 text; got other bytes"
    return f"row {int(place[1]) - 1}: {rule}"
