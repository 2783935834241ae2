"""What the command line shows to people: Rich tables, and a progress bar for what takes long."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from bilinq.allocation import Allocation
from bilinq.experiments.sweep import Result
from bilinq.simulation import Interval

PATIENCE = 2.0
"""Seconds after which a progress bar appears."""

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
"""What the entries of a summary are called; others keep their names."""

SWEPT = ("regret", "queue", "holding_cost", "wait")
"""What a table of a sweep shows."""


def allocation_table(request: Mapping[str, Any], answer: Allocation) -> Table:
    """Return the servers of each class (columns) that each job class (rows) gets, with sums and prices."""
    table = Table(title="Expected allocation", caption=f"residual {answer.residual:.1e}", show_footer=True)
    table.add_column("job class", footer="used\nof\nprice")
    table.add_column("queue", justify="right")
    used = answer.expected.sum(axis=0)
    for j, servers in enumerate(request["capacity"]):
        footer = f"{used[j]:.3f}\n{servers:g}\n{answer.price[j]:.3f}"
        table.add_column(f"server {j + 1}", footer, justify="right")
    table.add_column("sum", f"{used.sum():.3f}\n{sum(request['capacity']):g}", justify="right")
    for i, row in enumerate(answer.expected):
        cells = [f"{y:.3f}" if y else "·" for y in row]
        table.add_row(f"job {i + 1}", f"{request['queue'][i]:g}", *cells, f"{row.sum():.3f}")
    return table


def summary_table(title: str, summaries: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Return measures (rows) of one or more runs (columns)."""
    table = Table(title=title, caption="mean ± half the width of its 95 % interval")
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    for measure in next(iter(summaries.values())):
        table.add_row(MEASURES.get(measure, measure), *(str(summary[measure]) for summary in summaries.values()))
    return table


def sweep_table(title: str, results: Sequence[Result]) -> Table:
    """Return cells (rows) with what the grid varies and what they measured."""
    first = results[0].cell
    table = Table(title=title, caption="mean ± half the width of its 95 % interval")
    table.add_column("policy", overflow="fold", min_width=12)
    for name in first.varied:
        table.add_column(name.removeprefix("problem.").removeprefix("policy."), justify="right")
    for name in SWEPT:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    for result in results:
        summary = result.summary()
        varied = [str(value) for value in result.cell.varied.values()]
        table.add_row(result.cell.policy, *varied, *(str(summary[name]) for name in SWEPT))
    return table


def show(table: Table) -> None:
    """Print a table on standard output; into a file or a pipe it is never cut to a width."""
    console = Console()
    if not console.is_terminal:
        console.width = max(
            console.width, Measurement.get(console, console.options.update(width=10_000), table).maximum
        )
    console.print(table)


class Bar:
    """A progress bar on standard error, shown once the work has taken two seconds, on terminals only.

    Use it as a context; call it with the work done and the work in all.
    """

    def __init__(self, text: str, patience: float = PATIENCE) -> None:
        self._text, self._patience = text, patience
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Show how far the work is."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
