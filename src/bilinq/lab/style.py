"""One look for all figures: colours that colour-blind readers can tell apart, no clutter, legends above the panels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilinq.lab.table import Table

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
SKY, AMBER, PINK = "#56b4e9", "#e69f00", "#cc79a7"
"""The palette of Okabe and Ito."""
INK, GREY, FAINT = "#22262b", "#7b828a", "#dfe3e7"
"""Text and axes; references; grid lines."""

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # shipped with Matplotlib: the same on every machine
    "font.size": 9.5, "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titlepad": 8.0, "axes.titley": 1.0,  # or it is looked for in every drawing
    "axes.labelsize": 9.5, "legend.fontsize": 9.5, "legend.frameon": False,
    "legend.handlelength": 1.8, "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK,
    "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.xmargin": 0.015, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.8, "axes.linewidth": 0.8,
    "lines.solid_capstyle": "round", "svg.fonttype": "none", "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How a curve looks; dashed for references, thin for what is shown by the way."""

    colour: str
    dashed: bool = False
    thin: bool = False
    marker: str = ""


@contextmanager
def applied() -> Iterator[None]:
    """Draw and write figures inside this context."""
    with mpl.rc_context(SETTINGS):
        yield


def panels(rows: int = 1, columns: int = 2, *, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a page with `rows` x `columns` panels, and the panels row by row."""
    figure = Figure(figsize=(9.0, height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    return figure, list(np.atleast_1d(figure.subplots(rows, columns)).ravel())


def settle(figure: Figure) -> None:
    """Find the layout once and for all: it takes as long as the drawing, and every file would find it anew."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine(None)  # not "none", whose place holder makes every file draw twice


def curve(axes: Axes, table: Table, look: Look, label: str = "", x: str = "slot") -> None:
    """Draw the column "mean" of a table over column `x`, with the band between "low" and "high"."""
    at, mean = table.numbers(x), table.numbers("mean")
    order = 2 if look.dashed or look.thin else 3
    axes.fill_between(at, table.numbers("low"), table.numbers("high"), color=look.colour, alpha=0.14, lw=0, zorder=1)
    axes.plot(at, mean, color=look.colour, lw=1.2 if look.dashed or look.thin else 2.0, zorder=order,
              ls=(0, (4, 2)) if look.dashed else "-", marker=look.marker or None, ms=4.5, label=label or None)  # fmt: skip


def label(axes: Axes, title: str, x: str = "slot", y: str = "") -> None:
    """Give a panel its title and the names of its axes."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def legend(figure: Figure, axes: Axes | Sequence[Axes], columns: int | None = None) -> None:
    """Put one legend above all panels, an entry for each different label."""
    entries: dict[str, Any] = {}
    for panel in [axes] if isinstance(axes, Axes) else axes:
        for handle, text in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside upper left", ncols=columns or min(len(entries), 5)
    )
