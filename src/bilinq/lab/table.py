"""The numbers behind a figure: tidy rows, one CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilinq.arrays import Array
from bilinq.experiments import Band, Record

Cell = str | int | float


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of named cells; tables are joined with `+`, and a cell that a row lacks is empty.

    Examples
    --------
    >>> table = Table([{"policy": "SABR", "V": 10.0, "mean": 1 / 3}, {"policy": "UGDA-OL", "V": 10.0, "mean": 2.0}])
    >>> table.where(policy="UGDA-OL").numbers("mean")
    array([2.])
    >>> print(table.csv(), end="")
    policy,V,mean
    SABR,10,0.333333
    UGDA-OL,10,2
    """

    rows: Sequence[Mapping[str, Any]]

    def __add__(self, other: Table) -> Table:
        return Table([*self.rows, *other.rows])

    def where(self, **cells: Cell) -> Table:
        """Return the rows that have these cells."""
        return Table([row for row in self.rows if all(row.get(name) == cell for name, cell in cells.items())])

    def numbers(self, column: str) -> Array:
        """Return a column as floats (rows,)."""
        return np.array([row[column] for row in self.rows], dtype=np.float64)

    def distinct(self, column: str) -> list[Cell]:
        """Return the different values of a column in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self.rows if column in row))

    def last(self, column: str = "mean") -> float:
        """Return a column's value in the last row."""
        return float(self.rows[-1][column])

    def csv(self) -> str:
        """Return the table as CSV, numbers with six significant digits."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_spell(row.get(name, "")) for name in names] for row in self.rows)
        return text.getvalue()


def curves(records: Mapping[str, Record], measures: Iterable[str]) -> Table:
    """Return the mean paths of some measures with their bands: columns policy, measure, slot, mean, low, high."""
    return Table([
        {"policy": policy, "measure": measure, **row}
        for policy, record in records.items()
        for measure in measures
        for row in _rows(record.band(measure))
    ])  # fmt: skip


def class_curves(records: Mapping[str, Record]) -> Table:
    """Return the mean queue of every job class over time: measure "queue_of_class", job_class counted from 1."""
    return Table([
        {"policy": policy, "measure": "queue_of_class", "job_class": i + 1, **row}
        for policy, record in records.items()
        for i in range(record.samples["queue_of_class"].shape[1])
        for row in _rows(record.band("queue_of_class", i))
    ])  # fmt: skip


def _rows(band: Band) -> Iterable[dict[str, float]]:
    columns = band.slot.tolist(), band.mean.tolist(), band.low.tolist(), band.high.tolist()
    return (dict(zip(("slot", "mean", "low", "high"), row, strict=True)) for row in zip(*columns, strict=True))


def _spell(cell: Cell) -> str:
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.6g}"
    return str(cell)
