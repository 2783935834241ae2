"""How results look: numbers in text; in a notebook HTML tables, Matplotlib axes, DataFrames, and a progress bar."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from bilinq.extras import optional_imports

if TYPE_CHECKING:
    from bilinq.arrays import Array

Progress = Callable[[int, int], None]  # called as progress(work done, work in all)
PATIENCE = 2.0  # seconds after which a progress bar appears
MOST_LABELS = 30  # classes of an axis up to which each has its name
LONG_LABELS = 50  # characters of all columns from which their names are turned
TURNED: dict[str, Any] = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"}
MINUS = "\N{MINUS SIGN}"
MOST_NUMBERS = 200  # cells of a heat map up to which each has its number


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as a small HTML table."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts.items())
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def number(value: float) -> str:
    """Return three significant digits as text, with a minus sign (not a hyphen) and no exponent below a million."""
    if not math.isfinite(value):
        return "?"
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        digits = 0 if value == 0.0 else max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.2e}"
    return text.replace("-", MINUS)


def short_list(names: Iterable[str], most: int = 6) -> str:
    """Return names separated by commas, only the first of them if they are many."""
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def data_frame(data: Any, **options: Any) -> Any:
    """Return a pandas DataFrame; raise an error that says how to install pandas."""
    with optional_imports():
        import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
    return pandas.DataFrame(data, **options)


def new_axes(rows: int = 1, height: float = 3.5) -> Any:
    """Return Matplotlib axes of a new figure, which notebooks show: one, or an array of some below each other."""
    with optional_imports():
        from matplotlib import pyplot
    return pyplot.subplots(rows, figsize=(7.0, height), layout="constrained", sharex=rows > 1)[1]


def heat_map(values: Array, rows: Sequence[str], columns: Sequence[str], title: str, ax: Any = None) -> Any:
    """Draw values (I, J) as a heat map, NaN as white, and return the axes."""
    if ax is None:
        ax = new_axes(height=min(max(2.0 + 0.25 * len(rows), 3.0), 9.0))
    image = ax.imshow(values, aspect="auto", cmap="viridis")
    ax.figure.colorbar(image, ax=ax)
    crowded = sum(map(len, columns)) > LONG_LABELS
    for names, axis, turn in ((rows, ax.yaxis, {}), (columns, ax.xaxis, TURNED if crowded else {})):
        if len(names) <= MOST_LABELS:
            axis.set_ticks(range(len(names)), labels=names, **turn)
    if values.size <= MOST_NUMBERS:
        _write_numbers(ax, image, values)
    ax.set(title=title, xlabel="server class", ylabel="job class")
    return ax


def _write_numbers(ax: Any, image: Any, values: Array) -> None:
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            if value == value:  # not NaN
                colour = "black" if image.norm(value) > 0.6 else "white"
                ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour)


@contextmanager
def in_notebook(progress: Progress | None, text: str) -> Iterator[Progress | None]:
    """Give a callable to report progress to: `progress` itself or, if it is None and this is a notebook, a bar."""
    if progress is not None or not _is_notebook():
        yield progress
        return
    bar = NotebookBar(text, PATIENCE)
    try:
        yield bar
    finally:
        bar.close()


def _is_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if sys.modules.get("IPython") is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A progress bar below the cell of a notebook, shown once the work has taken `patience` seconds; removed at the end."""

    def __init__(self, text: str, patience: float) -> None:
        self._text, self._began, self._patience = text, time.monotonic(), patience
        self._handle: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._handle is None and time.monotonic() - self._began < self._patience:
            return
        spent = time.monotonic() - self._began
        left = f", about {spent * (total - done) / done:.0f} s left" if done else ""
        self._show(
            f'<progress value="{done}" max="{total}"></progress> {done:,} of {total:,} {escape(self._text)}{left}'
        )

    def close(self) -> None:
        """Remove the bar."""
        if self._handle is not None:
            self._show("")

    def _show(self, html: str) -> None:
        display: Any = sys.modules["IPython"].display
        if self._handle is None:
            self._handle = display.display(display.HTML(html), display_id=True)
        else:
            self._handle.update(display.HTML(html))
