"""`bilinq top`: watch a live service in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from bilinq.commands.shared import Url

if TYPE_CHECKING:
    from rich.console import Console

    from bilinq.client.transport import Link
    from bilinq.commands.screen import View


def top(
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope read. [default: BILINQ_KEY, hidden from others]")] = None,
    once: Annotated[
        bool,
        Option("--once", help="Print the state as plain text and exit; the default if the output is not a terminal."),
    ] = False,
    json: Annotated[bool, Option("--json", help="Print the layout and the newest sample as JSON and exit.")] = False,
) -> None:
    """Watch a live service in the terminal.

    Shows queues, waits, reward against the best possible reward, servers, learnt rewards and recent leases. It survives
    restarts of the service. Ctrl-C ends it.
    """
    import sys
    from io import TextIOWrapper

    from rich.console import Console

    from bilinq.client.transport import Link
    from bilinq.commands.screen import View

    link = Link.to(url, key, timeout=30.0, attempt=5.0, verify=True)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names of classes may have characters that the terminal lacks
    view, console = View(link.url), Console()
    if json or once or not console.is_terminal:
        _load(link, view)
        _print(view, console, json=json)
    else:
        _watch(link, view, console)


def _load(link: Link, view: View) -> None:
    from bilinq.client.events import follow
    from bilinq.commands.screen import KEPT

    for event in follow(link, KEPT, seconds=0.0):
        view.update(event)


def _print(view: View, console: Console, *, json: bool) -> None:
    import msgspec
    from rich.console import Console

    from bilinq.commands.screen import Picture

    if json:
        typer.echo(msgspec.json.encode({"layout": view.layout, "moment": view.now}).decode())
    else:
        plain = Console(no_color=True, force_terminal=False, width=max(console.width, 80))
        plain.print(Picture(view, whole=True))


def _watch(link: Link, view: View, console: Console) -> None:
    import signal
    import sys

    from rich.live import Live

    from bilinq.client.events import follow
    from bilinq.commands.screen import KEPT, Picture

    _load(link, view)  # errors of address or key are shown before the screen is cleared
    view.samples.clear()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that Rich restores the screen
    try:
        with Live(Picture(view), console=console, screen=True, refresh_per_second=2):
            for event in follow(link, KEPT):
                view.update(event)
    except KeyboardInterrupt:
        pass
