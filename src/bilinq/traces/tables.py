"""The tables of cluster-data-2019: their columns, and how files spell them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from bilinq.arrays import one_of
from bilinq.errors import BadInput


@dataclass(frozen=True)
class Column:
    """One column: its name here, whether it contains whole numbers, its spellings in files, and whether it is required.

    Spellings are tried in order; a dot leads into a record, which a file may have as a column of that name, as a struct, as
    a JSON object or as the text of a Python dictionary.
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


def _sizes(record: str) -> tuple[Column, ...]:
    return tuple(Column(name, False, (f"{record}.{name}", name)) for name in ("cpus", "memory"))


GZIP, PARQUET, BYTE_ORDER_MARK = b"\x1f\x8b", b"PAR1", b"\xef\xbb\xbf"  # the first bytes of files

TIME, COLLECTION, MACHINE = _whole("time"), _whole("collection_id"), _whole("machine_id")
CLUSTER = _whole("cluster", required=False)  # the cell, counted from one; only the joined sample has it
CPI = Column("cycles_per_instruction", False, ("cycles_per_instruction", "CPI"))

TABLES: dict[str, tuple[Column, ...]] = {
    "machine_events": (TIME, MACHINE, _whole("type", required=False), *_sizes("capacity")),
    "collection_events": (TIME, _whole("type", "type", "collections_events_type"), COLLECTION, CLUSTER),
    "instance_events": (
        TIME,
        _whole("type", "type", "instance_events_type", required=False),
        COLLECTION,
        _whole("instance_index", required=False),
        *_sizes("resource_request"),
        CLUSTER,
    ),
    "instance_usage": (_whole("start_time", required=False), COLLECTION, MACHINE, CPI, CLUSTER),
}
"""The columns of each table in the order in which `batches` yields them."""

JOINED = ("instance_events_type", "collections_events_type", "cycles_per_instruction")
"""Columns that only a file with the rows of three tables joined has together."""


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of `table`."""
    return TABLES[one_of("table", table, tuple(TABLES))]


def locate(wanted: Collection[Column], names: Collection[str], file: object) -> dict[str, Source]:
    """Return where a file with columns `names` keeps each of the `wanted` columns that it has.

    A required column that is missing, or a wanted one that is there twice, is a `BadInput`.
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
