"""Classes of jobs and servers. Other features make another class row, so that old rewards keep the features of then."""

from typing import NamedTuple

import msgspec

from bilinq.live.store.transaction import Row, Transaction


class ClassRow(NamedTuple):
    """A class; `kind` is job or server, and only one row of a kind and name is current."""

    id: int
    kind: str
    name: str
    features: tuple[float, ...]
    weight: float = 1.0
    holding_cost: float = 1.0
    backlog: int | None = None
    current: bool = True


COLUMNS = ", ".join(ClassRow._fields)


def current(tx: Transaction) -> list[ClassRow]:
    """Return the classes that are in use, oldest first."""
    return [_class(row) for row in tx.rows(f"SELECT {COLUMNS} FROM class WHERE current = 1 ORDER BY id")]


def all(tx: Transaction) -> list[ClassRow]:
    """Return all classes that ever were, oldest first."""
    return [_class(row) for row in tx.rows(f"SELECT {COLUMNS} FROM class ORDER BY id")]


def put(tx: Transaction, row: ClassRow) -> None:
    """Store a class; one with a known id is replaced, and another of the same kind and name is no longer current."""
    if row.current:
        tx.run(
            "UPDATE class SET current = 0 WHERE kind = :kind AND name = :name AND current = 1 AND id <> :id",
            kind=row.kind,
            name=row.name,
            id=row.id,
        )
    stored = row._asdict() | {"features": msgspec.json.encode(row.features).decode(), "current": int(row.current)}
    tx.run(
        f"""INSERT INTO class ({COLUMNS}) VALUES (:{", :".join(ClassRow._fields)})
            ON CONFLICT (id) DO UPDATE SET features = excluded.features, weight = excluded.weight,
            holding_cost = excluded.holding_cost, backlog = excluded.backlog, current = excluded.current""",
        **stored,
    )


def retire(tx: Transaction, kind: str, name: str) -> int:
    """Take a class out of use; return how many rows that were (none if there is no such class)."""
    sql = "UPDATE class SET current = 0 WHERE kind = :kind AND name = :name AND current = 1"
    return tx.run(sql, kind=kind, name=name)


def _class(row: Row) -> ClassRow:
    stored = ClassRow(*row)
    features = msgspec.json.decode(row[3], type=tuple[float, ...])
    return stored._replace(features=features, current=bool(stored.current))
