"""Tables and progress bars that commands print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from bilinq.simulation import Interval

PATIENCE = 2.0  # seconds after which a progress bar appears

MEASURES = {
    "regret": "regret at the end",
    "queue": "jobs in the system",
    "holding_cost": "holding cost per slot",
    "reward": "reward per slot, expected",
    "observed": "reward per slot, observed",
    "wait": "wait, slots",
    "wait_p50": "  median",
    "wait_p95": "  95 %",
    "wait_p99": "  99 %",
    "sojourn": "time in system, slots",
    "sojourn_p50": "  median",
    "sojourn_p95": "  95 %",
    "sojourn_p99": "  99 %",
}
"""Labels of the entries of a summary; other entries are shown by their names."""


def summary_table(title: str, summaries: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Return measures (rows) of one or more runs (columns)."""
    table = Table(title=title, caption="mean ± half the width of its 95 % interval")
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    for measure in next(iter(summaries.values())):
        table.add_row(MEASURES.get(measure, measure), *(str(summary[measure]) for summary in summaries.values()))
    return table


def show(table: Table) -> None:
    """Print a table on standard output; in a file or a pipe it is as wide as it needs to be."""
    console = Console()
    if not console.is_terminal:
        wanted = Measurement.get(console, console.options.update(width=10_000), table).maximum
        console.width = max(console.width, wanted)
    console.print(table)


def show_rows(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, caption: str = "", left: int = 1
) -> None:
    """Print a table whose first `left` columns are aligned to the left, and the others to the right."""
    table = Table(title=title or None, caption=caption or None)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right")
    for row in rows:
        table.add_row(*row)
    show(table)


class Bar:
    """A progress bar on standard error, shown once the work has taken two seconds, on terminals only.

    Use it as a context, and call it with the work done and the total.
    """

    def __init__(self, text: str, patience: float = PATIENCE) -> None:
        self._text, self._patience = text, patience
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if not self._console.is_terminal or time.monotonic() - self._began < self._patience:
                return
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(self._text, total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
