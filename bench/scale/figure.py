"""The picture of `docs/scale.md`, from the tables of that page: `python -m bench.scale.figure docs/scale.png`."""

import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.scale import page as pages
from bench.scale.page import Table
from bench.scale.regions import EXCHANGE, SURGE, USUAL
from bench.scale.tables import CHANGE, CHECKED, DELAYS, LOCAL
from bilinq import style

Row = dict[str, str]
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.5))
FIRST = 0.05
"""Where the logarithmic axis of seconds begins."""


def draw(page: list[Table]) -> Figure:
    """Return the figure: rounds by size and delay, seconds of rounds and exchanges, and what is lost after a change."""
    cold, exchanged = rows(page, "rounds to 1 %", "delay"), rows(page, "exchanges to 1 %")
    lost, solved = rows(page, "who"), rows(page, "solve, s")
    with style.applied():
        figure, axes = style.panels(1, 3, height=3.7)
        _rounds(axes[0], cold)
        _seconds(axes[1], cold, exchanged)
        _lost(axes[2], lost, EXCHANGE + float(solved[-1]["solve, s"]))
        style.settle(figure)
    return figure


def rows(page: list[Table], *names: str) -> list[Row]:
    """Return the rows of the first table that has these columns."""
    columns, rows = next((columns, rows) for columns, rows in page if set(names) <= set(columns))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _sizes(axes: Axes, rows: list[Row]) -> list[str]:
    """Return all sizes in order, and name the ticks by them."""
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    axes.set_xticks(range(len(sizes)), [size.replace("x", "\nx ") for size in sizes], fontsize=8.5)
    axes.set_xlim(-0.25, len(sizes) - 0.75)
    return sizes


def _rounds(axes: Axes, cold: list[Row]) -> None:
    """Draw rounds from a cold start against size, a colour for each delay."""
    sizes = _sizes(axes, cold)
    for delay, colour in zip(DELAYS, (style.GREY, style.GREEN, style.BLUE, style.ORANGE), strict=True):
        for column, dashes in (("rounds to 1 %", "-"), ("rounds to 0.01 %", DASHED)):
            rows = [row for row in cold if row["delay"] == str(delay)]
            text = f"delay {delay}" if column == "rounds to 1 %" else None
            _line(axes, sizes, rows, column, colour, dashes, text)
    axes.set_yscale("log")
    axes.set_ylim(10, 3e6)
    axes.legend(loc="upper left", fontsize=8)
    style.label(axes, "From a cold start", "job classes x server classes", "rounds to 1 % (dashed: 0.01 %)")


def _seconds(axes: Axes, cold: list[Row], exchanged: list[Row]) -> None:
    """Draw seconds from a cold start against size, by rounds and by exchanges."""
    sizes = _sizes(axes, cold)
    rounds = [row for row in cold if row["delay"] == str(USUAL)]
    last = sizes[-1]
    by_exchanges = [
        row for row in exchanged if row["change"] == "cold" and (row["iterations"] == str(LOCAL) or row["size"] == last)
    ]
    for rows, colour, text in (
        (rounds, style.BLUE, f"rounds of {100 // USUAL} ms"),
        (by_exchanges, style.AMBER, "exchanges"),
    ):
        for column, dashes in (("seconds to 1 %", "-"), ("seconds to 0.01 %", DASHED)):
            _line(axes, sizes, rows, column, colour, dashes, text if dashes == "-" else None)
    axes.set_yscale("log")
    axes.set_ylim(1, 2000)
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.legend(loc="upper left", fontsize=8)
    style.label(axes, "Regions 100 ms apart", "job classes x server classes", "seconds to 1 % (dashed: 0.01 %)")


def _line(
    axes: Axes, sizes: list[str], rows: list[Row], column: str, colour: str, dashes: Any, text: str | None
) -> None:
    """Draw a column over sizes, where it was run."""
    found = [(sizes.index(row["size"]), float(row[column])) for row in rows if row[column] not in ("", "not run")]
    axes.plot(*zip(*found, strict=True), color=colour, lw=1.6, ls=dashes, marker="o", ms=3.2, label=text)


def _lost(axes: Axes, lost: list[Row], solve: float) -> None:
    """Draw what is lost at the largest size after a change, by nodes and by the old allocation until it is solved again."""
    largest = lost[-1]["size"]
    cases = ((SURGE, style.ORANGE, 0), (CHANGE, style.BLUE, 0), (f"{CHANGE}, twice the load", style.GREEN, 4))
    for change, colour, shift in cases:
        found = {row["who"]: row for row in lost if (row["size"], row["change"]) == (largest, change)}
        old = float(found["exact, of before"]["after 0 s"])
        answered = [FIRST, solve, solve], [old, old, 1e-4]
        axes.plot(
            *answered, color=colour, lw=1.2, ls=(shift, (4, 4)), dash_capstyle="butt"
        )  # two of them are the same: both show
        for who, dashes in (("nodes", "-"), ("exchanges", DOTTED)):
            values = [float(found[who][f"after {second:g} s"]) for second in CHECKED]
            text = change.replace("twice the load", "load x 2") if who == "nodes" else None
            axes.plot([max(second, FIRST) for second in CHECKED], values, color=colour, lw=1.6, ls=dashes, label=text)
    for text, dashes in (("by rounds", "-"), ("by exchanges", DOTTED), ("one place", (0, (4, 4)))):
        axes.plot([], [], color=style.GREY, lw=1.4, ls=dashes, label=text)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(3e-3, 200)
    axes.set_xticks([0.1, 1.0, 10.0], ["0.1", "1", "10"])
    axes.set_yticks([0.01, 0.1, 1.0, 10.0], ["0.01", "0.1", "1", "10"])
    axes.legend(loc="upper left", fontsize=7, ncols=2, columnspacing=0.8, handlelength=2.2, borderpad=0.1)
    style.label(axes, "After a change", f"seconds, {largest}", "% lost against the exact allocation")


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(style.png(draw(pages.read())))
