"""One style for all figures: colours that colour-blind readers can tell apart, panels, log axes, and PNG and SVG files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bilinq.display import number
from bilinq.extras import optional_imports

with optional_imports():
    import matplotlib as mpl
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.lab.figure import Table

Drawing: TypeAlias = Figure  # a figure of Matplotlib; a `Figure` of the lab makes one

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
SKY, AMBER, PINK = "#56b4e9", "#e69f00", "#cc79a7"
"""The palette of Okabe and Ito."""
INK, GREY, FAINT = "#22262b", "#7b828a", "#dfe3e7"
"""Text and axes; references; grid lines."""
DASHED = (0, (4, 2))  # the line style of references

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # shipped with Matplotlib: the same on every machine
    "font.size": 9.5, "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titlepad": 8.0, "axes.titley": 1.0,  # or every drawing searches for it
    "axes.labelsize": 9.5, "legend.fontsize": 9.5, "legend.frameon": False,
    "legend.handlelength": 1.8, "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK,
    "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.xmargin": 0.015, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.8, "axes.linewidth": 0.8,
    "lines.solid_capstyle": "round", "svg.fonttype": "none", "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The look of a curve: dashed for references, thin for additional lines."""

    colour: str
    dashed: bool = False
    thin: bool = False
    marker: str = ""


POLICY_LOOKS = {
    "UGDA-OL": Look(ORANGE),
    "SABR": Look(BLUE),
    "UGDA-OL, per class pair": Look(AMBER, thin=True),
    "SABR, Thompson sampling": Look(SKY, thin=True),
    "rewards known": Look(GREY, dashed=True),
}
"""How the policies look in every figure that compares them."""


@contextmanager
def applied() -> Iterator[None]:
    """Apply the style to all that is drawn and written inside this context."""
    with mpl.rc_context(SETTINGS):
        yield


def panels(rows: int = 1, columns: int = 2, *, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a page with `rows` x `columns` panels, and the panels row by row."""
    figure = Figure(figsize=(9.0, height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    return figure, list(np.atleast_1d(figure.subplots(rows, columns)).ravel())


def settle(figure: Figure) -> None:
    """Compute the layout once: it takes as long as drawing, and every file would compute it again."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine(None)  # not "none", whose placeholder makes every file draw twice


def curve(axes: Axes, table: Table, look: Look, label: str = "", x: str = "slot") -> None:
    """Draw the column "mean" of a table over column `x`, with the band between "low" and "high"."""
    at, mean = table.numbers(x), table.numbers("mean")
    order = 2 if look.dashed or look.thin else 3
    axes.fill_between(at, table.numbers("low"), table.numbers("high"), color=look.colour, alpha=0.14, lw=0, zorder=1)
    axes.plot(at, mean, color=look.colour, lw=1.2 if look.dashed or look.thin else 2.0, zorder=order,
              ls=DASHED if look.dashed else "-", marker=look.marker or None, ms=4.5, label=label or None)  # fmt: skip


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
    columns = columns or min(len(entries), 5)
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns)


def lines(table: Table, looks: Mapping[str, Look], titles: Mapping[str, str]) -> tuple[Figure, list[Axes]]:
    """Draw two measures over time side by side, a line for each policy; `titles` are those of the measures."""
    figure, axes = panels()
    for policy in table.distinct("policy"):
        for place, measure in enumerate(titles):
            mine = table.where(policy=policy, measure=measure)
            curve(axes[place], mine, looks[str(policy)], "" if place else str(policy))
    for panel, title in zip(axes, titles.values(), strict=True):
        label(panel, title)
    legend(figure, axes[0])
    return figure, axes


def log_axis(axes: Axes, which: Literal["x", "y"], values: Array, room: float = 1.2) -> None:
    """Make an axis logarithmic, a factor `room` beyond the positive ones of `values`, with labelled ticks."""
    shown = values[values > 0.0]
    low, high = (shown.min() / room, shown.max() * room) if shown.size else (1.0, 10.0)
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(_ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_locator(NullLocator())


def _ticks(low: float, high: float) -> list[float]:
    """Return at most seven round numbers from `low` to `high`.

    Examples
    --------
    >>> _ticks(4.0, 60.0)
    [5.0, 10.0, 20.0, 50.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**k for k in decades for digit in digits if low <= digit * 10.0**k <= high]
        if len(found) <= 7:
            break
    return found


ADAPTED = {
    INK: "currentColor", GREY: "var(--grey)", FAINT: "var(--faint)", BLUE: "var(--blue)",
    ORANGE: "var(--orange)", GREEN: "var(--green)", SKY: "var(--sky)", AMBER: "var(--amber)",
    PINK: "var(--pink)",
}  # fmt: skip
"""Colours of a figure that a page may choose for itself; the style sheet of the report defines them."""


def png(figure: Figure) -> bytes:
    """Return the figure as PNG on white, without a date."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, facecolor="white", metadata={"Software": None},
                   pil_kwargs={"compress_level": 3})  # fmt: skip
    return file.getvalue()


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG without a date; `name` makes its ids repeatable."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+\n", "\n", file.getvalue())


def inline(text: str, name: str, description: str) -> str:
    """Return SVG text for the inside of a page: colours follow the page, and ids start with `name` to be unique."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif", body)
    for colour, adapted in ADAPTED.items():
        body = body.replace(colour, adapted)
    opening = re.compile(r"<svg\b[^>]*>")
    box = re.search(r'viewBox="[^"]*"', body)
    assert box is not None
    head = f'<svg {box[0]} xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{description}">'
    return opening.sub(head, body, count=1)
