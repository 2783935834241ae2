"""The tables `job`, `job_tag`, `lease` and `observation`: jobs, the work on them, and what is learnt from that work."""

from collections.abc import Collection, Container, Sequence
from itertools import accumulate
from typing import NamedTuple

from bilinq.live.store.admin_tables import keep_ids
from bilinq.live.store.transaction import Bulk, Row, Transaction


class JobRow(NamedTuple):
    """A job; `payload` and `result` are JSON texts, `digest` is the digest of the request that came with `key`.

    `options` is the JSON text of a `JobOptions`, None for a job that has none.
    """

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
    options: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.payload) if self.payload.isascii() else len(self.payload.encode())


class TagRow(NamedTuple):
    """A tag of a job."""

    tag: str
    job: int


class KnownJob(NamedTuple):
    """A job that was submitted before under a key."""

    id: int
    state: str
    digest: str | None


class QueuedJob(NamedTuple):
    """The part of a queued job that the scheduler needs; `size` are the bytes of its payload."""

    id: int
    job_class: str
    namespace: str
    units_left: int
    attempts: int
    submitted: float
    size: int
    options: str | None = None


class RequeuedJob(NamedTuple):
    """A job that returns to its queue."""

    id: int
    units_left: int
    attempts: int
    error: str | None = None


class JobEnd(NamedTuple):
    """A job that is done, dead, cancelled or expired; ends are numbered in the order in which they are stored."""

    id: int
    state: str
    ended: float
    units_left: int
    attempts: int
    result: str | None = None
    reward: float | None = None
    error: str | None = None
    number: int | None = None


class End(NamedTuple):
    """The end of a job with its number, and what a filter asks for."""

    number: int
    id: int
    namespace: str
    job_class: str
    state: str
    options: str | None


class EndedJobRow(NamedTuple):
    """A job that has ended, without its payload; `number` is that of its end."""

    number: int
    id: int
    namespace: str
    job_class: str
    state: str
    key: str | None
    attempts: int
    submitted: float
    started: float | None
    ended: float
    result: str | None
    reward: float | None
    error: str | None
    options: str | None


class LeaseRow(NamedTuple):
    """A lease; `state` is active, finished, failed, expired or revoked. Its id is also its fence.

    `decision` is the record of why it was granted, None if there is none.
    """

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
    decision: str | None = None


class LeaseEnd(NamedTuple):
    """The end of a lease; `digest` is the digest of the request that finished it."""

    id: int
    state: str
    ended: float
    reward: float | None = None
    digest: str | None = None
    detail: str | None = None


class Extension(NamedTuple):
    """A later deadline of a lease."""

    id: int
    deadline: float


class ObservationRow(NamedTuple):
    """What the scheduler learns from a lease; `seq` is its place in the log.

    Revision 0 is the end of the lease: a reward, a duration in seconds, or both, or that it `failed`. A reward that comes
    later is revision 1, and each further one corrects the one `before`. `epoch` is the scheduler's when the reward was first
    given, -1 if it did not learn then, `features` (JSON) are those of the job, and `key` is that of a later reward.
    """

    seq: int
    lease: int
    revision: int
    job_class_id: int
    server_class_id: int
    value: float | None
    duration: float | None = None
    failed: int = 0
    before: float | None = None
    epoch: int = 0
    features: str | None = None
    key: str | None = None


class LateReward(NamedTuple):
    """A reward that came after the end of a lease."""

    job: int
    lease: int
    reward: float


class JobStart(NamedTuple):
    """The first lease of a job."""

    job: int
    granted: float


JOB_COLUMNS = ", ".join("class" if name == "job_class" else name for name in JobRow._fields)
LEASE_COLUMNS = ", ".join(LeaseRow._fields)
OBSERVATION_COLUMNS = ", ".join(ObservationRow._fields)

