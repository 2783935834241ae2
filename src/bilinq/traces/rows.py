"""Rows of a table on their way to sums: each batch is sifted, and whatever drops out is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import BadInput
from bilinq.traces.shards import read

MISSING = -(2**63)
"""Stands for a whole number that is missing."""
CELLS = "abcdefgh"
"""The cells of cluster-data-2019; the joined sample numbers them from one."""


class Rows:
    """What is left of one batch of a file."""

    def __init__(self, file: Path, batch: Any, left_out: Counter[str]) -> None:
        self.file, self._batch, self._left_out = file, batch, left_out

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def whole(self, name: str) -> IntArray:
        """Return a column of whole numbers (M,), `MISSING` where there is none."""
        column = self._batch.column(name)
        return np.asarray(pc.fill_null(column, MISSING).to_numpy(zero_copy_only=False))

    def number(self, name: str) -> Array:
        """Return a column of floats (M,), NaN where there is none."""
        return np.asarray(self._batch.column(name).to_numpy(zero_copy_only=False))

    def lacks(self, *names: str) -> bool:
        """Tell whether one of the columns is empty in a batch that has rows."""
        return len(self) > 0 and any(self._batch.column(name).null_count == len(self) for name in names)

    def keep(self, good: BoolArray, otherwise: str) -> None:
        """Drop the rows that are not `good` (M,) and count them as `otherwise`."""
        dropped = int(good.size - np.count_nonzero(good))
        if dropped:
            self._left_out[otherwise] += dropped
            self._batch = self._batch.filter(pa.array(good))

    def keep_known(self, *names: str, noun: str) -> None:
        """Drop the rows in which one of the columns is missing."""
        for name in names:
            self.keep(self.whole(name) != MISSING, f"{noun} without {name}")


def rows(file: Path, table: str, left_out: Counter[str], cell: str | None, cells: set[int]) -> Iterator[Rows]:
    """Yield the rows of a file, of one cell where it says which cell they are from; `cells` collects those met."""
    for batch in read(file, table):
        part = Rows(file, batch, left_out)
        if "cluster" in batch.schema.names and not part.lacks("cluster"):
            cells |= set(np.unique(part.whole("cluster")).tolist())
            _keep_cell(part, cell, cells)
        yield part


def _keep_cell(part: Rows, cell: str | None, cells: set[int]) -> None:
    if cell is not None:
        part.keep(part.whole("cluster") == CELLS.index(cell) + 1, "rows of other cells")
    elif len(cells) > 1:
        named = ", ".join(CELLS[k - 1] if 0 < k <= len(CELLS) else str(k) for k in sorted(cells))
        raise BadInput(f"cell must be given where a file holds several; {part.file} holds {named}")
