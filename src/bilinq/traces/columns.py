"""Arrow columns in canonical form: whole numbers as int64, others as float64, records taken apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bilinq.errors import BadInput
from bilinq.traces.tables import Column, Source


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
