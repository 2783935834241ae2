"""`bilinq backup` and `bilinq restore`: copies of the database, made while a service runs, and put back while none does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bilinq.live.store import Store

Database = Annotated[
    str | None,
    typer.Option(help="sqlite:///FILE or postgresql://...; BILINQ_DATABASE or sqlite:///bilinq.db unless given."),
]


def backup(
    out: Annotated[Path, typer.Option(help="A new file, which only its owner may read.")],
    database: Database = None,
) -> None:
    """Copy a SQLite database, as it is at one moment, to a new file; a service may use it meanwhile.

    The copy is checked before it gets its name. PostgreSQL has pg_dump for this.
    """
    _with(database, lambda store: store.backup(out))
    typer.echo(f"{out} has {out.stat().st_size} bytes, and is whole")


def restore(
    file: Annotated[Path | None, typer.Argument(help="A backup; none for PostgreSQL, after pg_restore.")] = None,
    database: Database = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a database that is there.")] = False,
) -> None:
    """Put a backup in the place of the database, which no service may use meanwhile, after checks that it is whole.

    New jobs, leases and servers get numbers that were never used, so that workers which still hold leases from after
    the backup are refused. With PostgreSQL run pg_restore first and then this, without a file, for the same reason.
    """
    _with(database, lambda store: store.restore(file, force=force))
    typer.echo("restored; start the service as usual")


def _with(database: str | None, work: Callable[[Store], Awaitable[None]]) -> None:
    import asyncio

    from bilinq.live.settings import load
    from bilinq.live.store import open_store

    async def run() -> None:
        store = open_store(load(options={"database": database}).database, lead=False)
        try:
            await work(store)
        finally:
            await store.stop()

    asyncio.run(run())
