"""`bilinq keys`: make, list, rotate and revoke API keys, in the database or through a running service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from bilinq.client import Client
    from bilinq.live.store import Transaction
    from bilinq.live.wire.messages import KeyInfo

T = TypeVar("T")

app = typer.Typer(
    help="Make, list, rotate and revoke the keys of the live service.", no_args_is_help=True, rich_markup_mode=None
)

Database = Annotated[
    str | None,
    typer.Option(help="sqlite:///FILE or postgresql://...; BILINQ_DATABASE or sqlite:///bilinq.db unless given."),
]
Url = Annotated[str | None, typer.Option(help="Address of a running service, instead of a database.")]
Key = Annotated[str | None, typer.Option(help="A key with scope admin, for --url; BILINQ_KEY unless given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


@app.callback()
def main() -> None:
    """Make, list and revoke the keys of the live service."""


@app.command()
def create(
    scope: Annotated[list[str], typer.Option(help="submit, work, read or admin; repeat.")],
    namespace: Annotated[str, typer.Option(help="Whose jobs the key sees.")] = "default",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    days: Annotated[float | None, typer.Option(help="Days until it expires; never unless given.")] = None,
    database: Database = None,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Make a key and print it, once: only a hash of it is kept."""
    import time

    from bilinq.live.keys import LOCAL, check_scopes, create_key
    from bilinq.live.wire.messages import NewKey
    from bilinq.live.wire.queries import convert

    given = {"scopes": check_scopes(scope), "name": name, "namespace": namespace, "days": days}
    new: NewKey = convert(given, NewKey)
    made = _do(
        database,
        url,
        key,
        lambda tx: create_key(tx, LOCAL, new, time.time()),
        lambda client: client.create_key(new),
    )
    if json:
        _print_json(made)
        return
    typer.echo(made.key)
    typer.echo(f"scopes {', '.join(made.info.scopes)}; it is shown only now", err=True)


@app.command("list")
def list_keys(database: Database = None, url: Url = None, key: Key = None, json: Json = False) -> None:
    """List what is known of all keys."""
    from bilinq.live.keys import list_keys

    found = _do(database, url, key, list_keys, lambda client: client.keys(), writes=False)
    if json:
        _print_json(found)
        return
    from bilinq.commands.tables import show

    show(_table(found))


@app.command()
def revoke(
    prefix: Annotated[str, typer.Argument(help="The eight characters after bq_ that name the key.")],
    database: Database = None,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Make a key useless for good."""
    import time

    from bilinq.live.keys import LOCAL, revoke_key

    info = _do(
        database, url, key,
        lambda tx: revoke_key(tx, LOCAL, prefix, time.time()), lambda client: client.revoke_key(prefix),
    )  # fmt: skip
    if json:
        _print_json(info)
    else:
        typer.echo(f"{info.prefix} is revoked")


@app.command()
def rotate(
    prefix: Annotated[str, typer.Argument(help="The eight characters after bq_ that name the key.")],
    grace: Annotated[float, typer.Option(help="Hours that the old key stays good.")] = 24.0,
    database: Database = None,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Make a key in the place of another, which expires after a while, and print it, once."""
    import time

    from bilinq.live.keys import LOCAL, rotate_key
    from bilinq.live.wire.messages import Rotate
    from bilinq.live.wire.queries import convert

    seconds = convert({"grace": 3600.0 * grace}, Rotate).grace
    made = _do(
        database, url, key,
        lambda tx: rotate_key(tx, LOCAL, prefix, seconds, time.time()),
        lambda client: client.rotate_key(prefix, seconds),
    )  # fmt: skip
    if json:
        _print_json(made)
        return
    typer.echo(made.key)
    typer.echo(f"it takes the place of {prefix}, which expires in {grace:g} hours; it is shown only now", err=True)


def _do(
    database: str | None,
    url: str | None,
    key: str | None,
    locally: Callable[[Transaction], T],
    remotely: Callable[[Client], T],
    *,
    writes: bool = True,
) -> T:
    """Return what the operation gives in the database, or the call at the service."""
    from bilinq.errors import BadInput

    if url is None:
        return _in_database(database, locally, writes)
    if database is not None:
        raise BadInput("--database and --url exclude each other; give one of them")
    from bilinq.client import Client

    with Client(url, key=key) as client:
        return remotely(client)


def _in_database(database: str | None, operation: Callable[[Transaction], T], writes: bool) -> T:
    """Return what the operation gives in a transaction of its own; one that writes is not for a database in use."""
    import asyncio

    from bilinq.errors import BadInput, Unavailable
    from bilinq.live.settings import load
    from bilinq.live.store import open_store

    async def work() -> T:
        store = open_store(load(options={"database": database}).database, lead=writes)
        try:
            await store.start(wait=False)
            return await (store.write(operation) if writes else store.read(operation))
        finally:
            await store.stop()

    try:
        return asyncio.run(work())
    except Unavailable as error:
        raise BadInput(f"{error}; if a service runs there, ask it: --url http://HOST:PORT --key ADMIN-KEY") from None


def _table(found: list[KeyInfo]) -> Table:
    from rich.table import Table

    table = Table("prefix", "name", "namespace", "scopes", "created", "expires", "revoked")
    for info in found:
        times = map(_day, (info.created, info.expires, info.revoked))
        table.add_row(info.prefix, info.name, info.namespace, " ".join(info.scopes), *times)
    return table


def _day(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
