"""`bilinq top`: watch a live service in the terminal."""

from typing import Annotated

from typer import Option

from bilinq.commands.shared import Url


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
    from bilinq.commands import screen

    link = Link.to(url, key, timeout=30.0, attempt=5.0, verify=True)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names of classes may have characters that the terminal lacks
    console = Console()
    if json or once or not console.is_terminal:
        screen.print_once(link, console, json=json)
    else:
        screen.watch(link, console)
