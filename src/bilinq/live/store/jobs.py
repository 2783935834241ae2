"""Jobs: what was submitted, and what became of it."""

from collections.abc import Sequence
from typing import NamedTuple

from bilinq.live.store import leases, meta
from bilinq.live.store.leases import LeaseRow
from bilinq.live.store.transaction import Bulk, Transaction


class JobRow(NamedTuple):
    """A job; `payload` and `result` are JSON texts, `digest` that of the body that came with `key`."""

    id: int
    namespace: str
    job_class: str
    state: str
    key: str | None
    digest: str | None
    payload: str
    units: int
    units_left: int
    attempts: int
    submitted: float
    started: float | None = None
    ended: float | None = None
    result: str | None = None
    reward: float | None = None
    error: str | None = None


class Known(NamedTuple):
    """A job that was submitted before under a key."""

    id: int
    state: str
    digest: str | None


class Waiting(NamedTuple):
    """What the scheduler needs of a queued job."""

    id: int
    job_class: str
    units_left: int
    attempts: int
    submitted: float


class Queued(NamedTuple):
    """A job that goes back to its queue."""

    id: int
    units_left: int
    attempts: int
    error: str | None = None


class Ended(NamedTuple):
    """A job that is done, dead or cancelled."""

    id: int
    state: str
    ended: float
    units_left: int
    attempts: int
    result: str | None = None
    reward: float | None = None
    error: str | None = None


COLUMNS = ", ".join("class" if name == "job_class" else name for name in JobRow._fields)
INSERT = Bulk(f"INSERT INTO job ({COLUMNS}) SELECT :{', :'.join(JobRow._fields)} {{rows}}", JobRow)
QUEUE = Bulk(
    """UPDATE job SET state = 'queued', units_left = :units_left, attempts = :attempts, error = :error, ended = NULL {rows}
        WHERE {key}""",
    Queued,
    "job.id = :id",
)
END = Bulk(
    """UPDATE job SET state = :state, ended = :ended, units_left = :units_left, attempts = :attempts, result = :result,
        reward = :reward, error = :error {rows} WHERE {key}""",
    Ended,
    "job.id = :id",
)
STATES = {state: f"state = '{state}'" for state in ("queued", "leased", "done", "dead", "cancelled")}
"""Tests of the state, as texts that make partial indexes usable."""
MANY = 2**62
"""More than any id."""
PAST = """SELECT id FROM job WHERE state IN ('done', 'cancelled') AND ended < :before
    ORDER BY ended, id LIMIT :limit"""


def insert(tx: Transaction, rows: Sequence[JobRow]) -> None:
    """Store new jobs."""
    if rows:
        tx.each(INSERT, rows)


def by_key(tx: Transaction, namespace: str, keys: Sequence[str]) -> dict[str, Known]:
    """Return the jobs of a namespace that were submitted under one of `keys`, by key."""
    if not keys:
        return {}
    sql = "SELECT key, id, state, digest FROM job WHERE namespace = :namespace AND key {among}"
    return {key: Known(*known) for key, *known in tx.among(sql, keys, namespace=namespace)}


def get(tx: Transaction, id: int) -> JobRow | None:
    """Return a job, or None."""
    found = tx.rows(f"SELECT {COLUMNS} FROM job WHERE id = :id", id=id)
    return JobRow(*found[0]) if found else None


def history(tx: Transaction, id: int) -> list[LeaseRow]:
    """Return the leases of a job, oldest first (of a job with very many the newest thousand)."""
    return leases.of_job(tx, id)


def page(
    tx: Transaction, namespace: str | None, state: str | None, job_class: str | None, before_id: int | None, limit: int
) -> list[JobRow]:
    """Return up to `limit` jobs, newest first, that are older than `before_id` and match whatever is not None."""
    tests = ["id < :before_id"]
    if namespace is not None:
        tests.append("namespace = :namespace")
    if state is not None:
        tests.append(STATES[state])
    if job_class is not None:
        tests.append("class = :job_class")
    sql = f"SELECT {COLUMNS} FROM job WHERE {' AND '.join(tests)} ORDER BY id DESC LIMIT :limit"
    before = MANY if before_id is None else before_id
    found = tx.rows(sql, namespace=namespace, job_class=job_class, before_id=before, limit=limit)
    return list(map(JobRow._make, found))


def with_key(tx: Transaction, key: str, namespaces: Sequence[str]) -> list[JobRow]:
    """Return the jobs that were submitted under a key, newest first: at most one of each namespace."""
    sql = f"SELECT {COLUMNS} FROM job WHERE key = :key AND namespace {{among}} ORDER BY id DESC"
    return list(map(JobRow._make, tx.among(sql, namespaces, key=key)))


def waiting(tx: Transaction) -> list[Waiting]:
    """Return all queued jobs, oldest first."""
    names: dict[str, str] = {}  # one text for each class, not one for each job
    sql = "SELECT id, class, units_left, attempts, submitted FROM job WHERE state = 'queued' ORDER BY id"
    return [Waiting(id, names.setdefault(name, name), *rest) for id, name, *rest in tx.rows(sql)]


def count_dead(tx: Transaction) -> int:
    """Return how many jobs are dead."""
    return int(tx.rows("SELECT count(*) FROM job WHERE state = 'dead'")[0][0])


def set_queued(tx: Transaction, rows: Sequence[Queued]) -> None:
    """Put jobs back into their queues."""
    if rows:
        tx.each(QUEUE, rows)


def set_ended(tx: Transaction, rows: Sequence[Ended]) -> None:
    """Mark jobs as done, dead or cancelled."""
    if rows:
        tx.each(END, rows)


def payloads(tx: Transaction, ids: Sequence[int]) -> dict[int, str]:
    """Return the payloads of jobs by id."""
    return dict(tx.among("SELECT id, payload FROM job WHERE id {among}", ids)) if ids else {}


def purge(tx: Transaction, before: float, limit: int) -> int:
    """Delete up to `limit` jobs that were done or cancelled before a time, with their leases; return how many.

    Their rewards stay, and their ids are never used again.
    """
    if not tx.rows(PAST, before=before, limit=1):
        return 0
    meta.keep_ids(tx, "job")
    meta.keep_ids(tx, "lease")
    tx.run(f"DELETE FROM lease WHERE job IN ({PAST})", before=before, limit=limit)
    return tx.run(f"DELETE FROM job WHERE id IN ({PAST})", before=before, limit=limit)