insert_jobs = Bulk(f"INSERT INTO job ({JOB_COLUMNS}) SELECT :{', :'.join(JobRow._fields)} {{rows}}", JobRow)
"""Store new jobs."""
insert_tags = Bulk("INSERT INTO job_tag (tag, job) SELECT :tag, :job {rows}", TagRow)
"""Store the tags of new jobs."""
requeue_jobs = Bulk(
    """UPDATE job SET state = 'queued', units_left = :units_left, attempts = :attempts, error = :error, ended = NULL,
        end_number = NULL {rows} WHERE {key}""",
    RequeuedJob,
    "job.id = :id",
)
"""Return jobs to their queues."""
end_jobs = Bulk(
    """UPDATE job SET state = :state, ended = :ended, units_left = :units_left, attempts = :attempts, result = :result,
        reward = :reward, error = :error, end_number = :number {rows} WHERE {key}""",
    JobEnd,
    "job.id = :id",
)
"""Mark jobs as done, dead, cancelled or expired."""
start_jobs = Bulk(
    "UPDATE job SET state = 'leased', started = coalesce(job.started, :granted) {rows} WHERE {key}",
    JobStart,
    "job.id = :job",
)
insert_leases = Bulk(f"INSERT INTO lease ({LEASE_COLUMNS}) SELECT :{', :'.join(LeaseRow._fields)} {{rows}}", LeaseRow)
end_leases = Bulk(
    """UPDATE lease SET state = :state, ended = :ended, reward = :reward, digest = :digest, detail = :detail {rows}
        WHERE {key} AND lease.ended IS NULL""",
    LeaseEnd,
    "lease.id = :id",
)
"""End leases; those that have ended stay as they are."""
extend_leases = Bulk(
    "UPDATE lease SET deadline = :deadline {rows} WHERE {key} AND lease.ended IS NULL", Extension, "lease.id = :id"
)
"""Set later deadlines of leases; those that have ended stay as they are."""
add_observations = Bulk(
    f"INSERT INTO observation ({OBSERVATION_COLUMNS}) SELECT :{', :'.join(ObservationRow._fields)} {{rows}}",
    ObservationRow,
)
"""Append observations to the log; a second one of the same lease and revision is an error."""

reward_jobs = Bulk(
    "UPDATE job SET reward = :reward {rows} WHERE {key} AND job.state = 'done'", LateReward, "job.id = :job"
)
"""Set rewards of jobs that are done."""
reward_leases = Bulk("UPDATE lease SET reward = :reward {rows} WHERE {key}", LateReward, "lease.id = :lease")
"""Set rewards of leases that have ended."""

STATES = {state: f"state = '{state}'" for state in ("queued", "leased", "done", "dead", "cancelled", "expired")}
"""Conditions on the state, written out so that partial indexes can be used."""
SIZE = {"sqlite": "length(CAST({} AS BLOB))", "postgresql": "octet_length({})"}  # bytes of a column
LARGEST_ID = 2**62  # larger than any id
EXPIRED = """SELECT id FROM job WHERE state IN ('done', 'cancelled', 'expired') AND ended < :before
    ORDER BY ended, id LIMIT :limit"""


def get_job(tx: Transaction, id: int) -> JobRow | None:
    """Return a job, or None."""
    found = tx.rows(f"SELECT {JOB_COLUMNS} FROM job WHERE id = :id", id=id)
    return JobRow(*found[0]) if found else None


def list_jobs(
    tx: Transaction, namespaces: Collection[str] | None, state: str | None, job_class: str | None, before_id: int | None,
    limit: int, tag: str | None = None,
) -> list[JobRow]:  # fmt: skip
    """Return up to `limit` jobs, newest first, older than `before_id`, that match every argument that is not None."""
    found = _matching(tx, JOB_COLUMNS, namespaces, state, job_class, before_id, limit, tag)
    return list(map(JobRow._make, found))


def page_length(
    tx: Transaction, namespaces: Collection[str] | None, state: str | None, job_class: str | None, before_id: int | None,
    limit: int, tag: str | None, most: int,
) -> int:  # fmt: skip
    """Return how many of the jobs of `list_jobs` have together at most `most` bytes, at least one; `limit` if all have."""
    size = " + ".join(f"coalesce({SIZE[tx.dialect].format(name)}, 0)" for name in ("payload", "result", "options"))
    sizes = accumulate(bytes for (bytes,) in _matching(tx, size, namespaces, state, job_class, before_id, limit, tag))
    return next((max(place, 1) for place, total in enumerate(sizes) if total > most), limit)


def list_ids(
    tx: Transaction, namespaces: Collection[str] | None, states: Collection[str], job_class: str | None,
    before_id: int | None, limit: int, tag: str | None = None,
) -> list[int]:  # fmt: skip
    """Return the ids of up to `limit` jobs in one of `states`, newest first, that match as in `list_jobs`."""
    found = (_matching(tx, "id", namespaces, state, job_class, before_id, limit, tag) for state in states)
    return sorted((id for some in found for (id,) in some), reverse=True)[:limit]


def _matching(
    tx: Transaction, columns: str, namespaces: Collection[str] | None, state: str | None, job_class: str | None,
    before_id: int | None, limit: int, tag: str | None,
) -> list[Row]:  # fmt: skip
    tests = ["id < :before_id"]
    if namespaces is not None:
        tests.append("namespace {among}")
    if state is not None:
        tests.append(STATES[state])
    if job_class is not None:
        tests.append("class = :job_class")
    if tag is not None:
        tests.append("id IN (SELECT job FROM job_tag WHERE tag = :tag AND job < :before_id)")
    sql = f"SELECT {columns} FROM job WHERE {' AND '.join(tests)} ORDER BY id DESC LIMIT :limit"
    before = LARGEST_ID if before_id is None else before_id
    given = {"job_class": job_class, "before_id": before, "limit": limit, "tag": tag}
    return tx.rows(sql, **given) if namespaces is None else tx.among(sql, sorted(namespaces), **given)


