"""Rewards: a log from which all that was learnt can be computed again, with exactly one row for each lease."""

from collections.abc import Sequence
from typing import NamedTuple

from bilinq.live.store.transaction import Bulk, Transaction


class RewardRow(NamedTuple):
    """The reward of a lease, with the classes, and so the features, of then; `seq` is its place in the log."""

    seq: int
    lease: int
    job_class_id: int
    server_class_id: int
    value: float


COLUMNS = ", ".join(RewardRow._fields)
INSERT = Bulk(f"INSERT INTO reward ({COLUMNS}) SELECT :{', :'.join(RewardRow._fields)} {{rows}}", RewardRow)


def add(tx: Transaction, rows: Sequence[RewardRow]) -> None:
    """Append rewards; a second one for the same lease is an error."""
    if rows:
        tx.each(INSERT, rows)


def since(tx: Transaction, seq: int, limit: int | None = None) -> list[RewardRow]:
    """Return the rewards after `seq`, in order: all, or the first `limit`."""
    sql = f"SELECT {COLUMNS} FROM reward WHERE seq > :seq ORDER BY seq"
    found = tx.rows(sql, seq=seq) if limit is None else tx.rows(f"{sql} LIMIT :limit", seq=seq, limit=limit)
    return list(map(RewardRow._make, found))


def last(tx: Transaction) -> int:
    """Return the place of the newest reward, zero if there is none."""
    return int(tx.rows("SELECT coalesce(max(seq), 0) FROM reward")[0][0])
