"""What several commands share: options, exit codes, input and output, and the names of optional packages."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Option

from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.client import Client
    from bilinq.live.store import Store

T = TypeVar("T")
SLOW = 2.0  # seconds after which the user gets a message
NOT_DONE, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes: not everything was done that was asked for; bad input or an error of the service; Ctrl-C, as in shells."""

Json = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
Database = Annotated[
    str | None, Option(help="sqlite:///FILE or postgresql://... [default: BILINQ_DATABASE, or sqlite:///bilinq.db]")
]
Url = Annotated[str | None, Option(help="Address of the service. [default: BILINQ_URL, or http://127.0.0.1:8000]")]

Workers = Annotated[int | None, Option(help="Number of processes. [default: one per core]")]
Engine = Annotated[str, Option(help="processes, or ray for a Ray cluster.")]
Address = Annotated[
    str | None, Option(help="Address of a Ray cluster, host:port or auto. [default: start Ray on this machine]")
]


def source_name(source: str) -> str:
    """Return how messages call a file, or standard input for "-"."""
    return "standard input" if source == "-" else source


def read_text(source: str) -> str:
    """Return the text of a file, or of standard input for "-"."""
    name = source_name(source)
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{name}: cannot be read; {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: is not UTF-8 text; {error.reason} at byte {error.start}") from None


def whole_numbers(name: str, text: str, rule: str = "whole numbers separated by commas") -> int | list[int]:
    """Return one whole number, or a list if there are several separated by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{name} must be {rule}; got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print results, which may contain arrays, as JSON."""
    from bilinq.jsonable import to_json

    typer.echo(to_json(value, indent))


def print_structs(value: Any, indent: int = 2) -> None:
    """Print responses of the live service as JSON; on one line if `indent` is 0."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=indent).decode())


def time_text(at: float) -> str:
    """Return a point in time as date and time of day, in local time."""
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


@contextmanager
def connect(url: str | None, key: str | None) -> "Iterator[Client]":
    """Return a client of the live service for a `with` block of quick calls."""
    from bilinq.client import Client

    with Client(url, key) as client, say_if_slow(client):
        yield client


@contextmanager
def say_if_slow(client: "Client") -> Iterator[None]:
    """Print a line if the block takes longer than two seconds."""
    import threading

    text = f"waiting for {client.link.url}; gives up after {client.link.timeout:g} s without an answer"
    timer = threading.Timer(SLOW, typer.echo, (text,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def on_store(database: str | None, work: "Callable[[Store], Awaitable[T]]", *, lead: bool = False) -> T:
    """Return the result of `work` on a database of the live service, which is closed afterwards."""
    import asyncio

    from bilinq.live.settings import load
    from bilinq.live.store import open_store

    async def run() -> T:
        store = open_store(load(options={"database": database}).database, lead=lead)
        try:
            return await work(store)
        finally:
            await store.stop()

    return asyncio.run(run())
