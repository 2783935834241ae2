"""The screen of `bilinq top`: the state of the service as text and tables."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

import msgspec
import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from bilinq.client.events import Interrupted, ServerEvent, follow
from bilinq.client.transport import Link
from bilinq.live.wire.samples import Layout, Leases, RecentLease, Sample, ShadowInfo, StateView

BLOCKS, DOTS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
LOW, MIDDLE, HIGH = (68, 1, 84), (33, 145, 140), (253, 231, 37)
"""Ends and middle of a colour scale that is readable with colour blindness."""


def sparkline(values: Sequence[float], width: int, *, plain: bool) -> str:
    """Return the last values as one line of characters, from zero to the largest value.

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
    """Return a bar that is full for part 1.

    Examples
    --------
    >>> bar(0.5, width=4, plain=False)
    '██░░'
    """
    full, empty = ("#", ".") if plain else ("█", "░")
    count = round(width * min(max(part, 0.0), 1.0))
    return full * count + empty * (width - count)


def cell(value: float, low: float, high: float, text: str) -> Text:
    """Return a text on a background colour between those of `low` and `high`."""
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
    """Return a time with a suitable unit.

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


KEPT = 240  # number of samples to keep: as many as a wide terminal has columns


class View:
    """The newest data of the service, updated by events; `problem` is the reason if there are no events.

    Readers in another thread must hold `lock`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.lock = Lock()
        self.problem: str | None = None
        self.layout: Layout | None = None
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.state: StateView | None = None
        self.leases: list[RecentLease] = []

    @property
    def now(self) -> Sample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    def update(self, event: ServerEvent | Interrupted) -> None:
        """Apply an event; events of unknown kinds are ignored."""
        with self.lock:
            self.problem = event.why if isinstance(event, Interrupted) else None
            if isinstance(event, ServerEvent):
                self._update(event)

    def _update(self, event: ServerEvent) -> None:
        if event.event == "layout":
            before, self.layout = self.layout, msgspec.json.decode(event.data, type=Layout)
            if before is None or _classes(before) != _classes(self.layout):
                self.samples.clear()
                self.state = None
        elif event.event == "moment":
            self.samples.append(msgspec.json.decode(event.data, type=Sample))
        elif event.event == "state":
            self.state = msgspec.json.decode(event.data, type=StateView)
        elif event.event == "leases":
            self.leases = msgspec.json.decode(event.data, type=Leases).leases

    def over_time(self, name: str, row: int) -> list[float]:
        """Return a figure of a class over time, oldest first."""
        return [getattr(sample, name)[row] for sample in self.samples]

    def per_second(self, name: str, row: int, samples: int = 10) -> float:
        """Return the recent rate per second of a figure of a class."""
        some = list(self.samples)[-samples - 1 :]
        seconds = some[-1].at - some[0].at
        return sum(getattr(sample, name)[row] for sample in some[1:]) / seconds if seconds > 0.0 else 0.0


def _classes(layout: Layout) -> tuple[Sequence[str], Sequence[str]]:
    return layout.job_classes, layout.server_classes


WIDE = 110  # columns of a terminal from which tables are side by side
ENDLESS = 10_000  # lines of a screen that has room for everything
FRAME = 2  # lines of a table beside its rows: title and names of columns; one more if rows are left out
OTHERS = 14  # lines of the screen that are not for the tables of queues and leases