def ends_after(tx: Transaction, number: int, limit: int) -> list[End]:
    """Return up to `limit` ends after one, in order."""
    sql = """SELECT end_number, id, namespace, class, state, options FROM job WHERE end_number > :number
        ORDER BY end_number LIMIT :limit"""
    return list(map(End._make, tx.rows(sql, number=number, limit=limit)))


def ended_jobs(tx: Transaction, ids: Sequence[int]) -> list[EndedJobRow]:
    """Return some jobs that have ended, in the order of their ends."""
    names = {"number": "end_number", "job_class": "class"}
    columns = ", ".join(names.get(name, name) for name in EndedJobRow._fields)
    sql = f"SELECT {columns} FROM job WHERE end_number IS NOT NULL AND id {{among}} ORDER BY end_number"
    return list(map(EndedJobRow._make, tx.among(sql, ids))) if ids else []


def dead_jobs(tx: Transaction, ids: Sequence[int]) -> list[JobRow]:
    """Return those of some jobs that are dead, oldest first."""
    sql = f"SELECT {JOB_COLUMNS} FROM job WHERE {STATES['dead']} AND id {{among}} ORDER BY id"
    return list(map(JobRow._make, tx.among(sql, ids)))


def jobs_with_key(tx: Transaction, key: str, namespaces: Sequence[str]) -> list[JobRow]:
    """Return the jobs that were submitted under a key, newest first: at most one of each namespace."""
    sql = f"SELECT {JOB_COLUMNS} FROM job WHERE key = :key AND namespace {{among}} ORDER BY id DESC"
    return list(map(JobRow._make, tx.among(sql, namespaces, key=key)))


def known_jobs(tx: Transaction, namespace: str, keys: Sequence[str]) -> dict[str, KnownJob]:
    """Return the jobs of a namespace that were submitted under one of `keys`, by key."""
    if not keys:
        return {}
    sql = "SELECT key, id, state, digest FROM job WHERE namespace = :namespace AND key {among}"
    return {key: KnownJob(*known) for key, *known in tx.among(sql, keys, namespace=namespace)}


def queued_jobs(tx: Transaction) -> list[QueuedJob]:
    """Return all queued jobs, oldest first."""
    names: dict[str, str] = {}  # one string for each class and namespace, not one for each job
    size = SIZE[tx.dialect].format("payload")
    sql = f"""SELECT id, class, namespace, units_left, attempts, submitted, {size}, options FROM job
        WHERE state = 'queued' ORDER BY id"""
    return [
        QueuedJob(id, names.setdefault(name, name), names.setdefault(space, space), *rest)
        for id, name, space, *rest in tx.rows(sql)
    ]


def open_options(tx: Transaction) -> list[str]:
    """Return the options of the jobs that have some and have not ended."""
    sql = "SELECT options FROM job WHERE state IN ('queued', 'leased') AND options IS NOT NULL"
    return [text for (text,) in tx.rows(sql)]


def count_dead_jobs(tx: Transaction) -> dict[str, int]:
    """Return the number of dead jobs of each namespace that has some."""
    return dict(tx.rows("SELECT namespace, count(*) FROM job WHERE state = 'dead' GROUP BY namespace"))


def purge_jobs(tx: Transaction, before: float, limit: int) -> int:
    """Delete up to `limit` jobs that were done, cancelled or expired before a time, with their leases; return how many.

    Their rewards stay, and their ids are never used again.
    """
    if not tx.rows(EXPIRED, before=before, limit=1):
        return 0
    for name in ("job", "lease", "end"):
        keep_ids(tx, name)
    tx.run(f"DELETE FROM lease WHERE job IN ({EXPIRED})", before=before, limit=limit)
    tx.run(f"DELETE FROM job_tag WHERE job IN ({EXPIRED})", before=before, limit=limit)
    return tx.run(f"DELETE FROM job WHERE id IN ({EXPIRED})", before=before, limit=limit)


def set_options(tx: Transaction, id: int, options: str | None) -> None:
    """Change the options of a job."""
    tx.run("UPDATE job SET options = :options WHERE id = :id", options=options, id=id)


def grant_leases(tx: Transaction, rows: Sequence[LeaseRow], stored: Container[int] = ()) -> dict[int, str]:
    """Store leases and mark their jobs as leased; return the payloads by job id.

    Jobs in `stored` are already marked, and their payloads are not returned.
    """
    insert_leases(tx, rows)
    waiting = [row for row in rows if row.job not in stored]
    if not waiting:
        return {}
    start_jobs(tx, [JobStart(row.job, row.granted) for row in waiting])
    return dict(tx.among("SELECT id, payload FROM job WHERE id {among}", [row.job for row in waiting]))


