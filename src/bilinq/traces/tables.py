"""Tables with named columns, as rows of text or numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bilinq.arrays import one_of
from bilinq.errors import BadInput


@dataclass(frozen=True)
class Column:
    """One column: its name here, whether it holds whole numbers, its spellings in files, and whether it must be there.

    Spellings are tried in order; a dot leads into a record, whether the file has it as a column of that name, as a struct,
    as a JSON object or as the text of a Python dictionary.
    """

    name: str
    whole: bool
    spellings: tuple[str, ...]
    required: bool = True


class Source(NamedTuple):
    """Where a file keeps a column: under `column`, and within it under `key` if it is a record."""

    column: str
    key: str | None = None


def _whole(name: str, *spellings: str, required: bool = True) -> Column:
    return Column(name, True, spellings or (name,), required)


def _size(name: str, record: str) -> Column:
    return Column(name, False, (f"{record}.{name}", name))


CLUSTER = _whole("cluster", required=False)
"""The cell, counted from one; only the joined sample has it."""

TABLES: dict[str, tuple[Column, ...]] = {
    "machine_events": (
        _whole("time"),
        _whole("machine_id"),
        _whole("type", required=False),
        _size("cpus", "capacity"),
        _size("memory", "capacity"),
    ),
    "collection_events": (
        _whole("time"),
        _whole("type", "type", "collections_events_type"),
        _whole("collection_id"),
        CLUSTER,
    ),
    "instance_events": (
        _whole("time"),
        _whole("type", "type", "instance_events_type", required=False),
        _whole("collection_id"),
        _whole("instance_index", required=False),
        _size("cpus", "resource_request"),
        _size("memory", "resource_request"),
        CLUSTER,
    ),
    "instance_usage": (
        _whole("start_time", required=False),
        _whole("collection_id"),
        _whole("machine_id"),
        Column("cycles_per_instruction", False, ("cycles_per_instruction", "CPI")),
        CLUSTER,
    ),
}
"""The columns of each table in the order in which `batches` yields them."""

JOINED = ("instance_events_type", "collections_events_type", "cycles_per_instruction")
"""Columns that only a file with the rows of three tables joined has together."""


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of `table`."""
    return TABLES[one_of("table", table, tuple(TABLES))]


def locate(wanted: Collection[Column], names: Collection[str], file: object) -> dict[str, Source]:
    """Return where a file with columns `names` keeps each of the `wanted` columns that it has.

    Raises
    ------
    BadInput
        If a required column is missing, or a column that is wanted is there twice.
    """
    found = {}
    for column in wanted:
        source = _source(column, names)
        if source is not None:
            found[column.name] = source
        elif column.required:
            spelt = " or ".join(map(repr, column.spellings))
            raise BadInput(f"{file}: missing column {spelt}; it has {_listed(names)}")
    for source in found.values():
        if sum(name == source.column for name in names) > 1:
            raise BadInput(f"{file}: columns must have names of their own; got {source.column!r} twice")
    return found


def _source(column: Column, names: Collection[str]) -> Source | None:
    for spelling in column.spellings:
        record, dot, key = spelling.partition(".")
        if spelling in names:
            return Source(spelling)
        if dot and record in names:
            return Source(record, key)
    return None


def _listed(names: Collection[str], most: int = 12) -> str:
    shown = [name or "''" for name in names]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


class BadValue(Exception):
    """A value does not fit its column; whoever knows the file finds the row."""


def canonical(raw: Any, wanted: Collection[Column], sources: Mapping[str, Source], file: Path) -> pa.RecordBatch:
    """Return the batch of `wanted` columns from a batch as the file has it; what it lacks is null."""
    arrays = [_column(raw, column, sources.get(column.name), file) for column in wanted]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in wanted])


def first_bad(raw: Any, wanted: Collection[Column], sources: Mapping[str, Source], file: Path) -> tuple[int, BadValue]:
    """Return the first row without a canonical form, counted from zero, and what is wrong with it.

    The number of rows is returned where all are good.
    """
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
    values = raw.column(source.column)
    if source.key is not None:
        values = _field(values, source.key)
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
