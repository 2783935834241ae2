"""What a benchmark returns: rows for people and numbers for programs, with the bounds they must meet."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bound:
    """A measured ratio or number and what it must be; `least` or `most` of it."""

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
        """Demand that `value` is at least `limit`."""
        self.bounds.append(Bound(what, float(value), limit, least=True))

    def at_most(self, what: str, value: float, limit: float) -> None:
        """Demand that `value` is at most `limit`."""
        self.bounds.append(Bound(what, float(value), limit, least=False))

    def plain(self) -> dict[str, Any]:
        """Return numbers for a JSON file."""
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
