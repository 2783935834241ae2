"""CSV shards: BigQuery's exports with dotted headers, the joined sample with dictionaries as text, small extracts."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from bilinq.errors import BadInput
from bilinq.traces.streams import BLOCK, cut_off, is_utf8, open_bytes, open_text
from bilinq.traces.tables import BadValue, Column, Source, arrow_type, canonical, first_bad, locate

CHUNK = 4096
"""Rows looked at together in the search for a bad one."""
NULLS = frozenset(arrow_csv.ConvertOptions().null_values or ())


def read(file: Path, wanted: Collection[Column]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file; fields in quotes may go over several lines."""
    sources = locate(wanted, header(file), file)
    rows = 0
    try:
        for raw in _open(file, wanted, sources):
            yield canonical(raw, wanted, sources, file)
            rows += raw.num_rows
    except (pa.ArrowInvalid, BadValue) as error:
        raise _explained(file, wanted, sources, error) from None
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


def _open(file: Path, wanted: Collection[Column], sources: Mapping[str, Source]) -> Any:
    types = {
        sources[column.name].column: arrow_type(column) if sources[column.name].key is None else pa.string()
        for column in wanted
        if column.name in sources
    }
    return arrow_csv.open_csv(
        open_bytes(file),
        read_options=arrow_csv.ReadOptions(block_size=BLOCK),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(include_columns=list(types), column_types=types),
    )


def _explained(file: Path, wanted: Collection[Column], sources: Mapping[str, Source], error: Exception) -> BadInput:
    """Return the error that names the first bad row, found by reading the file again, slowly."""
    with open_text(file) as text:
        reader = csv.reader(text)
        names = next(reader)
        rows, done = filter(None, reader), 0
        try:
            while chunk := list(itertools.islice(rows, CHUNK)):
                fault = _fault(chunk, names, wanted, sources, file)
                if fault is not None:
                    return BadInput(f"{file}: row {done + fault[0] + 1}: {fault[1]}")
                done += len(chunk)
        except (OSError, EOFError, csv.Error) as broken:
            return cut_off(file, done, broken)
    return BadInput(f"{file}: cannot be read; {error}")


def _fault(
    chunk: list[list[str]], names: list[str], wanted: Collection[Column], sources: Mapping[str, Source], file: Path
) -> tuple[int, str] | None:
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
