"""CSV and Parquet files as Arrow batches with the columns of a table; errors name the file and the row."""

import csv
import gzip
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.traces.tables import GZIP, Column, Source, locate

with optional_imports():
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq

BLOCK = 1 << 22  # bytes of text that are parsed at a time
PARQUET_ROWS = 1 << 17  # rows of a batch of a Parquet file
CHECKED_ROWS = 4096  # rows checked together in the search for a bad one
NULLS = frozenset(arrow_csv.ConvertOptions().null_values or ())

# CSV: BigQuery's exports with dotted headers, the joined sample with dictionaries as text, small extracts.


def read_csv(file: Path, wanted: Collection[Column]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file; fields in quotes may go over several lines."""
    sources = locate(wanted, header(file), file)
    rows = 0
    try:
        for raw in _open_csv(file, wanted, sources):
            yield canonical(raw, wanted, sources, file)
            rows += raw.num_rows
    except (pa.ArrowInvalid, BadValue) as error:
        raise _first_fault(file, wanted, sources, error) from None
    except OSError as error:
        raise cut_off(file, rows, error) from None


def header(file: Path) -> list[str]:
    """Return the names in the first line of a CSV file."""
    try:
        with open_text(file) as text:
            names = next(csv.reader(text), [])
    except (OSError, EOFError, csv.Error) as error:
        raise cut_off(file, 0, error) from None
    if not all(map(is_utf8, names)):
        raise BadInput(f"{file}: header must be UTF-8 text; got {','.join(names)[:60]!r}")
    return names


def _open_csv(file: Path, wanted: Collection[Column], sources: Mapping[str, Source]) -> Any:
    found = [(column, sources[column.name]) for column in wanted if column.name in sources]
    types = {source.column: arrow_type(column) if source.key is None else pa.string() for column, source in found}
    read, parse = arrow_csv.ReadOptions(block_size=BLOCK), arrow_csv.ParseOptions(newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(include_columns=list(types), column_types=types)
    return arrow_csv.open_csv(open_bytes(file), read, parse, convert)


def _first_fault(file: Path, wanted: Collection[Column], sources: Mapping[str, Source], error: Exception) -> BadInput:
    """Return the error that names the first bad row, found by reading the file again row by row."""
    with open_text(file) as text:
        reader = csv.reader(text)
        names = next(reader)
        rows, done = filter(None, reader), 0
        try:
            while chunk := list(itertools.islice(rows, CHECKED_ROWS)):
                fault = _chunk_fault(chunk, names, wanted, sources, file)
                if fault is not None:
                    return BadInput(f"{file}: row {done + fault[0] + 1}: {fault[1]}")
                done += len(chunk)
        except (OSError, EOFError, csv.Error) as broken:
            return cut_off(file, done, broken)
    return BadInput(f"{file}: cannot be read; {error}")


def _chunk_fault(chunk: list[list[str]], names: list[str], wanted: Collection[Column], sources: Mapping[str, Source],
                 file: Path) -> tuple[int, str] | None:  # fmt: skip
    """Return the first bad row of a chunk, counted from zero, and what is wrong with it."""
    good = list(itertools.takewhile(lambda row: not _shape_fault(row, names), chunk))
    taken = {source.column: names.index(source.column) for source in sources.values()}
    texts = {name: [None if row[k] in NULLS else row[k] for row in good] for name, k in taken.items()}
    raw = pa.RecordBatch.from_pydict({name: pa.array(values, pa.string()) for name, values in texts.items()})
    k, value_fault = first_bad(raw, wanted, sources, file)
    if k < len(good):
        return k, str(value_fault)
    return (k, _shape_fault(chunk[k], names)) if k < len(chunk) else None


def _shape_fault(row: list[str], names: list[str]) -> str:
    if len(row) != len(names):
        return f"must have {len(names)} fields; got {len(row)}"
    return "" if all(map(is_utf8, row)) else f"must be UTF-8 text; got {','.join(row)[:60]!r}"


# Parquet: only the columns that are wanted are read.


def read_parquet(file: Path, wanted: Collection[Column]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file."""
    rows = 0
    try:
        with pq.ParquetFile(file) as shard:
            sources = locate(wanted, shard.schema_arrow.names, file)
            for raw in shard.iter_batches(batch_size=PARQUET_ROWS, columns=_leaves(sources, shard.schema_arrow)):
                try:
                    yield canonical(raw, wanted, sources, file)
                except BadValue:
                    k, fault = first_bad(raw, wanted, sources, file)
                    raise BadInput(f"{file}: row {rows + k + 1}: {fault}") from None
                rows += raw.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise cut_off(file, rows, error) from None


def _leaves(sources: dict[str, Source], schema: pa.Schema) -> list[str]:
    """Return the columns to read; of a record only the wanted entries."""
    structs = {field.name for field in schema if pa.types.is_struct(field.type)}
    return [
        ".".join(filter(None, source)) if source.column in structs else source.column for source in sources.values()
    ]


# Columns of a file in their canonical form: whole numbers are int64 and never pass through floats.


class BadValue(Exception):
    """A value does not fit its column; the caller, who has the file, finds the row."""


def canonical(raw: Any, wanted: Collection[Column], sources: Mapping[str, Source], file: Path) -> pa.RecordBatch:
    """Return the batch of `wanted` columns from a batch of the file; columns that it lacks are null."""
    arrays = [_column(raw, column, sources.get(column.name), file) for column in wanted]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in wanted])


