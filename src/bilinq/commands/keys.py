"""`bilinq keys`: create, list, rotate and revoke API keys, in the database or through a running service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer import Argument, Option

from bilinq.commands.shared import Database, Json, connect, on_store, print_structs
from bilinq.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from bilinq.client import Client
    from bilinq.live.store import Store, Transaction
    from bilinq.live.wire.access import CreatedKey, KeyInfo

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Url = Annotated[str | None, Option(help="Address of a running service, instead of --database.")]
Key = Annotated[str | None, Option(help="Key with scope admin or fleet, for --url. [default: BILINQ_KEY]")]
Prefix = Annotated[str, Argument(help="The eight characters of the key after bq_.")]


@app.callback()
def main() -> None:
    """Create, list, rotate and revoke keys of the live service."""


@app.command()
def create(
    scope: Annotated[list[str], Option(help="submit, work, read, admin or fleet; repeatable.")],
    namespace: Annotated[str, Option(help="Namespace of the key's jobs.")] = "default",
    also: Annotated[
        list[str] | None, Option(help="Another namespace that the key sees and serves, or * for all; repeatable.")
    ] = None,
    name: Annotated[str, Option(help="Name of the key, to recognise it later.")] = "",
    days: Annotated[float | None, Option(help="Days until the key expires. [default: never]")] = None,
    database: Database = None,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Create a key and print it.

    This is the only time that it is shown: the service keeps a hash. The first key with scope admin that is created in
    the database itself gets scope fleet, for all namespaces.
    """
    import time

    from bilinq.live.keys import LOCAL, check_scopes, create_first_key
    from bilinq.live.wire.access import NewKey
    from bilinq.live.wire.queries import convert

    given = {
        "scopes": check_scopes(scope),
        "name": name,
        "namespace": namespace,
        "days": days,
        "namespaces": also or [],
    }
    new: NewKey = convert(given, NewKey)
    made = _run(
        database, url, key,
        lambda tx: create_first_key(tx, LOCAL, new, time.time()), lambda client: client.create_key(new), creates=True,
    )  # fmt: skip
    about = f"scopes {', '.join(made.info.scopes)}"
    if "fleet" in made.info.scopes and "fleet" not in scope:
        about += ": no key for the whole fleet existed yet, so this one gets fleet in place of admin"
    _show_new(made, about, json)


@app.command("list")
def list_keys(database: Database = None, url: Url = None, key: Key = None, json: Json = False) -> None:
    """List all keys: scopes, namespace, and when they expire."""
    from bilinq.live import keys

    found = _run(database, url, key, keys.list_keys, lambda client: client.keys(), writes=False)
    if json:
        print_structs(found)
        return
    from bilinq.commands.tables import show_rows

    rows = (
        (one.prefix, one.name, _where(one), " ".join(one.scopes), *map(_day, (one.created, one.expires, one.revoked)))
        for one in found
    )
    show_rows(("prefix", "name", "namespace", "scopes", "created", "expires", "revoked"), rows, left=7)


@app.command()
def revoke(prefix: Prefix, database: Database = None, url: Url = None, key: Key = None, json: Json = False) -> None:
    """Revoke a key at once and for good."""
    import time

    from bilinq.live.keys import LOCAL, revoke_key

    info = _run(
        database, url, key,
        lambda tx: revoke_key(tx, LOCAL, prefix, time.time()), lambda client: client.revoke_key(prefix),
    )  # fmt: skip
    if json:
        print_structs(info)
    else:
        typer.echo(f"{info.prefix} is revoked")


@app.command()
def rotate(
    prefix: Prefix,
    grace: Annotated[float, Option(help="Hours for which the old key stays valid.")] = 24.0,
    database: Database = None,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Create a key that replaces another, and print it.

    The old key expires after --grace hours.
    """
    import time

    from bilinq.live.keys import LOCAL, rotate_key
    from bilinq.live.wire.access import Rotate
    from bilinq.live.wire.queries import convert

    seconds = convert({"grace": 3600.0 * grace}, Rotate).grace
    made = _run(
        database, url, key,
        lambda tx: rotate_key(tx, LOCAL, prefix, seconds, time.time()),
        lambda client: client.rotate_key(prefix, seconds),
    )  # fmt: skip
    _show_new(made, f"it replaces {prefix}, which expires in {grace:g} hours", json)


def _show_new(made: CreatedKey, about: str, json: bool) -> None:
    if json:
        print_structs(made)
        return
    typer.echo(made.key)
    typer.echo(f"{about}; store the key now, it is not shown again", err=True)


def _run(
    database: str | None,
    url: str | None,
    key: str | None,
    locally: Callable[[Transaction], T],
    remotely: Callable[[Client], T],
    *,
    writes: bool = True,
    creates: bool = False,
) -> T:
    """Return the result of the operation in the database, or with `url` of the call to the service.

    An operation that writes needs a database that nobody uses; one that `creates` may make a new one.
    """
    if url is not None:
        if database is not None:
            raise BadInput("--database and --url exclude each other; use one of them")
        with connect(url, key) as client:
            return remotely(client)

    if not creates:
        _check_exists(database)

    async def work(store: Store) -> T:
        await store.start(wait=False)
        return await (store.write(locally) if writes else store.read(locally))

    try:
        return on_store(database, work, lead=writes)
    except Unavailable as error:
        raise BadInput(f"{error}; if a service is running, use it: --url http://HOST:PORT --key ADMIN-KEY") from None


def _check_exists(database: str | None) -> None:
    """Raise if the database is a file that is not there."""
    from pathlib import Path

    from bilinq.live.settings import load

    url = load(options={"database": database}).database
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).exists():
        raise BadInput(
            f"database must exist; {file} does not; `bilinq keys create` makes it, or use --database or --url"
        )


def _where(key: KeyInfo) -> str:
    """Return the namespace of a key, then the others in which its scopes hold."""
    return " ".join((key.namespace, *(name for name in key.namespaces if name != key.namespace)))


def _day(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
