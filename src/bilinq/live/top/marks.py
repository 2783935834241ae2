"""Small pictures made of characters: sparklines, bars and coloured cells; plain ones where a terminal knows no more."""

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

BLOCKS, DOTS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
LOW, MIDDLE, HIGH = (68, 1, 84), (33, 145, 140), (253, 231, 37)
"""Ends and middle of a scale that also those see who see colours differently."""


def sparkline(values: Sequence[float], width: int, *, plain: bool) -> str:
    """Return the last values as one line of characters, from nothing at the bottom to the largest at the top.

    Examples
    --------
    >>> sparkline([0, 1, 2, 4, 8], width=4, plain=False)
    '▂▃▅█'
    """
    marks = DOTS if plain else BLOCKS
    shown = list(values)[-width:] if width > 0 else []
    top = max(shown, default=0.0)
    if top <= 0.0:
        return marks[0] * len(shown)
    return "".join(marks[round((len(marks) - 1) * max(value, 0.0) / top)] for value in shown)


def bar(part: float, width: int, *, plain: bool) -> str:
    """Return a bar that is full at one.

    Examples
    --------
    >>> bar(0.5, width=4, plain=False)
    '██░░'
    """
    full, empty = ("#", ".") if plain else ("█", "░")
    count = round(width * min(max(part, 0.0), 1.0))
    return full * count + empty * (width - count)


def cell(value: float, low: float, high: float, text: str) -> Text:
    """Return a text on a colour between those of `low` and `high`."""
    place = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5
    red, green, blue = _between(place)
    ink = "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "#ffffff"
    return Text(f" {text} ", Style(color=ink, bgcolor=f"#{red:02x}{green:02x}{blue:02x}"))


def _between(place: float) -> tuple[int, int, int]:
    start, end, part = (LOW, MIDDLE, 2 * place) if place < 0.5 else (MIDDLE, HIGH, 2 * place - 1)
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(start, end, strict=True))
    return red, green, blue


def short(value: float | None) -> str:
    """Return a number in few characters.

    Examples
    --------
    >>> [short(x) for x in (None, 0.0123, 1.5, 12.34, 1234.0, 5e6)]
    ['-', '0.012', '1.50', '12.3', '1,234', '5,000,000']
    """
    if value is None:
        return "-"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """Return a time for people.

    Examples
    --------
    >>> [seconds(x) for x in (None, 0.0042, 1.5, 90.0)]
    ['-', '4.2 ms', '1.5 s', '1.5 min']
    """
    if value is None:
        return "-"
    if value < 1.0:
        return f"{1000 * value:.2g} ms" if value < 0.0995 else f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 60.0 else f"{value / 60:.1f} min"