def first_bad(raw: Any, wanted: Collection[Column], sources: Mapping[str, Source], file: Path) -> tuple[int, BadValue]:
    """Return the first row without a canonical form, counted from zero, or the number of rows, and what is wrong with it."""
    good, bad, fault = 0, raw.num_rows + 1, BadValue("")
    while bad - good > 1:  # the first `good` rows are good together, the first `bad` are not
        half = (good + bad) // 2
        try:
            canonical(raw.slice(good, half - good), wanted, sources, file)
            good = half
        except BadValue as error:
            bad, fault = half, error
    return good, fault


def arrow_type(column: Column) -> Any:
    """Return the type of a column's canonical form."""
    return pa.int64() if column.whole else pa.float64()


def _column(raw: Any, column: Column, source: Source | None, file: Path) -> Any:
    if source is None:
        return pa.nulls(raw.num_rows, arrow_type(column))
    values = raw.column(source.column) if source.key is None else _field(raw.column(source.column), source.key)
    if column.whole and pa.types.is_floating(values.type):
        raise BadInput(f"{file}: {column.name} must be whole numbers, since floats lose digits; got {values.type}")
    try:
        return values.cast(arrow_type(column))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadValue(f"{column.name} must be {'whole numbers' if column.whole else 'numbers'}; {error}") from None


def _field(values: Any, key: str) -> Any:
    """Return an entry of records that are structs or texts of Python dictionaries such as `{'cpus': 0.1}`."""
    if pa.types.is_struct(values.type):
        if values.type.get_field_index(key) < 0:
            raise BadValue(f"records must have the entry {key!r}; got {values.type}")
        return pc.struct_field(values, key)
    found = pc.extract_regex(values, rf"^\{{(?:.*[ ,])?'{key}': (?P<value>[^,}}\s]+)[^{{]*\}}$")
    if found.null_count > values.null_count:
        raise BadValue(f"records must read {{'{key}': number, ...}}")
    text = pc.struct_field(found, "value")
    return pc.if_else(pc.equal(text, pa.scalar("None")), pa.scalar(None, pa.string()), text)


# Files as streams, unpacked on the way.


def packed(file: Path) -> bool:
    """Return whether a file is compressed with gzip."""
    with file.open("rb") as stream:
        return stream.read(2) == GZIP


def open_bytes(file: Path) -> Any:
    """Return an Arrow stream of the file's text as bytes."""
    stream = pa.OSFile(str(file), "rb")
    return pa.CompressedInputStream(stream, "gzip") if packed(file) else stream


def open_text(file: Path) -> TextIO:
    """Return the file's text for Python; bytes that are not UTF-8 become surrogates."""
    if packed(file):
        return gzip.open(file, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return file.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def is_utf8(text: str) -> bool:
    """Return whether text from `open_text` was UTF-8."""
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


def cut_off(file: Path, rows: int, error: BaseException) -> BadInput:
    """Return the error of a file that cannot be read beyond some row."""
    return BadInput(f"{file}: is cut off or damaged, somewhere after row {rows}; {error}")
