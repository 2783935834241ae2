"""Servers: who asks for work."""

from typing import NamedTuple

from bilinq.live.store import meta
from bilinq.live.store.transaction import Transaction


class ServerRow(NamedTuple):
    """A server; `owner` is the prefix of the key that registered it."""

    id: int
    server_class: str
    name: str | None
    owner: str
    registered: float
    seen: float


COLUMNS = ", ".join("class" if name == "server_class" else name for name in ServerRow._fields)


def all(tx: Transaction) -> list[ServerRow]:
    """Return all servers, oldest first."""
    return list(map(ServerRow._make, tx.rows(f"SELECT {COLUMNS} FROM server ORDER BY id")))


def put(tx: Transaction, row: ServerRow) -> None:
    """Store a server; one with a known id is replaced."""
    tx.run(
        f"""INSERT INTO server ({COLUMNS}) VALUES (:{", :".join(ServerRow._fields)})
            ON CONFLICT (id) DO UPDATE SET class = excluded.class, name = excluded.name, owner = excluded.owner,
            registered = excluded.registered, seen = excluded.seen""",
        **row._asdict(),
    )


def remove(tx: Transaction, *ids: int) -> None:
    """Delete servers, whose ids are never used again."""
    meta.keep_ids(tx, "server")
    tx.many("DELETE FROM server WHERE id = :id", [{"id": id} for id in ids])
