"""Times of calls, and reports: tables for people, numbers for programs, and the bounds that they must meet."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bound:
    """A measured value and its limit: a lower limit if `least`, else an upper limit."""

    what: str
    value: float
    limit: float
    least: bool

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.least else "<="
        return f"{'ok  ' if self.met else 'MISS'} {self.what}: {self.value:.3g} ({sign} {self.limit:g})"


@dataclass
class Report:
    """One benchmark: a table and its bounds."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)

    def row(self, *cells: Any) -> None:
        """Add a row."""
        self.rows.append(cells)

    def at_least(self, what: str, value: float, limit: float) -> None:
        """Add the bound that `value` is at least `limit`."""
        self.bounds.append(Bound(what, float(value), limit, least=True))

    def at_most(self, what: str, value: float, limit: float) -> None:
        """Add the bound that `value` is at most `limit`."""
        self.bounds.append(Bound(what, float(value), limit, least=False))

    def plain(self) -> dict[str, Any]:
        """Return the numbers for a JSON file."""
        return {
            "name": self.name,
            "columns": self.columns,
            "rows": [list(row) for row in self.rows],
            "bounds": [{"what": b.what, "value": b.value, "limit": b.limit, "met": b.met} for b in self.bounds],
        }

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"| {' | '.join(self.columns)} |", f"|{'|'.join(' --- ' for _ in self.columns)}|"]
        lines += [f"| {' | '.join(_shown(cell) for cell in row)} |" for row in self.rows]
        return "\n".join(lines)


def _shown(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def best_seconds(
    call: Callable[[], object], budget: float = 0.5, repeats: int = 3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of one call: the smallest mean over repeats that together take about `budget` seconds.

    The smallest mean depends least on other load of the machine. `clock=time.process_time` measures CPU time.
    """
    began = clock()
    call()
    once = clock() - began
    number = max(1, int(budget / repeats / max(once, 1e-7)))
    best = float("inf")
    for _ in range(repeats):
        began = clock()
        for _ in range(number):
            call()
        best = min(best, (clock() - began) / number)
    return best


def side_by_side(
    calls: Mapping[str, Callable[[], object]], repeats: int = 10, budget: float = 0.05
) -> dict[str, float]:
    """Return the smallest seconds of each call over `repeats`; calls alternate, so all see the same load of the machine."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            best[name] = min(best[name], best_seconds(call, budget, repeats=1))
    return best
