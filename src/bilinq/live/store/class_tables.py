"""The tables `class`, `server`, `namespace`, `knob` and `checkpoint`: what a scheduler is made from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from bilinq.live.store.admin_tables import keep_ids
from bilinq.live.store.transaction import Row, Transaction
from bilinq.live.wire.access import NamespaceInfo

NAMESPACE_COLUMNS = NamespaceInfo.__struct_fields__


class ClassRow(NamedTuple):
    """A class; `kind` is job or server, and only one row of a kind and name is current.

    A class with other features is another row, so that earlier rewards keep the features that they were earned with. `since`
    is the place in the log of observations from which on the row counts.
    """

    id: int
    kind: str
    name: str
    features: tuple[float, ...]
    weight: float = 1.0
    holding_cost: float = 1.0
    backlog: int | None = None
    current: bool = True
    since: int = 0
    retry_first: float | None = None
    retry_longest: float | None = None


class ServerRow(NamedTuple):
    """A server; `owner` is the prefix of the key that registered it, `held` is "draining", "quarantined" or None."""

    id: int
    server_class: str
    name: str | None
    owner: str
    registered: float
    seen: float
    held: str | None = None


class Checkpoint(NamedTuple):
    """Learnt state after the reward `seq`, as bytes, with their checksum."""

    id: int
    seq: int
    at: float
    state: bytes
    checksum: str


CLASS_COLUMNS = ", ".join(ClassRow._fields)
SERVER_COLUMNS = ", ".join("class" if name == "server_class" else name for name in ServerRow._fields)
CHECKPOINT_COLUMNS = ", ".join(Checkpoint._fields)
KEPT_CHECKPOINTS = 3


def current_classes(tx: Transaction) -> list[ClassRow]:
    """Return the classes in use, oldest first."""
    return [_class(row) for row in tx.rows(f"SELECT {CLASS_COLUMNS} FROM class WHERE current = 1 ORDER BY id")]


def all_classes(tx: Transaction) -> list[ClassRow]:
    """Return all classes that ever existed, oldest first."""
    return [_class(row) for row in tx.rows(f"SELECT {CLASS_COLUMNS} FROM class ORDER BY id")]


def class_name(tx: Transaction, id: int) -> str:
    """Return the name of a class, also of one that is no longer current."""
    return str(tx.rows("SELECT name FROM class WHERE id = :id", id=id)[0][0])


def put_class(tx: Transaction, row: ClassRow) -> None:
    """Store a class in place of the row with its id; another row of its kind and name is no longer current."""
    if row.current:
        sql = "UPDATE class SET current = 0 WHERE kind = :kind AND name = :name AND current = 1 AND id <> :id"
        tx.run(sql, kind=row.kind, name=row.name, id=row.id)
    stored = row._asdict() | {"features": msgspec.json.encode(row.features).decode(), "current": int(row.current)}
    sql = f"""INSERT INTO class ({CLASS_COLUMNS}) VALUES (:{", :".join(ClassRow._fields)})
        ON CONFLICT (id) DO UPDATE SET features = excluded.features, weight = excluded.weight,
        holding_cost = excluded.holding_cost, backlog = excluded.backlog, current = excluded.current,
        retry_first = excluded.retry_first, retry_longest = excluded.retry_longest"""
    tx.run(sql, **stored)


def _class(row: Row) -> ClassRow:
    stored = ClassRow(*row)
    features = msgspec.json.decode(row[3], type=tuple[float, ...])
    return stored._replace(features=features, current=bool(stored.current))


def all_servers(tx: Transaction) -> list[ServerRow]:
    """Return all servers, oldest first."""
    return list(map(ServerRow._make, tx.rows(f"SELECT {SERVER_COLUMNS} FROM server ORDER BY id")))


def put_server(tx: Transaction, row: ServerRow) -> None:
    """Store a server; it replaces the row with its id."""
    sql = f"""INSERT INTO server ({SERVER_COLUMNS}) VALUES (:{", :".join(ServerRow._fields)})
        ON CONFLICT (id) DO UPDATE SET class = excluded.class, name = excluded.name, owner = excluded.owner,
        registered = excluded.registered, seen = excluded.seen, held = excluded.held"""
    tx.run(sql, **row._asdict())


def remove_servers(tx: Transaction, *ids: int) -> None:
    """Delete servers; their ids are never used again."""
    keep_ids(tx, "server")
    tx.among("DELETE FROM server WHERE id {among}", ids)


def stored_settings(tx: Transaction) -> dict[str, Any]:
    """Return the policy settings that were updated while the service ran, by name."""
    return {name: msgspec.json.decode(value) for name, value in tx.rows("SELECT name, value FROM knob")}


def store_settings(tx: Transaction, values: Mapping[str, Any]) -> None:
    """Store updated policy settings; the others stay."""
    sql = (
        "INSERT INTO knob (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    for name, value in values.items():
        tx.run(sql, name=name, value=msgspec.json.encode(value).decode())


def save_checkpoint(tx: Transaction, seq: int, at: float, state: bytes, checksum: str) -> None:
    """Store a checkpoint and delete all but the newest three."""
    newest = tx.rows("SELECT coalesce(max(id), 0) FROM checkpoint")[0][0]
    row = Checkpoint(newest + 1, seq, at, state, checksum)
    tx.run(f"INSERT INTO checkpoint ({CHECKPOINT_COLUMNS}) VALUES (:id, :seq, :at, :state, :checksum)", **row._asdict())
    tx.run("DELETE FROM checkpoint WHERE id <= :old", old=row.id - KEPT_CHECKPOINTS)


def newest_checkpoints(tx: Transaction) -> list[Checkpoint]:
    """Return the stored checkpoints, newest first."""
    return list(map(Checkpoint._make, tx.rows(f"SELECT {CHECKPOINT_COLUMNS} FROM checkpoint ORDER BY id DESC")))


def all_namespaces(tx: Transaction) -> dict[str, NamespaceInfo]:
    """Return the stored settings by namespace."""
    found = tx.rows(f"SELECT {', '.join(NAMESPACE_COLUMNS)} FROM namespace ORDER BY name")
    return {row[0]: NamespaceInfo(*row) for row in found}


def put_namespace(tx: Transaction, one: NamespaceInfo) -> None:
    """Store the settings of a namespace in place of those it had."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in NAMESPACE_COLUMNS[1:])
    sql = f"""INSERT INTO namespace ({", ".join(NAMESPACE_COLUMNS)}) VALUES (:{", :".join(NAMESPACE_COLUMNS)})
        ON CONFLICT (name) DO UPDATE SET {changes}"""
    tx.run(sql, **{name: getattr(one, name) for name in NAMESPACE_COLUMNS})
