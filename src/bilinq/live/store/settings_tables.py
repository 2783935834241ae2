"""The table `settings_change`: who changed which settings of the policy, and when."""

from typing import Any, NamedTuple

import msgspec

from bilinq.live.store.transaction import Row, Transaction

TABLE = """CREATE TABLE settings_change (
    id {id}, at DOUBLE PRECISION NOT NULL, who TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, undoes BIGINT)"""
FILE = "settings file"  # the caller if the file has changed between two starts


class SettingsChange(NamedTuple):
    """A change: what it changed, by name, as it was `before` and `after`; `undoes` is the change that it takes back."""

    id: int
    at: float
    who: str
    before: dict[str, Any]
    after: dict[str, Any]
    undoes: int | None = None


def add_change(
    tx: Transaction, at: float, who: str, before: dict[str, Any], after: dict[str, Any], undoes: int | None = None
) -> None:
    """Append a change."""
    next_id = "(SELECT coalesce(max(id), 0) + 1 FROM settings_change)"
    sql = f"""INSERT INTO settings_change (id, at, who, before, after, undoes)
        VALUES ({next_id}, :at, :who, :before, :after, :undoes)"""
    texts = (msgspec.json.encode(one).decode() for one in (before, after))
    tx.run(sql, at=at, who=who, undoes=undoes, **dict(zip(("before", "after"), texts, strict=True)))


def list_changes(tx: Transaction, limit: int) -> list[tuple[SettingsChange, bool]]:
    """Return up to `limit` changes, newest first, each with whether it was undone."""
    sql = """SELECT id, at, who, before, after, undoes,
        EXISTS (SELECT 1 FROM settings_change AS later WHERE later.undoes = settings_change.id)
        FROM settings_change ORDER BY id DESC LIMIT :limit"""
    return [(_change(row), bool(row[-1])) for row in tx.rows(sql, limit=limit)]


def last_change(tx: Transaction) -> SettingsChange | None:
    """Return the newest change that neither undoes another nor was undone; None if there is none."""
    sql = """SELECT id, at, who, before, after, undoes, 0 FROM settings_change WHERE undoes IS NULL AND NOT EXISTS
        (SELECT 1 FROM settings_change AS later WHERE later.undoes = settings_change.id) ORDER BY id DESC LIMIT 1"""
    found = tx.rows(sql)
    return _change(found[0]) if found else None


def _change(row: Row) -> SettingsChange:
    id, at, who, before, after, undoes, _ = row
    return SettingsChange(id, at, who, msgspec.json.decode(before), msgspec.json.decode(after), undoes)
