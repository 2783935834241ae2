"""Single values by name: the version of the tables, the epoch, the leader's address, and ids that are used up."""

from typing import NamedTuple

from bilinq.live.store.transaction import Transaction


class LargestIds(NamedTuple):
    """The largest id ever used of each kind, zero if none."""

    job: int
    lease: int
    server: int
    seq: int
    class_: int


def get(tx: Transaction, name: str) -> str | None:
    """Return a value, or None."""
    found = tx.rows("SELECT value FROM meta WHERE name = :name", name=name)
    return found[0][0] if found else None


def put(tx: Transaction, name: str, value: str) -> None:
    """Set a value."""
    tx.run(
        "INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name=name,
        value=value,
    )


def largest_ids(tx: Transaction) -> LargestIds:
    """Return the largest id ever used of each kind, also of rows that are deleted by now."""
    columns = {"job": "id", "lease": "id", "server": "id", "reward": "seq", "class": "id"}
    return LargestIds(*(max(_largest(tx, table, column), _floor(tx, table)) for table, column in columns.items()))


def keep_ids(tx: Transaction, table: str) -> None:
    """Remember the largest id of a table; call it before you delete rows, so that no id is ever used twice."""
    put(tx, f"largest {table}", str(max(_largest(tx, table, "id"), _floor(tx, table))))


def skip_ids(tx: Transaction, table: str, many: int) -> None:
    """Let the next `many` ids of a table never be used."""
    put(tx, f"largest {table}", str(max(_largest(tx, table, "id"), _floor(tx, table)) + many))


def _largest(tx: Transaction, table: str, column: str) -> int:
    return int(tx.rows(f"SELECT coalesce(max({column}), 0) FROM {table}")[0][0])


def _floor(tx: Transaction, table: str) -> int:
    return int(get(tx, f"largest {table}") or 0)
