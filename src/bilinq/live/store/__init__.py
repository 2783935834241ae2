"""The durable part of the live service: tables, who may write them, and group commit.

A `Store` runs operations, which are functions of a `Transaction`; the modules named after the tables hold the functions
from which operations are made.
"""

from pathlib import Path

from bilinq.errors import BadInput
from bilinq.live.store.store import Store
from bilinq.live.store.transaction import Transaction

__all__ = ["Store", "Transaction", "open_store"]


def open_store(url: str, *, lead: bool = True) -> Store:
    """Return the store at `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://...`, not yet started.

    With `lead`, `start` takes the lock that lets one process write; without, the store only reads until `lead()`.
    """
    scheme, colon, rest = url.partition("://")
    if colon and scheme == "sqlite" and len(rest) > 1 and rest[0] == "/" and rest[-1] != "/" and rest != "/:memory:":
        from bilinq.live.store.sqlite import SqliteStore

        return SqliteStore(Path(rest[1:]), lead=lead)
    if colon and scheme in ("postgresql", "postgres"):
        from bilinq.live.store.postgres import PostgresStore

        return PostgresStore(url, lead=lead)
    shown = url.partition("@")[2] or url  # what stands before an @ may be a password
    raise BadInput(f"database must be sqlite:///FILE or postgresql://...; got {shown!r}")
