"""What several commands share: options, exit codes, input and output, and the names of optional packages."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Option

from bilinq.errors import BadInput, BilinqError

if TYPE_CHECKING:
    from bilinq.live.store import Store

T = TypeVar("T")
INTERRUPTED = 130  # exit code after Ctrl-C, the same as in shells

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

EXTRAS = {
    "httpx": "live", "httptools": "live", "uvicorn": "live", "uvloop": "live", "psycopg": "postgres",
    "matplotlib": "lab", "pyarrow": "lab", "ray": "ray", "sklearn": "text", "gymnasium": "gymnasium",
    "mabwiser": "peers", "pareto_bandit": "peers", "vowpalwabbit": "peers",
}  # fmt: skip
"""The extra of bilinq that installs a package."""


def not_installed(error: ModuleNotFoundError) -> BilinqError | None:
    """Return what to tell the user if a package of an extra is missing, or None for any other module."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    return (extra and BilinqError(f"bilinq[{extra}] is not installed; run: pip install 'bilinq[{extra}]'")) or None


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


def print_structs(value: Any) -> None:
    """Print responses of the live service as JSON."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def time_text(at: float) -> str:
    """Return a point in time as date and time of day, in local time."""
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


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