class FailedOn(NamedTuple):
    """A server on which a lease of a job failed or expired, and when it did so last."""

    job: int
    server: int
    ended: float


def failed_servers(tx: Transaction, jobs: Sequence[int]) -> list[FailedOn]:
    """Return the servers that have failed some jobs."""
    sql = """SELECT job, server, max(ended) FROM lease WHERE state IN ('failed', 'expired') AND job {among}
        GROUP BY job, server"""
    return list(map(FailedOn._make, tx.among(sql, jobs))) if jobs else []


def get_lease(tx: Transaction, id: int) -> LeaseRow | None:
    """Return a lease, or None."""
    found = tx.rows(f"SELECT {LEASE_COLUMNS} FROM lease WHERE id = :id", id=id)
    return LeaseRow(*found[0]) if found else None


def active_leases(tx: Transaction) -> list[LeaseRow]:
    """Return the leases that have not ended, oldest first; each belongs to a job in state leased."""
    columns = ", ".join(f"lease.{name}" for name in LeaseRow._fields)
    sql = f"""SELECT {columns} FROM job JOIN lease ON lease.job = job.id
        WHERE job.state = 'leased' AND lease.ended IS NULL ORDER BY lease.id"""
    return list(map(LeaseRow._make, tx.rows(sql)))


def leases_of_job(tx: Transaction, job: int, limit: int = 1000) -> list[LeaseRow]:
    """Return the newest `limit` leases of a job, oldest of them first."""
    sql = f"SELECT {LEASE_COLUMNS} FROM lease WHERE job = :job ORDER BY id DESC LIMIT :limit"
    return [LeaseRow._make(row) for row in reversed(tx.rows(sql, job=job, limit=limit))]


def observations_since(tx: Transaction, seq: int) -> list[ObservationRow]:
    """Return the observations after `seq`, in order."""
    found = tx.rows(f"SELECT {OBSERVATION_COLUMNS} FROM observation WHERE seq > :seq ORDER BY seq", seq=seq)
    return list(map(ObservationRow._make, found))


def last_observation(tx: Transaction) -> int:
    """Return the place of the newest observation in the log, zero if there is none."""
    return int(tx.rows("SELECT coalesce(max(seq), 0) FROM observation")[0][0])


def observations_of(tx: Transaction, lease: int) -> list[ObservationRow]:
    """Return what was observed of a lease, in order."""
    found = tx.rows(
        f"SELECT {OBSERVATION_COLUMNS} FROM observation WHERE lease = :lease ORDER BY revision", lease=lease
    )
    return list(map(ObservationRow._make, found))


def count_awaited(tx: Transaction) -> dict[str, int]:
    """Return the number of jobs of each namespace that are done and have no reward."""
    return dict(
        tx.rows("SELECT namespace, count(*) FROM job WHERE state = 'done' AND reward IS NULL GROUP BY namespace")
    )


class JudgedLease(NamedTuple):
    """A lease with a decision record that has failed or has a reward, with the class and options of its job."""

    id: int
    job: int
    job_class: str
    server_class_id: int
    granted: float
    reward: float | None
    failed: int
    decision: str
    options: str | None


def judged_leases(tx: Transaction, namespaces: Collection[str] | None, after: int, limit: int) -> list[JudgedLease]:
    """Return up to `limit` judged leases with a decision record, of some namespaces or of all.

    They are in the order in which their failures or first rewards came, from the one behind the lease `after` on.
    """
    first = "(failed = 1 OR (value IS NOT NULL AND before IS NULL))"
    since = tx.rows(f"SELECT coalesce(max(seq), 0) FROM observation WHERE lease = :after AND {first}", after=after)
    own = "" if namespaces is None else "AND job.namespace {among}"
    sql = f"""SELECT lease.id, lease.job, job.class, lease.server_class_id, granted, lease.reward, failed, decision, options
        FROM observation JOIN lease ON lease.id = observation.lease JOIN job ON job.id = lease.job
        WHERE seq > :since AND {first} AND decision IS NOT NULL {own} ORDER BY seq LIMIT :limit"""
    given = {"since": since[0][0], "limit": limit}
    found = tx.rows(sql, **given) if namespaces is None else tx.among(sql, sorted(namespaces), **given)
    return list(map(JudgedLease._make, found))


def count_rewards(tx: Transaction) -> int:
    """Return the number of services that were rewarded."""
    return int(tx.rows("SELECT count(*) FROM observation WHERE value IS NOT NULL AND before IS NULL")[0][0])
