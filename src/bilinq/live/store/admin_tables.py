"""The tables `meta`, `api_key` and `audit`: single values, API keys, and the log of admin actions."""

import time
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from bilinq.live.store.transaction import Row, Transaction

LOCAL = "local"  # the caller in the audit log when the command line works on the database itself


class LargestIds(NamedTuple):
    """The largest id ever used in each table, zero if none.

    `seq` is the last place in the log of what was learnt, and `end` the number of the last end of a job.
    """

    job: int
    lease: int
    server: int
    seq: int
    class_: int
    end: int


class KeyRow(NamedTuple):
    """An API key: its hash and its public prefix, never the key itself; `expires` and `revoked` are None if never.

    `namespaces` are those in which its scopes hold beside its own; a star is all.
    """

    prefix: str
    hash: str
    name: str
    namespace: str
    scopes: tuple[str, ...]
    created: float
    expires: float | None = None
    revoked: float | None = None
    namespaces: tuple[str, ...] = ()


class AuditRow(NamedTuple):
    """An admin action; `who` is the prefix of a key or the name of the command line, `detail` its object.

    `namespace` is the one that it concerns; None if that is not a single one.
    """

    id: int
    at: float
    who: str
    what: str
    detail: str
    namespace: str | None = None


RESTORE_GAP = 10**10  # ids that are skipped after a restore: more than can have been used since the backup was made
KEY_COLUMNS = ", ".join(KeyRow._fields)
LISTS = ("scopes", "namespaces")  # columns of a key that are JSON lists
AUDIT_COLUMNS = ", ".join(AuditRow._fields)


def get_meta(tx: Transaction, name: str) -> str | None:
    """Return the value stored under a name, or None."""
    found = tx.rows("SELECT value FROM meta WHERE name = :name", name=name)
    return found[0][0] if found else None


def put_meta(tx: Transaction, name: str, value: str) -> None:
    """Store a value under a name."""
    sql = (
        "INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    tx.run(sql, name=name, value=value)


def largest_ids(tx: Transaction) -> LargestIds:
    """Return the largest id ever used in each table, deleted rows included."""
    job, lease, server, class_, end = (_largest_id(tx, name) for name in ("job", "lease", "server", "class", "end"))
    seq = max(_largest_id(tx, "observation"), _largest_id(tx, "since"))
    return LargestIds(job, lease, server, seq, class_, end)


def keep_ids(tx: Transaction, name: str, skip: int = 0) -> None:
    """Store the largest id of a table, or "end", and leave out the next `skip`; call it before rows are deleted.

    So no id is ever used twice.
    """
    put_meta(tx, f"largest {name}", str(_largest_id(tx, name) + skip))


COLUMNS = {"observation": ("seq", "observation"), "since": ("since", "class"), "end": ("end_number", "job")}
"""Columns and tables of numbers that are not ids of a table with their name."""


def _largest_id(tx: Transaction, name: str) -> int:
    column, table = COLUMNS.get(name, ("id", name))
    present = int(tx.rows(f"SELECT coalesce(max({column}), 0) FROM {table}")[0][0])
    return max(present, int(get_meta(tx, f"largest {name}") or 0))


def skip_used_ids(tx: Transaction, backup: str) -> None:
    """Give new jobs, leases, servers and ends numbers that were never used, not even after the `backup` that was restored.

    A worker with a lease granted after the backup must be refused by its fence, and not end the lease of another. Who has
    read ends after the backup must not miss others.
    """
    for name in ("job", "lease", "server", "end"):
        keep_ids(tx, name, skip=RESTORE_GAP)
    add_audit(tx, time.time(), LOCAL, "restore", backup)


def add_key(tx: Transaction, row: KeyRow) -> None:
    """Store a new key."""
    stored = row._asdict() | {name: msgspec.json.encode(getattr(row, name)).decode() for name in LISTS}
    tx.run(f"INSERT INTO api_key ({KEY_COLUMNS}) VALUES (:{', :'.join(KeyRow._fields)})", **stored)


def all_keys(tx: Transaction) -> list[KeyRow]:
    """Return all keys, oldest first."""
    return [_key(row) for row in tx.rows(f"SELECT {KEY_COLUMNS} FROM api_key ORDER BY created, prefix")]


def find_key(tx: Transaction, prefix: str) -> KeyRow | None:
    """Return the key with a prefix, or None."""
    found = tx.rows(f"SELECT {KEY_COLUMNS} FROM api_key WHERE prefix = :prefix", prefix=prefix)
    return _key(found[0]) if found else None


def revoke_key(tx: Transaction, prefix: str, at: float) -> int:
    """Revoke a key; return the number of keys revoked, zero if there is no such key or it was revoked before."""
    sql = "UPDATE api_key SET revoked = :at WHERE prefix = :prefix AND revoked IS NULL"
    return tx.run(sql, prefix=prefix, at=at)


def expire_key(tx: Transaction, prefix: str, at: float) -> int:
    """Let a key expire at a time, unless it expires earlier; return the number of keys changed."""
    sql = "UPDATE api_key SET expires = :at WHERE prefix = :prefix AND (expires IS NULL OR expires > :at)"
    return tx.run(sql, prefix=prefix, at=at)


def _key(row: Row) -> KeyRow:
    stored = KeyRow(*row)
    scopes, namespaces = (msgspec.json.decode(getattr(stored, name), type=tuple[str, ...]) for name in LISTS)
    return stored._replace(scopes=scopes, namespaces=namespaces)


def add_audit(tx: Transaction, at: float, who: str, what: str, detail: str, namespace: str | None = None) -> None:
    """Append an action to the log, which the database protects from changes and deletions."""
    next_id = "(SELECT coalesce(max(id), 0) + 1 FROM audit)"
    sql = f"INSERT INTO audit ({AUDIT_COLUMNS}) VALUES ({next_id}, :at, :who, :what, :detail, :namespace)"
    tx.run(sql, at=at, who=who, what=what, detail=detail, namespace=namespace)


def list_audit(tx: Transaction, limit: int, namespaces: Collection[str] | None = None) -> list[AuditRow]:
    """Return up to `limit` actions, newest first: all, or those that concern one of some namespaces."""
    some = "" if namespaces is None else "WHERE namespace {among}"
    sql = f"SELECT {AUDIT_COLUMNS} FROM audit {some} ORDER BY id DESC LIMIT :limit"
    found = tx.rows(sql, limit=limit) if namespaces is None else tx.among(sql, sorted(namespaces), limit=limit)
    return list(map(AuditRow._make, found))
