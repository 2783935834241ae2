"""Checkpoints: what was learnt from all rewards up to one of them."""

from typing import NamedTuple

from bilinq.live.store.transaction import Transaction

KEPT = 3


class Checkpoint(NamedTuple):
    """Learnt state after the reward `seq`, as bytes, with their checksum."""

    id: int
    seq: int
    at: float
    state: bytes
    checksum: str


COLUMNS = ", ".join(Checkpoint._fields)


def save(tx: Transaction, seq: int, at: float, state: bytes, checksum: str) -> None:
    """Store a checkpoint and delete all but the newest three."""
    newest = tx.rows("SELECT coalesce(max(id), 0) FROM checkpoint")[0][0]
    row = Checkpoint(newest + 1, seq, at, state, checksum)
    tx.run(f"INSERT INTO checkpoint ({COLUMNS}) VALUES (:id, :seq, :at, :state, :checksum)", **row._asdict())
    tx.run("DELETE FROM checkpoint WHERE id <= :old", old=row.id - KEPT)


def newest(tx: Transaction) -> list[Checkpoint]:
    """Return the stored checkpoints, newest first."""
    return list(map(Checkpoint._make, tx.rows(f"SELECT {COLUMNS} FROM checkpoint ORDER BY id DESC")))
