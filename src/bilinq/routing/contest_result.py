"""The result of a contest: what every contestant reached at equal waits, and paired differences."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import Array
from bilinq.display import data_frame
from bilinq.errors import BadInput
from bilinq.jsonable import to_json
from bilinq.routing.comparisons import Comparison, compare, mean_of
from bilinq.routing.tuning import TuningOutcome
from bilinq.simulation.records import Interval

KIND = "contest 1"
GOALS = {"wait": "wait", "p95": "wait_p95", "sojourn": "sojourn"}
"""What may be made equal: the mean wait, its 95 % quantile, the mean time in the system."""
MEASURES = {
    "reward": "reward per job", "wait": "wait", "wait_p95": "wait, 95 %", "wait_p99": "wait, 99 %",
    "sojourn": "time in system", "fairness": "fairness", "growth": "queue growth",
}  # fmt: skip
"""The measures of the table and of differences, with their titles."""
OTHERS = ("sojourn_p95", "worst_class", "growth_error", "complete", "seconds_per_decision")
"""Measures that are kept and summarised, without differences."""
MAIN = 6  # columns of the table that are always shown
WHOLE = "The whole run counts, from the first job on: what learning costs is included."


@dataclass(frozen=True, eq=False, kw_only=True)
class Standing:
    """What a contestant reached.

    Attributes
    ----------
    name, router : str
    number : str or None
        The setting that was tuned, and its `value`.
    outcome : TuningOutcome
    reached : float
        The measure that was tuned, on the tuning seeds; NaN if nothing was tuned.
    sees_rewards : bool
        Whether it knows rewards in advance: a yardstick, not a competitor.
    samples : dict of (R,) arrays
        Measures by name, an entry for each test seed.
    curve : tuple of dicts
        Mean measures at other values of the number, by value, if they were asked for.
    """

    name: str
    router: str
    number: str | None
    value: float | None
    outcome: TuningOutcome
    reached: float
    sees_rewards: bool
    samples: Mapping[str, Array]
    curve: tuple[Mapping[str, float], ...] = ()

    @property
    def tuned(self) -> bool:
        """Whether it waits as long as wanted."""
        return self.outcome is TuningOutcome.TUNED

    def mean(self, measure: str) -> Interval:
        """Return the mean of a measure over test seeds, with its 95 % interval."""
        return mean_of(self.samples[measure])

    @property
    def note(self) -> str:
        """How the wait was reached, or what came nearest; and whether it sees rewards."""
        text = self.outcome.value
        if not self.tuned and self.number is not None:
            text += f" ({self.reached:.3g})"
        return f"{text}; sees rewards" if self.sees_rewards else text


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Contest:
    """The result of `contest`: standings in the given order, and their paired differences to a reference.

    Attributes
    ----------
    standings : tuple of Standing
    reference : str
        The name of the contestant that others are compared with.
    wait : float
        What the `measure` of waiting was tuned to, up to the relative `tolerance`.
    seeds, tuning_seeds : tuples of int
        They have no seed in common.
    about : dict
        Facts about the workload and the run.
    """

    standings: tuple[Standing, ...]
    reference: str
    wait: float
    measure: str
    tolerance: float
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Standing:
        for one in self.standings:
            if one.name == name:
                return one
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(one.name == name for one in self.standings)

    def __iter__(self) -> Iterator[Standing]:
        return iter(self.standings)

    @cached_property
    def differences(self) -> dict[str, dict[str, Comparison]]:
        """Differences to the reference, by measure and contestant; Holm's correction is over the contestants."""
        return {
            measure: {
                one.name: one
                for one in compare(measure, {s.name: s.samples[measure] for s in self.standings}, self.reference)
            }
            for measure in MEASURES
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each contestant: means with the ends of their intervals, and the difference in reward."""
        return [self._row(one) for one in self.standings]

    def _row(self, one: Standing) -> dict[str, Any]:
        row: dict[str, Any] = {
            "contestant": one.name, "number": one.number, "value": one.value, "outcome": one.outcome.value,
            "reached": one.reached, "sees_rewards": one.sees_rewards,
        }  # fmt: skip
        for name in (*MEASURES, *OTHERS):
            found = one.mean(name)
            row |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
        versus = self.differences["reward"].get(one.name)
        if versus is not None:
            gap = versus.difference
            row |= {"difference": gap.mean, "difference_low": gap.low, "difference_high": gap.high}
            row |= {"difference_p": versus.p, "verdict": self.verdict(one.name)}
        return row

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the titles and the lines of a table for people; the first `MAIN` columns have what matters most."""
        main = ["", MEASURES["reward"], f"less {self.reference}", "reward", "wait", "how it was reached"]
        rest = [title for name, title in MEASURES.items() if name not in ("reward", "wait")]
        return [*main, *rest, "s / decision"], [self._line(one) for one in self.standings]

    def _line(self, one: Standing) -> list[str]:
        cells = {measure: _cell(one.mean(measure)) for measure in MEASURES}
        reward, wait = cells.pop("reward"), cells.pop("wait")
        versus = self.differences["reward"].get(one.name)
        gap = ["reference", ""] if versus is None else [_cell(versus.difference), self.verdict(one.name)]
        main = [one.name, reward, *gap, wait, self._note(one)]
        return [*main, *cells.values(), f"{one.mean('seconds_per_decision').mean:.1e}"]

    def verdict(self, name: str) -> str:
        """Return whether a contestant earns more or less than the reference, and at which wait if one was not tuned."""
        text, other = self.differences["reward"][name].verdict, self[self.reference]
        if self[name].tuned and other.tuned:
            return text
        gap = self[name].mean(GOALS[self.measure]).mean - other.mean(GOALS[self.measure]).mean
        return f"{text}, at a {'shorter' if gap < 0.0 else 'longer'} wait"

    def _note(self, one: Standing) -> str:
        """Return how the wait was reached, and whether it differs on the test seeds."""
        found = one.mean(GOALS[self.measure])
        off = abs(found.mean / self.wait - 1.0) > self.tolerance and not found.low <= self.wait <= found.high
        return f"{one.note}; {found.mean:.3g} in the test" if one.tuned and off else one.note

    @property
    def title(self) -> str:
        """What was compared, in a line."""
        goal = {"wait": "mean wait", "p95": "95 % of waits below", "sojourn": "mean time in system"}[self.measure]
        return f"{len(self.standings)} contestants, {goal} {self.wait:g}, {len(self.seeds)} seeds"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers mean."""
        return (
            f"Means over {len(self.seeds)} seeds ± half of a 95 % t interval; differences are paired by seed.",
            f'"more" and "less" are at 5 % after Holm\'s correction for {len(self.standings) - 1} comparisons.',
            f"Numbers were tuned on {len(self.tuning_seeds)} other seeds to within {self.tolerance:.0%}.",
            WHOLE,
            "Fairness is Jain's index of the mean waits of job classes; queue growth is in jobs per unit of time.",
        )

    def to_pandas(self) -> Any:
        """Return `rows` as a DataFrame; needs pandas."""
        return data_frame(self.rows())

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """Return `rows` as CSV text, and write it to `path` if there is one."""
        rows, text = self.rows(), io.StringIO()
        writer = csv.DictWriter(text, max(rows, key=len), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return _written(text.getvalue(), path)

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """Return summaries and differences as JSON text, and write it to `path` if there is one."""
        differences = [
            {"contestant": one.name, "measure": one.measure, "difference": one.difference, "p": one.p,
             "verdict": one.verdict}
            for named in self.differences.values() for one in named.values()
        ]  # fmt: skip
        found = self._facts() | {"contestants": self.rows(), "differences": differences, "notes": self.notes}
        return _written(to_json(found, 2) + "\n", path)

    def _facts(self) -> dict[str, Any]:
        names = ("reference", "wait", "measure", "tolerance", "seeds", "tuning_seeds", "about")
        return {name: getattr(self, name) for name in names}

    def save(self, path: str | PathLike[str]) -> None:
        """Write all samples to a JSON file, which `load` reads."""
        standings = [asdict(one) | {"outcome": one.outcome.name} for one in self.standings]
        _written(to_json({"bilinq": KIND, **self._facts(), "standings": standings}) + "\n", path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Contest:
        """Return the contest of a file that `save` wrote."""
        try:
            found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            if found.pop("bilinq") != KIND:
                raise ValueError(f"it is not of the kind {KIND!r}")
            standings = tuple(_standing(one) for one in found.pop("standings"))
            found |= {name: tuple(found[name]) for name in ("seeds", "tuning_seeds")}
            return cls(standings=standings, **found)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read; {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{path}: is not a complete contest; {error}") from None

    def plot(self, ax: Any = None) -> Any:
        """Draw reward against waiting, with 95 % intervals, and curves if there are any; return the Matplotlib axes."""
        from bilinq.routing.contest_report import draw

        return draw(self, ax)

    def report(self, path: str | PathLike[str]) -> None:
        """Write an HTML page with the figure, the table and the differences; needs Matplotlib."""
        from bilinq.routing.contest_report import page

        _written(page(self), path)

    def __repr__(self) -> str:
        titles, lines = self.table()
        short = [line[:MAIN] for line in (titles, *lines)]
        widths = [max(len(row[k]) for row in short) for k in range(len(short[0]))]
        rows = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in short]
        return "\n".join([f"Contest: {self.title}", *rows])

    def _repr_html_(self) -> str:
        return html_table(self) + "".join(f"<p>{escape(note)}</p>" for note in self.notes)


def html_table(contest: Contest) -> str:
    """Return the table as HTML."""
    titles, lines = contest.table()
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    rows = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>" for line in lines)
    caption = f"<caption>{escape(contest.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _standing(given: dict[str, Any]) -> Standing:
    samples = {name: np.array(values, np.float64) for name, values in given.pop("samples").items()}
    reached = given.pop("reached")
    return Standing(
        samples=samples, outcome=TuningOutcome[given.pop("outcome")], curve=tuple(given.pop("curve")),
        reached=np.nan if reached is None else reached, **given,
    )  # fmt: skip


def _cell(found: Interval) -> str:
    """Return a mean with as many digits as its interval allows."""
    half = found.high - found.mean
    if not (np.isfinite(half) and half > 0.0):
        return f"{found.mean:.4g}" if np.isfinite(found.mean) else "?"
    digits = max(0, min(1 - int(np.floor(np.log10(half))), 6))
    return f"{found.mean:.{digits}f} ± {half:.{digits}f}"


def _written(text: str, path: str | PathLike[str] | None) -> str:
    if path is not None:
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{path}: cannot be written; {error.strerror}") from None
    return text
