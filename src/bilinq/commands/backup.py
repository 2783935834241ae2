"""`bilinq backup` and `bilinq restore`: copies of the database of the live service."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from bilinq.commands.shared import Database, Json, on_store, print_structs


def backup(
    out: Annotated[Path, Option(help="New file for the backup; only its owner may read it.")],
    database: Database = None,
    json: Json = False,
) -> None:
    """Copy a SQLite database, also while a service uses it.

    The backup is the state of the database at one point in time. It is checked before it gets its name. For PostgreSQL
    use pg_dump.
    """
    on_store(database, lambda store: store.backup(out))
    size = out.stat().st_size
    if json:
        print_structs({"file": str(out), "bytes": size})
    else:
        typer.echo(f"{out} has {size} bytes and is complete")


def restore(
    file: Annotated[Path | None, Argument(help="A backup; omit it for PostgreSQL, after pg_restore.")] = None,
    database: Database = None,
    force: Annotated[bool, Option("--force", help="Replace a database that exists.")] = False,
    json: Json = False,
) -> None:
    """Replace the database by a backup, while no service uses it.

    The backup is checked first. New jobs, leases and servers get numbers that were never used, so that the service refuses
    workers whose leases are newer than the backup. With PostgreSQL run pg_restore first and then this command, without a
    file, for the same reason.
    """
    on_store(database, lambda store: store.restore(file, force=force))
    if json:
        print_structs({"restored": True})
    else:
        typer.echo("restored; start the service as usual")
