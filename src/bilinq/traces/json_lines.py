"""JSON-lines shards: one object a line, whole numbers often as text, nulls left out."""

import io
import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from bilinq.arrays import short
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.traces.formats import BLOCK, arrow_type, cut_off, open_bytes
from bilinq.traces.tables import BYTE_ORDER_MARK, Column

with optional_imports():
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as arrow_json

INT64 = range(-(2**63), 2**63)


def read(file: Path, wanted: Collection[Column]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of JSON lines."""
    seen, types = set(), [pa.string(), pa.int64()]
    for first, block in _blocks(file):
        for batch in _parsed(block, wanted, types) or [_line_by_line(block, first, wanted, file)]:
            seen |= {name for name in batch.schema.names if batch.column(name).null_count < batch.num_rows}
            yield batch
    for column in wanted:
        if column.required and column.whole and column.name not in seen:
            raise BadInput(f"{file}: missing key {' or '.join(map(repr, column.spellings))}; no row has it")


def _blocks(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines with the number of their first line, counted from one."""
    line, rest = 1, b""
    try:
        with open_bytes(file) as stream:
            while fresh := stream.read(BLOCK):
                if line == 1 and not rest:
                    fresh = fresh.removeprefix(BYTE_ORDER_MARK)
                text, newline, rest = (rest + fresh).rpartition(b"\n")
                if newline:
                    yield line, text + newline
                    line += text.count(b"\n") + 1
    except OSError as error:
        raise cut_off(file, line - 1, error) from None
    if rest.strip():
        yield line, rest


def _parsed(block: bytes, wanted: Collection[Column], types: list[Any]) -> list[pa.RecordBatch]:
    """Return the rows of a block, or none if a line does not fit; the type of numbers that fits moves to the front."""
    for whole in tuple(types):
        options = arrow_json.ParseOptions(explicit_schema=_schema(wanted, whole), unexpected_field_behavior="ignore")
        try:
            table = arrow_json.read_json(io.BytesIO(block), parse_options=options)
            batches = [_canonical(raw, wanted) for raw in table.to_batches()]
        except pa.ArrowInvalid:
            continue
        types.sort(key=lambda other: other != whole)
        return batches
    return []


def _schema(wanted: Collection[Column], whole: Any) -> Any:
    """Return the schema of the wanted keys in all their spellings, whole numbers with the type `whole`."""
    flat: dict[str, Any] = {}
    records: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for column in wanted:
        for spelling in column.spellings:
            record, dot, key = spelling.rpartition(".")
            (records[record] if dot else flat)[key] = whole if column.whole else pa.float64()
    nested = {name: pa.struct(list(fields.items())) for name, fields in records.items()}
    return pa.schema(list((flat | nested).items()))


def _canonical(raw: Any, wanted: Collection[Column]) -> pa.RecordBatch:
    arrays = []
    for column in wanted:
        found = [pc.struct_field(raw.column(path[0]), path[1:]) if path[1:] else raw.column(path[0])
                 for path in (spelling.split(".") for spelling in column.spellings)]  # fmt: skip
        arrays.append(pc.coalesce(*found).cast(arrow_type(column)))
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in wanted])


def _line_by_line(block: bytes, first: int, wanted: Collection[Column], file: Path) -> pa.RecordBatch:
    """Return the rows of a block, parsed one by one; raise an error that names the first bad one."""
    rows = []
    for number, line in enumerate(block.splitlines(), first):
        if not line.strip():
            continue
        try:
            rows.append(_row(line, wanted))
        except ValueError as error:
            raise BadInput(f"{file}: row {number}: {error}") from None
    columns = {c.name: pa.array([row[c.name] for row in rows], arrow_type(c)) for c in wanted}
    return pa.RecordBatch.from_pydict(columns)


def _row(line: bytes, wanted: Collection[Column]) -> dict[str, int | float | None]:
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8 text; {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON object; {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"must be a JSON object; got {short(values)}")
    return {column.name: _number(column, _value(values, column)) for column in wanted}


def _value(values: dict[str, Any], column: Column) -> Any:
    for spelling in column.spellings:
        found: Any = values
        for key in spelling.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            return found
    return None


def _number(column: Column, value: Any) -> int | float | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | (int if column.whole else float)):
            raise ValueError
        number = int(value) if column.whole else float(value)
        if column.whole and number not in INT64:
            raise ValueError
    except ValueError:
        kind = "a whole number of 64 bits" if column.whole else "a number"
        raise ValueError(f"{column.name} must be {kind}; got {short(value)}") from None
    return number
