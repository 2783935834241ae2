"""Log axes that people can read: a few round numbers, written plainly."""

import math
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bilinq.arrays import Array
from bilinq.lab.effects import number


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
    """Return round numbers from `low` to `high`, as many as seven at most allow.

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
