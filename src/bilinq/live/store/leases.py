"""Leases: who may serve which job until when, and how that ended."""

from collections.abc import Container, Sequence
from typing import NamedTuple

from bilinq.live.store.transaction import Bulk, Transaction


class LeaseRow(NamedTuple):
    """A lease; `state` is active, finished, failed, expired or revoked. Its id is also its fence."""

    id: int
    job: int
    server: int
    job_class_id: int
    server_class_id: int
    granted: float
    deadline: float
    state: str = "active"
    ended: float | None = None
    reward: float | None = None
    digest: str | None = None
    detail: str | None = None


class LeaseEnd(NamedTuple):
    """How a lease ended; `digest` is that of the body which finished it."""

    id: int
    state: str
    ended: float
    reward: float | None = None
    digest: str | None = None
    detail: str | None = None


class Extension(NamedTuple):
    """A later deadline."""

    id: int
    deadline: float


COLUMNS = ", ".join(LeaseRow._fields)
INSERT = Bulk(f"INSERT INTO lease ({COLUMNS}) SELECT :{', :'.join(LeaseRow._fields)} {{rows}}", LeaseRow)
END = Bulk(
    """UPDATE lease SET state = :state, ended = :ended, reward = :reward, digest = :digest, detail = :detail {rows}
        WHERE {key} AND lease.ended IS NULL""",
    LeaseEnd,
    "lease.id = :id",
)
EXTEND = Bulk(
    "UPDATE lease SET deadline = :deadline {rows} WHERE {key} AND lease.ended IS NULL", Extension, "lease.id = :id"
)


class _Start(NamedTuple):
    job: int
    granted: float


START = Bulk(
    "UPDATE job SET state = 'leased', started = coalesce(job.started, :granted) {rows} WHERE {key}",
    _Start,
    "job.id = :job",
)


def grant(tx: Transaction, rows: Sequence[LeaseRow], stored: Container[int] = ()) -> dict[int, str]:
    """Store leases, mark their jobs as leased, and return the payloads by job id; jobs `stored` as leased need neither."""
    if rows:
        tx.each(INSERT, rows)
    waiting = [row for row in rows if row.job not in stored]
    if not waiting:
        return {}
    tx.each(START, [(row.job, row.granted) for row in waiting])
    return dict(tx.among("SELECT id, payload FROM job WHERE id {among}", [row.job for row in waiting]))


def get(tx: Transaction, id: int) -> LeaseRow | None:
    """Return a lease, or None."""
    found = tx.rows(f"SELECT {COLUMNS} FROM lease WHERE id = :id", id=id)
    return LeaseRow(*found[0]) if found else None


def active(tx: Transaction) -> list[LeaseRow]:
    """Return the leases that have not ended, oldest first: each is that of a job which is leased."""
    columns = ", ".join(f"lease.{name}" for name in LeaseRow._fields)
    sql = f"""SELECT {columns} FROM job JOIN lease ON lease.job = job.id
        WHERE job.state = 'leased' AND lease.ended IS NULL ORDER BY lease.id"""
    return list(map(LeaseRow._make, tx.rows(sql)))


def of_job(tx: Transaction, job: int, limit: int = 1000) -> list[LeaseRow]:
    """Return the newest `limit` leases of a job, oldest of them first."""
    found = tx.rows(f"SELECT {COLUMNS} FROM lease WHERE job = :job ORDER BY id DESC LIMIT :limit", job=job, limit=limit)
    return [LeaseRow._make(row) for row in reversed(found)]


def end(tx: Transaction, rows: Sequence[LeaseEnd]) -> None:
    """End leases; those that have ended stay as they are."""
    if rows:
        tx.each(END, rows)


def extend(tx: Transaction, rows: Sequence[Extension]) -> None:
    """Give leases a later deadline; those that have ended stay as they are."""
    if rows:
        tx.each(EXTEND, rows)
