"""The tables, as numbered steps from an empty database to the newest version."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bilinq.errors import BadInput
from bilinq.live.store import inbox_tables, settings_tables
from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.transaction import Transaction

WORDS = {
    "sqlite": {"id": "INTEGER PRIMARY KEY", "bytes": "BLOB"},
    "postgresql": {"id": "BIGINT PRIMARY KEY", "bytes": "BYTEA"},
}
"""The replacements of {id} and {bytes} in a statement for both databases."""


META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
"""The first table, which also has the version of the others."""


class Migration(NamedTuple):
    """One step: statements for both databases, then those for one of them."""

    both: Sequence[str] = ()
    sqlite: Sequence[str] = ()
    postgresql: Sequence[str] = ()


FIRST = Migration(
    both=(
        """CREATE TABLE class (
            id {id}, kind TEXT NOT NULL, name TEXT NOT NULL, features TEXT NOT NULL, weight DOUBLE PRECISION NOT NULL,
            holding_cost DOUBLE PRECISION NOT NULL, backlog BIGINT, current BIGINT NOT NULL)""",
        "CREATE UNIQUE INDEX class_current ON class (kind, name) WHERE current = 1",
        "CREATE TABLE knob (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        """CREATE TABLE server (
            id {id}, class TEXT NOT NULL, name TEXT, owner TEXT NOT NULL, registered DOUBLE PRECISION NOT NULL,
            seen DOUBLE PRECISION NOT NULL)""",
        "CREATE UNIQUE INDEX server_name ON server (owner, name) WHERE name IS NOT NULL",
        """CREATE TABLE job (
            id {id}, namespace TEXT NOT NULL, class TEXT NOT NULL, state TEXT NOT NULL, key TEXT, digest TEXT,
            payload TEXT NOT NULL, units BIGINT NOT NULL, units_left BIGINT NOT NULL, attempts BIGINT NOT NULL,
            submitted DOUBLE PRECISION NOT NULL, started DOUBLE PRECISION, ended DOUBLE PRECISION, result TEXT,
            reward DOUBLE PRECISION, error TEXT)""",
        "CREATE UNIQUE INDEX job_key ON job (namespace, key) WHERE key IS NOT NULL",
        "CREATE INDEX job_listing ON job (namespace, id)",
        "CREATE INDEX job_open ON job (state, id) WHERE state IN ('queued', 'leased')",
        "CREATE INDEX job_dead ON job (namespace, id) WHERE state = 'dead'",
        "CREATE INDEX job_past ON job (ended, id) WHERE state IN ('done', 'cancelled')",
        """CREATE TABLE lease (
            id {id}, job BIGINT NOT NULL, server BIGINT NOT NULL, job_class_id BIGINT NOT NULL,
            server_class_id BIGINT NOT NULL, granted DOUBLE PRECISION NOT NULL, deadline DOUBLE PRECISION NOT NULL,
            state TEXT NOT NULL, ended DOUBLE PRECISION, reward DOUBLE PRECISION, digest TEXT, detail TEXT)""",
        "CREATE INDEX lease_job ON lease (job, id)",
        "CREATE INDEX lease_active ON lease (id) WHERE state = 'active'",
        """CREATE TABLE reward (
            seq {id}, lease BIGINT NOT NULL UNIQUE, job_class_id BIGINT NOT NULL, server_class_id BIGINT NOT NULL,
            value DOUBLE PRECISION NOT NULL)""",
        """CREATE TABLE checkpoint (
            id {id}, seq BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL, state {bytes} NOT NULL, checksum TEXT NOT NULL)""",
        """CREATE TABLE api_key (
            prefix TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, namespace TEXT NOT NULL, scopes TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL, expires DOUBLE PRECISION, revoked DOUBLE PRECISION)""",
        """CREATE TABLE audit (
            id {id}, at DOUBLE PRECISION NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL)""",
    ),
    sqlite=(
        """CREATE TRIGGER audit_update BEFORE UPDATE ON audit
            BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END""",
        """CREATE TRIGGER audit_delete BEFORE DELETE ON audit
            BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END""",
        """CREATE TRIGGER audit_replace BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
            BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END""",
    ),
    postgresql=(
        """CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'audit is append-only' USING ERRCODE = 'check_violation'; END $$""",
        """CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
            FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()""",
    ),
)

NO_INDEX_OF_ACTIVE = Migration(["DROP INDEX lease_active"], (), ["ALTER TABLE lease SET (fillfactor = 60)"])
"""A lease ends without a change to any index: active leases are found through their jobs. Free space in the pages lets
PostgreSQL write the new version of a row next to the old one, so that no index changes."""

LOG_OF_OBSERVATIONS = Migration(
    both=(
        """CREATE TABLE observation (
            seq {id}, lease BIGINT NOT NULL, revision BIGINT NOT NULL, job_class_id BIGINT NOT NULL,
            server_class_id BIGINT NOT NULL, value DOUBLE PRECISION, duration DOUBLE PRECISION, failed BIGINT NOT NULL,
            before DOUBLE PRECISION, epoch BIGINT NOT NULL, features TEXT, UNIQUE (lease, revision))""",
        """INSERT INTO observation (seq, lease, revision, job_class_id, server_class_id, value, failed, epoch)
            SELECT seq, lease, 0, job_class_id, server_class_id, value, 0, 0 FROM reward ORDER BY seq""",
        "ALTER TABLE class ADD COLUMN since BIGINT NOT NULL DEFAULT 0",
        """WITH used AS MATERIALIZED (
                SELECT job_class_id AS id, min(seq) - 1 AS since FROM reward GROUP BY job_class_id
                UNION ALL SELECT server_class_id, min(seq) - 1 FROM reward GROUP BY server_class_id)
            UPDATE class SET since = coalesce(
                (SELECT used.since FROM used WHERE used.id = class.id), (SELECT coalesce(max(seq), 0) FROM reward))""",
        "DROP TABLE reward",
    )
)
"""The log also has durations, failures, features of single jobs, late rewards and corrections, and when classes changed.
Classes that earlier versions stored count from the first reward that was earned with them."""

OPTIONS_OF_JOBS = Migration(
    both=(
        "ALTER TABLE job ADD COLUMN options TEXT",
        "CREATE TABLE job_tag (tag TEXT NOT NULL, job BIGINT NOT NULL, PRIMARY KEY (tag, job))",
        "CREATE INDEX job_tag_job ON job_tag (job)",
        "DROP INDEX job_past",
        "CREATE INDEX job_past ON job (ended, id) WHERE state IN ('done', 'cancelled', 'expired')",
    )
)
"""Jobs may have features, servers, a weight, a deadline and more of their own; most have none, and store nothing."""

PAUSES = Migration(
    both=(
        "ALTER TABLE class ADD COLUMN retry_first DOUBLE PRECISION",
        "ALTER TABLE class ADD COLUMN retry_longest DOUBLE PRECISION",
        "ALTER TABLE server ADD COLUMN held TEXT",
    )
)
"""Pauses before retries by job class, and servers that an operator holds."""

LATE_REWARDS = Migration(
    both=(
        "ALTER TABLE observation ADD COLUMN key TEXT",
        "CREATE INDEX job_awaited ON job (id) WHERE state = 'done' AND reward IS NULL",
    )
)
"""Rewards that come later may have a key, and the jobs that await one are counted."""

DECISIONS = Migration(["ALTER TABLE lease ADD COLUMN decision TEXT"])
"""Why each lease was granted, in at most 300 bytes."""

TENANTS = Migration(
    both=(
        "ALTER TABLE api_key ADD COLUMN namespaces TEXT NOT NULL DEFAULT '[]'",
        "UPDATE api_key SET scopes = replace(scopes, '\"admin\"', '\"fleet\"')",
        "ALTER TABLE audit ADD COLUMN namespace TEXT",
        "CREATE INDEX audit_namespace ON audit (namespace, id)",
        """CREATE TABLE namespace (
            name TEXT PRIMARY KEY, weight DOUBLE PRECISION NOT NULL, rate DOUBLE PRECISION, backlog BIGINT,
            payload_bytes BIGINT, running BIGINT)""",
    ),
)
"""Namespaces are boundaries. Keys with scope admin could do everything everywhere; scope fleet keeps that."""

ENQUEUE_BY_SQL = Migration(postgresql=(inbox_tables.TABLE, inbox_tables.FUNCTION, inbox_tables.REVOKE))
"""On PostgreSQL jobs can be enqueued in a transaction of the application."""

SETTINGS_HISTORY = Migration([settings_tables.TABLE])
"""Changes of settings are kept with what they changed, so that they can be undone."""

ENDS = Migration(
    both=(
        "ALTER TABLE job ADD COLUMN end_number BIGINT",
        "CREATE INDEX job_end ON job (end_number) WHERE end_number IS NOT NULL",
    )
)
"""Ends of jobs have numbers, so that they can be followed without loss. Jobs that ended before have none."""

SAFE_ENQUEUE = Migration(postgresql=(inbox_tables.SAFE_PATH, inbox_tables.ORDER))
"""The function that enqueues ignores temporary tables of its callers, and the inbox is read class by class."""

MIGRATIONS: tuple[Migration, ...] = (
    FIRST, NO_INDEX_OF_ACTIVE, LOG_OF_OBSERVATIONS, OPTIONS_OF_JOBS, PAUSES, LATE_REWARDS, DECISIONS, TENANTS,
    ENQUEUE_BY_SQL, SETTINGS_HISTORY, ENDS, SAFE_ENQUEUE,
)  # fmt: skip
"""Step i upgrades version i to version i + 1. A released step never changes; a change is a further step."""


def migrate(tx: Transaction, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Run the steps that are new to the database; raise if the database is of a newer version than is known here."""
    tx.run(META.replace("TABLE", "TABLE IF NOT EXISTS"))
    version = int(get_meta(tx, "schema") or 0)
    check_version(version, len(migrations))
    for statement in statements(tx.dialect, version, len(migrations), migrations):
        tx.run(statement)
    if version < len(migrations):
        put_meta(tx, "schema", str(len(migrations)))


def statements(dialect: str, before: int, after: int, migrations: Sequence[Migration] = MIGRATIONS) -> Iterator[str]:
    """Yield what brings the tables of a database from one version to another, except for the table `meta`."""
    for step in migrations[before:after]:
        for statement in (*step.both, *getattr(step, dialect)):
            yield statement.format(**WORDS[dialect])


def check_version(version: int, newest: int = len(MIGRATIONS)) -> None:
    """Raise if a database has tables of a version that is not known here."""
    if version > newest:
        raise BadInput(
            f"database must have tables of version {newest} or older; "
            f"got version {version}, made by a newer bilinq: upgrade bilinq"
        )
