"""API keys: never the key itself, only its hash and the prefix that is no secret."""

from typing import NamedTuple

import msgspec

from bilinq.live.store.transaction import Row, Transaction


class KeyRow(NamedTuple):
    """A key; `expires` and `revoked` are None as long as neither is so."""

    prefix: str
    hash: str
    name: str
    namespace: str
    scopes: tuple[str, ...]
    created: float
    expires: float | None = None
    revoked: float | None = None


COLUMNS = ", ".join(KeyRow._fields)


def add(tx: Transaction, row: KeyRow) -> None:
    """Store a new key."""
    stored = row._asdict() | {"scopes": msgspec.json.encode(row.scopes).decode()}
    tx.run(f"INSERT INTO api_key ({COLUMNS}) VALUES (:{', :'.join(KeyRow._fields)})", **stored)


def all(tx: Transaction) -> list[KeyRow]:
    """Return all keys, oldest first."""
    return [_key(row) for row in tx.rows(f"SELECT {COLUMNS} FROM api_key ORDER BY created, prefix")]


def find(tx: Transaction, prefix: str) -> KeyRow | None:
    """Return the key with a prefix, or None."""
    found = tx.rows(f"SELECT {COLUMNS} FROM api_key WHERE prefix = :prefix", prefix=prefix)
    return _key(found[0]) if found else None


def revoke(tx: Transaction, prefix: str, at: float) -> int:
    """Revoke a key; return how many that were (none if there is no such key, or it was revoked before)."""
    sql = "UPDATE api_key SET revoked = :at WHERE prefix = :prefix AND revoked IS NULL"
    return tx.run(sql, prefix=prefix, at=at)


def expire(tx: Transaction, prefix: str, at: float) -> int:
    """Let a key expire at a time, or earlier if it does so anyway; return how many that were."""
    sql = "UPDATE api_key SET expires = :at WHERE prefix = :prefix AND (expires IS NULL OR expires > :at)"
    return tx.run(sql, prefix=prefix, at=at)


def _key(row: Row) -> KeyRow:
    stored = KeyRow(*row)
    return stored._replace(scopes=msgspec.json.decode(row[4], type=tuple[str, ...]))
