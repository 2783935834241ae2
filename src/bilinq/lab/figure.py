"""A figure of the lab: what it simulates, the table of its numbers, what it draws and claims; options of a report."""

from __future__ import annotations

import csv
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from bilinq.arrays import Array, count, one_of
from bilinq.experiments.record import Band, Record
from bilinq.experiments.run import Planned, PlannedRun
from bilinq.lab.presets import PRESETS, Preset

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from bilinq.experiments.record import Kept
    from bilinq.experiments.settings import Setting
    from bilinq.lab.claims import Claim
    from bilinq.policies import Policy


T = TypeVar("T")

FULL, QUICK = 100, 5  # default number of replications: of a full report, and of a quick one


@dataclass(frozen=True)
class ReportOptions:
    """The settings of a whole report.

    Parameters
    ----------
    preset : "published", "paper" or "calibrated"
        Whose settings the figures show; see `bilinq.lab.presets`. Claims are judged under all three, whatever is shown.
        The default is what the authors ran, since their figures and statements come from it.
    replications : int, optional
        Random instances behind every mean; the default is 100, or 5 if `quick`.
    quick : bool
        Fewer replications, slots and points, for a first impression in seconds.
    seed : int
        The same seed gives the same bytes of data.
    """

    preset: str = "published"
    replications: int | None = None
    quick: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        one_of("preset", self.preset, tuple(PRESETS))
        count("seed", self.seed, least=0)
        if self.replications is not None:
            count("replications", self.replications)

    @property
    def count(self) -> int:
        """Number of replications."""
        return self.replications or self.pick(FULL, quick=QUICK)

    @property
    def shown(self) -> Preset:
        """The preset that figures show."""
        return PRESETS[self.preset]

    def pick(self, full: T, *, quick: T) -> T:
        """Return `quick` for a quick report and `full` otherwise."""
        return quick if self.quick else full

    def run(
        self, setting: Setting, policy: Policy, slots: int, *, by_class: bool = False, most: int | None = None
    ) -> PlannedRun:
        """Return the run of a policy in a setting with these replications, `most` of them at most, and this seed.

        Runs with the same setting meet the same problems and arrivals, so that their replications are pairs.
        """
        keep: Kept = "class paths" if by_class else "paths"
        replications = min(self.count, most or self.count)
        return PlannedRun(setting, policy, slots=slots, replications=replications, seed=self.seed, keep=keep)


Cell = str | int | float


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of named cells; tables are joined with `+`, and a missing cell is empty.

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

    def average(self, column: str = "mean") -> float:
        """Return the mean of a column over all rows."""
        return float(self.numbers(column).mean())

    def csv(self) -> str:
        """Return the table as CSV, numbers with six significant digits."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(row.get(name, "")) for name in names] for row in self.rows)
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


def _text(cell: Cell) -> str:
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.6g}"
    return str(cell)


Records: TypeAlias = Mapping[str, Record]  # the records of a figure's runs, by the names it gave them


@dataclass(frozen=True)
class Figure(ABC):
    """One figure of the report; each has a module in `bilinq.lab.figures` and an entry in the list `FIGURES` there.

    Attributes
    ----------
    name : str
        The name on the command line and in file names.
    title : str
        The heading in the report: a few words.
    where : str
        The figure or section of the paper it belongs to.
    see : str
        One sentence that says what to look at.
    horizon : (int, int)
        Slots of its simulations: in a full report, and in a quick one.
    options : ReportOptions
    """

    name: ClassVar[str]
    title: ClassVar[str]
    where: ClassVar[str]
    see: ClassVar[str] = ""
    horizon: ClassVar[tuple[int, int]] = (500, 100)
    options: ReportOptions

    @property
    def slots(self) -> int:
        """Slots of the simulations, T."""
        full, quick = self.horizon
        return self.options.pick(full, quick=quick)

    def runs(self) -> Mapping[str, Planned]:
        """Return the simulations that the figure needs, by name; make them with `self.options.run`. Default: none."""
        return {}

    @abstractmethod
    def table(self, records: Records) -> Table:
        """Return all numbers that the drawing shows."""

    @abstractmethod
    def draw(self, table: Table) -> Drawing:
        """Draw the table and nothing else; start with `style.panels`."""

    @abstractmethod
    def caption(self, table: Table) -> str:
        """Return two or three sentences that describe what the figure shows, with the numbers of this run."""

    def claims(self, records: Records) -> list[Claim]:
        """Return the claims of the paper that these runs test; the default is none."""
        return []