class Picture:
    """The screen for Rich. `whole` shows all classes, whatever the height."""

    def __init__(self, view: View, *, whole: bool = False) -> None:
        self.view, self.whole = view, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self.view.lock:
            parts = self._parts(options.max_width, options.height or console.height, options.ascii_only)
        yield from parts

    def _parts(self, width: int, height: int, plain: bool) -> list[RenderableType]:
        view, layout, now = self.view, self.view.layout, self.view.now
        if layout is None or now is None:
            return [_head(view), Text("" if view.problem else "waiting for the first sample")]
        lines = ENDLESS if self.whole else height
        if width < WIDE:
            head = 1 if view.problem is None else 3
            return [_head(view), *_below_each_other(view, layout, now, width, lines - head, plain)]
        rows, half = max(lines - OTHERS, 4), width // 2 - 1
        both = Table.grid(Column(ratio=1), Column(ratio=1), padding=(0, 1), expand=True)
        both.add_row(
            Group(queues(view, layout, now, half, rows, plain), servers(layout, now, rows, plain)),
            Group(
                summary(view, now, half, plain),
                learnt(view, layout, half, max(rows // 2, 3)),
                leases(view, max(rows // 2, 3)),
            ),
        )
        return [_head(view), both]


class Section(NamedTuple):
    """A table of the screen: the fewest and the most rows it may have, and how it is made with some rows."""

    least: int
    most: int
    make: Callable[[int], RenderableType]


def _below_each_other(
    view: View, layout: Layout, now: Sample, width: int, lines: int, plain: bool
) -> Iterator[RenderableType]:
    """Yield the tables that fit `lines`, the most important ones first."""
    head = summary(view, now, width, plain)
    jobs, kinds = len(layout.job_classes), len(layout.server_classes)
    sections = (
        Section(2, jobs, lambda rows: queues(view, layout, now, width, rows, plain)),
        Section(head.row_count, head.row_count, lambda _: head),
        Section(2, kinds, lambda rows: servers(layout, now, rows, plain)),
        Section(2, jobs, lambda rows: learnt(view, layout, width, rows)),
        Section(2, len(view.leases), lambda rows: leases(view, rows)),
    )
    for section, rows in zip(sections, allot(lines, sections), strict=True):
        if rows:
            yield section.make(rows)


def allot(lines: int, sections: Sequence[Section]) -> list[int]:
    """Return the rows of each section, zero for those that do not fit; the first have priority, then all share.

    Examples
    --------
    >>> sections = [Section(2, most, lambda rows: "") for most in (26, 3, 26)]
    >>> allot(15, sections), allot(20, sections), allot(12, sections)
    ([2, 2, 2], [4, 3, 4], [3, 3, 0])
    """
    rows = [0] * len(sections)
    for k, section in enumerate(sections):
        rows[k] = min(section.least, section.most)
        need = FRAME + rows[k] + (rows[k] < section.most)
        if need > lines:
            rows[k] = 0
            break
        lines -= need
    while lines > 0 and (grow := [k for k, section in enumerate(sections) if 0 < rows[k] < section.most]):
        for k in grow[:lines]:
            rows[k] += 1
        lines -= len(grow)
    return rows


def _head(view: View) -> Text:
    text = Text(f"bilinq {view.url}", "bold", no_wrap=view.problem is None, overflow="ellipsis")
    state = view.state
    if view.problem is not None:
        text.append(f"  {view.problem}; retrying", "bold red")
    elif state is not None:
        done = state.counters.get("done", 0)
        text.append(f"  policy {state.knobs.policy}, V {short(state.V)}, {done:,} jobs done", "not bold")
    return text


def _table(title: str, *columns: str, left: int = 1) -> Table:
    """Return a table whose first `left` columns are aligned to the left, and the others to the right."""
    table = Table(title=title, box=None, title_justify="left", title_style="bold", header_style="dim",
                  padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)  # fmt: skip
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True, overflow="ellipsis")
    return table


def summary(view: View, now: Sample, width: int, plain: bool) -> Table:
    """Return waits against the target wait, and reward against the best possible reward."""
    table = _table("waits and reward", "", "now", "against", "", left=1)
    table.columns[3].justify = "left"
    target = view.layout.target_wait if view.layout is not None else None
    room = min(max(width - 52, 5), 20)
    for name, wait in (("median", now.wait_p50), ("90 %", now.wait_p90), ("99 %", now.wait_p99)):
        part = None if wait is None or not target else wait / target
        style = "" if part is None else "green" if part <= 1.0 else "yellow" if part <= 2.0 else "red"
        shown = "" if part is None else bar(part / 2.0, room, plain=plain)
        table.add_row(f"wait, {name}", Text(seconds(wait), style), seconds(target), Text(shown, style))
    part = None if now.earned is None or not now.best else now.earned / now.best
    shown = "" if part is None else f"{bar(part, room, plain=plain)} {100 * part:.0f} %"
    table.add_row("reward per second", short(now.earned), short(now.best), Text(shown, "cyan"))
    if now.rival is not None:
        earned = [sample.rival.reward for sample in view.samples if sample.rival is not None][-60:]
        rate = sum(earned) / len(earned) if earned else None
        table.add_row(f"baseline {now.rival.name}: reward", short(rate), "", "")
        table.add_row("  wait, median", seconds(now.rival.wait_p50), "", f"{now.rival.queued:,} queued")
    if view.state is not None and view.state.shadow is not None:
        _add_shadow(table, view.state.shadow)
    table.add_row("slots", str(now.slots), "", seconds(now.slot_seconds) if now.slots else "")
    return table


def _add_shadow(table: Table, shadow: ShadowInfo) -> None:
    """Add what the shadow would have earned with a service, against what was earned, and the interval of the difference."""
    gain, estimate, earned = shadow.gain, shadow.estimate, shadow.earned
    if gain is None or estimate is None or earned is None:
        table.add_row(f"shadow {shadow.policy}", "-", "", shadow.state if shadow.state != "on" else "no estimate")
        return
    change = f"{gain.mean:+.3g} ({gain.low:+.3g} to {gain.high:+.3g}), {shadow.compared:,} compared"
    table.add_row(f"shadow {shadow.policy}: reward", short(estimate.mean), short(earned.mean), change)


def queues(view: View, layout: Layout, now: Sample, width: int, rows: int, plain: bool) -> RenderableType:
    """Return the queue of each job class over time; if not all fit, the longest first."""
    table = _table(f"queues: {sum(now.queued):,} jobs queued, {sum(now.leased):,} leased", "class", "over time", "queued",
                   "leased", "in/s", "out/s", "reward/s", left=2)  # fmt: skip
    table.columns[0].max_width = 20
    names = layout.job_classes
    order = list(range(len(names)))
    if len(order) > rows:
        order = sorted(order, key=lambda row: -now.queued[row])[:rows]
    room = max(width - min(max(map(len, names), default=0), 20) - 46, 6)
    for row in order:
        line = sparkline(view.over_time("queued", row), room, plain=plain)
        rates = (short(view.per_second(name, row)) for name in ("submitted", "finished", "reward"))
        table.add_row(Text(names[row]), Text(line, "cyan"), f"{now.queued[row]:,}", f"{now.leased[row]:,}", *rates)
    return _with_rest(table, len(names) - len(order))


def servers(layout: Layout, now: Sample, rows: int, plain: bool) -> RenderableType:
    """Return the number of busy servers of each class, as many as fit."""
    busy, every = sum(now.busy), sum(now.busy) + sum(now.idle)
    table = _table(f"servers: {busy:,} of {every:,} busy", "class", "", "busy", "of", left=2)
    table.columns[0].max_width = 20
    for name, idle, busy in list(zip(layout.server_classes, now.idle, now.busy, strict=True))[:rows]:
        part = busy / (idle + busy) if idle + busy else 0.0
        table.add_row(Text(name), Text(bar(part, 20, plain=plain), "green"), f"{busy:,}", f"{idle + busy:,}")
    return _with_rest(table, 0, len(layout.server_classes) - rows)


def learnt(view: View, layout: Layout, width: int, rows: int) -> RenderableType:
    """Return the learnt reward of each pair of classes, as many as fit."""
    state = view.state
    if state is None or not state.mean:
        return Text("nothing learnt yet" if state is not None and state.knobs.learns else "", "dim")
    label = min(max(map(len, layout.job_classes), default=0), 20)
    columns = max((width - label - 2) // 9, 1)
    shown, names = layout.server_classes[:columns], layout.job_classes[:rows]
    table = _table("learnt reward", "class", *(name[:8] for name in shown))
    table.columns[0].max_width = 20
    for name, row in zip(names, state.mean, strict=False):
        cells = (cell(value, layout.reward_low, layout.reward_high, short(value)) for value in row[:columns])
        table.add_row(Text(name), *cells)
    return _with_rest(table, len(layout.job_classes) - len(names), len(layout.server_classes) - len(shown))


def leases(view: View, rows: int) -> Table:
    """Return the newest leases."""
    table = _table("recent leases", "job", "class", "server", "state", "reward", "for", left=4)
    for column in table.columns[1:3]:
        column.max_width = 20
    for one in view.leases[:rows]:
        lasted = (one.ended or time.time()) - one.granted
        style = "green" if one.state == "finished" else "dim" if one.state == "active" else "red"
        where, state = Text(f"{one.server_class} {one.server}"), Text(one.state, style)
        table.add_row(one.job, Text(one.job_class), where, state, short(one.reward), seconds(max(lasted, 0.0)))
    return table


def _with_rest(table: Table, *rest: int) -> RenderableType:
    kinds = ("job classes", "server classes")
    line = " and ".join(f"{many} more {kind}" for many, kind in zip(rest, kinds, strict=False) if many > 0)
    return Group(table, Text(f"({line})", "dim")) if line else table


def _load(link: Link) -> View:
    view = View(link.url)
    for event in follow(link, KEPT, seconds=0.0):
        view.update(event)
    return view


def print_once(link: Link, console: Console, *, json: bool) -> None:
    """Print the current state as plain text, or the layout and the newest sample as JSON."""
    view = _load(link)
    if json:
        typer.echo(msgspec.json.encode({"layout": view.layout, "moment": view.now}).decode())
    else:
        plain = Console(no_color=True, force_terminal=False, width=max(console.width, 80))
        plain.print(Picture(view, whole=True))


def watch(link: Link, console: Console) -> None:
    """Redraw the screen until Ctrl-C."""
    view = _load(link)  # errors of address or key are shown before the screen is cleared
    view.samples.clear()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that Rich restores the screen
    with suppress(KeyboardInterrupt), Live(Picture(view), console=console, screen=True, refresh_per_second=2):
        for event in follow(link, KEPT):
            view.update(event)
