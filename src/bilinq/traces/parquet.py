"""Parquet shards, of which only the columns that are wanted are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bilinq.errors import BadInput
from bilinq.traces.streams import cut_off
from bilinq.traces.tables import BadValue, Column, Source, canonical, first_bad, locate

ROWS = 1 << 17
"""Rows of a batch."""


def read(file: Path, wanted: Collection[Column]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file."""
    rows = 0
    try:
        with pq.ParquetFile(file) as shard:
            sources = locate(wanted, shard.schema_arrow.names, file)
            for raw in shard.iter_batches(batch_size=ROWS, columns=_leaves(sources, shard.schema_arrow)):
                try:
                    yield canonical(raw, wanted, sources, file)
                except BadValue:
                    k, fault = first_bad(raw, wanted, sources, file)
                    raise BadInput(f"{file}: row {rows + k + 1}: {fault}") from None
                rows += raw.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise cut_off(file, rows, error) from None


def _leaves(sources: dict[str, Source], schema: pa.Schema) -> list[str]:
    """Return the columns to read; of a record only the entries that are wanted."""
    return [
        f"{source.column}.{source.key}"
        if source.key is not None and pa.types.is_struct(schema.field(source.column).type)
        else source.column
        for source in sources.values()
    ]
